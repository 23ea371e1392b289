"""What pip installs into the image, read from pyproject.toml: its own program, since nothing of the
project is installed yet.

    requirements.py constraints     the versions that were tested, of everything
    requirements.py [EXTRA …]       the product's dependencies, with those of its extras
"""

import sys
import tomllib
from pathlib import Path
from typing import Any


def lines(project: dict[str, Any], arguments: list[str]) -> list[str]:
    if arguments == ["constraints"]:
        pins: list[str] = project["tool"]["uv"]["constraint-dependencies"]
        return pins
    extras = project["project"]["optional-dependencies"]
    return [*project["project"]["dependencies"], *(line for e in arguments for line in extras[e])]


def main() -> int:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    print("\n".join(lines(project, sys.argv[1:])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
