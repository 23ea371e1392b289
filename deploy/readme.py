"""Keeps the tables that come from the code: `python -m deploy.readme` rewrites README.md and the
page of metrics.

Tests hold both against what this makes, so a setting or metric cannot be added without its line.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from common.environment import variable
from common.metrics import Described
from common.settings import GatewaySettings, RunnerSettings, Settings
from gateway.metrics import Metrics as GatewayMetrics
from runner.metrics import Metrics as RunnerMetrics

README = Path(__file__).parents[1] / "README.md"
METRICS_PAGE = Path(__file__).parent / "docs" / "metrics.md"
BEGIN, END = "<!-- settings: made by `python -m deploy.readme` -->", "<!-- /settings -->"

METRICS_BEGIN, METRICS_END = (
    "<!-- metrics: made by `python -m deploy.readme` -->",
    "<!-- /metrics -->",
)


def rewritten(text: str) -> str:
    """The README's text with its settings table as the code has it now."""
    return _between(BEGIN, END, text, settings_tables())


def rewritten_metrics(text: str) -> str:
    """The same for the page of metrics."""
    return _between(METRICS_BEGIN, METRICS_END, text, metrics_tables())


def _between(begin: str, end: str, text: str, made: str) -> str:
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{made}\n{end}{after}"


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


def _default(field: FieldInfo) -> str:
    default: Any = field.default
    if default is PydanticUndefined:
        return "required"
    if default is None or default == "" or default == []:
        return "unset"
    return f"`{default}`"


def all_metrics() -> list[Described]:
    """Of gateways and runners, in the order of their making."""
    return [*GatewayMetrics().described, *RunnerMetrics().described]


def metrics_tables() -> str:
    kinds = [("Gateways", GatewayMetrics()), ("Runners", RunnerMetrics())]
    return "\n\n".join(_metrics_table(title, made.described) for title, made in kinds)


def _metrics_table(title: str, described: list[Described]) -> str:
    head = f"## {title}\n\n| metric | kind | labels | what it is |\n| --- | --- | --- | --- |\n"
    rows = (
        f"| `{m.name}` | {m.kind} | {', '.join(m.labels)} | {m.text} |"
        for m in sorted(described, key=lambda m: m.name)
    )
    return head + "\n".join(rows)


def main() -> int:
    for page, renewed in ((README, rewritten), (METRICS_PAGE, rewritten_metrics)):
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
