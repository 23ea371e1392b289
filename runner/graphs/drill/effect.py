"""The outside world of a drill: a folder in which every performance of an effect leaves a line.

It does nothing about doubles on purpose: whoever performs an effect twice is found out. The folder
is named by the environment; without one nothing is written.
"""

import os
import time
from pathlib import Path

from runner.graphs.drill.order import line_of

FOLDER_VARIABLE = "STEADYRUN_DRILL_EFFECTS"


def perform(key: str) -> str:
    """Done when this returns, also for a machine that loses its power."""
    if (file := _file(key)) is not None:
        handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, f"{line_of(key, os.getpid(), time.time())}\n".encode())
            os.fsync(handle)
        finally:
            os.close(handle)
    return "done"


def was_performed(key: str) -> bool:
    file = _file(key)
    return file is not None and file.exists() and file.stat().st_size > 0


def _file(key: str) -> Path | None:
    folder = os.environ.get(FOLDER_VARIABLE)
    return Path(folder) / key if folder else None
