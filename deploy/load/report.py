"""A report: the figures of each size of the system, as text, Markdown, JSON and charts."""

import json
import math
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from common.errors import Misconfigured
from deploy.load.charts import bars
from deploy.load.metrics import DOES, METRICS, Metric
from deploy.load.stage import Amount, Figures

Json = dict[str, Any]

_VERSION = 1
_WHOLE = {"delivered_share": 100.0, "accepted": 1.0, "lost": 0.0, "doubled": 0.0, "cut": 0.0,
          "unfinished": 0.0}  # fmt: skip
"""What these figures are when nothing was lost or doubled."""


class Size(NamedTuple):
    """How many of each; 0 and 0: not ours to say."""

    gateways: int
    runners: int

    def __str__(self) -> str:
        return f"{self.gateways}+{self.runners}" if self.gateways else "as it runs"


@dataclass(slots=True)
class Report:
    """`command` is what made it; a figure that could not be measured is nan (null in JSON)."""

    command: str
    amount: Amount
    machine: Mapping[str, Any]
    sizes: dict[Size, dict[str, Figures]] = field(default_factory=dict)

    @classmethod
    def of(cls, command: str, amount: Amount) -> Self:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        return cls(
            command, amount, machine | {"system": f"{platform.system()} {os.uname().machine}"}
        )

    def add(self, size: Size, figures: dict[str, Figures]) -> None:
        self.sizes[size] = figures

    def values(self) -> Iterator[tuple[str, str, Metric, dict[Size, float]]]:
        """Shape, name and meaning of each figure, with its value for each size."""
        for shape, metrics in METRICS.items():
            for name, metric in metrics.items():
                found = {
                    size: figures[shape][name]
                    for size, figures in self.sizes.items()
                    if shape in figures and name in figures[shape]
                }
                if any(not math.isnan(value) for value in found.values()):
                    yield shape, name, metric, found

    def losses(self) -> list[str]:
        """Figures that say that something was lost or doubled."""
        return [
            f"{shape}.{name} at {size}: {value:g}"
            for shape, name, _, found in self.values()
            for size, value in found.items()
            if name in _WHOLE and not math.isclose(value, _WHOLE[name])
        ]

    def wire(self) -> Json:
        return {
            "version": _VERSION,
            "command": self.command,
            "amount": asdict(self.amount),
            "machine": dict(self.machine),
            "sizes": [
                {"gateways": size.gateways, "runners": size.runners, "shapes": _plain(figures)}
                for size, figures in self.sizes.items()
            ],
        }

    @classmethod
    def read(cls, file: Path) -> Self:
        """Raises Misconfigured for what is no report."""
        try:
            raw = json.loads(file.read_text())
            made = cls(raw["command"], Amount(**raw["amount"]), raw["machine"])
            for one in raw["sizes"]:
                made.add(Size(one["gateways"], one["runners"]), _numbers(one["shapes"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Misconfigured(f"{file} is no report of `steadyrun load`: {error}") from error
        return made


def text(made: Report) -> str:
    """For a terminal: a line a figure, a column a size."""
    sizes = list(made.sizes)
    lines = ["gateways+runners".ljust(66) + "".join(f"{size!s:>12}" for size in sizes)]
    last = ""
    for shape, _, metric, found in made.values():
        if shape != last:
            lines += ["", f"{shape}: {DOES[shape]}"]
            last = shape
        title = f"  {metric.title}{f', {metric.unit}' if metric.unit else ''}"
        lines.append(title.ljust(66) + "".join(f"{_shown(found.get(s)):>12}" for s in sizes))
    return "\n".join([*lines, *(f"LOST  {loss}" for loss in made.losses())])


def markdown(made: Report, charts: Path | None = None) -> str:
    sizes = list(made.sizes)
    machine = made.machine
    lines = [
        "# Load report",
        "",
        f"Made by `{made.command}` on {machine['cores']} cores ({machine['system']}, Python"
        f" {machine['python']}), with the load beside the system on the same machine. CPU is that"
        " of the system's processes alone; times of the clock move with whatever else happens.",
    ]
    last = ""
    for shape, _, metric, found in made.values():
        if shape != last:
            lines += ["", f"## {shape}: {DOES[shape]}", ""]
            lines += _head([str(size) for size in sizes])
            last = shape
        cells = " | ".join(_shown(found.get(size)) for size in sizes)
        lines.append(f"| {metric.title} | {metric.unit} | {cells} |")
    if charts is not None:
        lines += [
            "",
            "## Charts",
            "",
            *(f"![{f.stem}]({charts.name}/{f.name})" for f in _drawn(charts)),
        ]
    return "\n".join(lines) + "\n"


def draw(made: Report, folder: Path) -> None:
    """An SVG for each figure that was measured, a bar for each size."""
    folder.mkdir(parents=True, exist_ok=True)
    for shape, name, metric, found in made.values():
        values = {str(size): value for size, value in found.items() if not math.isnan(value)}
        title = f"{shape}: {metric.title}"
        (folder / f"{shape}-{name}.svg").write_text(bars(title, metric.unit, values))


def _drawn(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.svg"))


def _head(sizes: list[str]) -> list[str]:
    return [f"| figure | unit | {' | '.join(sizes)} |", f"| --- | --- |{' ---: |' * len(sizes)}"]


def _shown(value: float | None) -> str:
    """Three digits that mean something; a dash for what was not measured."""
    if value is None or math.isnan(value):
        return "-"
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{2 - math.floor(math.log10(abs(value)))}f}" if abs(value) >= 0.01 else "0.00"


def _plain(figures: Mapping[str, Figures]) -> dict[str, dict[str, float | None]]:
    return {
        shape: {name: None if math.isnan(value) else round(value, 4) for name, value in one.items()}
        for shape, one in figures.items()
    }


def _numbers(shapes: Mapping[str, Mapping[str, float | None]]) -> dict[str, Figures]:
    return {
        shape: {n: math.nan if value is None else float(value) for n, value in one.items()}
        for shape, one in shapes.items()
    }
