"""The Chromium that browser tests drive: the system's, since playwright's wheel brings none."""

import os
import shutil

MISSING = "no Chromium here: `apt-get install chromium`, or name one by STEADYRUN_CHROMIUM"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    """STEADYRUN_CHROMIUM if it is set, else what is on the path."""
    if named := os.environ.get("STEADYRUN_CHROMIUM"):
        return named
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


def wants_browser(arguments: list[str]) -> bool:
    """Whether pytest was asked for the browser's tests and nothing else."""
    return bool(arguments) and all(a.startswith("tests/browser") for a in arguments)
