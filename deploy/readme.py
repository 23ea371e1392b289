"""Keeps the tables of README.md that come from the code: `python -m deploy.readme` rewrites them.

A test holds the README against what this makes, so a setting cannot be added without its line.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from common.settings import GatewaySettings, RunnerSettings, Settings

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- settings: made by `python -m deploy.readme` -->", "<!-- /settings -->"


def rewritten(text: str) -> str:
    """The README's text with its settings table as the code has it now."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{settings_tables()}\n{END}{after}"


def settings_tables() -> str:
    groups = [
        ("Gateways and runners", Settings, set[str]()),
        ("Gateways", GatewaySettings, set(Settings.model_fields)),
        ("Runners", RunnerSettings, set(Settings.model_fields)),
    ]
    return "\n\n".join(_table(title, kind, inherited) for title, kind, inherited in groups)


def _table(title: str, kind: type[Settings], inherited: set[str]) -> str:
    head = f"**{title}**\n\n| variable | default | what it does |\n| --- | --- | --- |\n"
    return head + "\n".join(_rows(kind, inherited))


def _rows(kind: type[Settings], inherited: set[str]) -> Iterator[str]:
    for name, field in kind.model_fields.items():
        if name not in inherited:
            yield f"| `{variable(name)}` | {_default(field)} | {field.description} |"


def variable(name: str) -> str:
    plain = name.upper()
    return plain if plain in ("DATABASE_URL", "REDIS_URL") else f"STEADYRUN_{plain}"


def _default(field: FieldInfo) -> str:
    default: Any = field.default
    if default is PydanticUndefined:
        return "required"
    if default is None or default == "" or default == []:
        return "unset"
    return f"`{default}`"


def main() -> int:
    README.write_text(rewritten(README.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
