"""Two reports beside each other: what has changed, and whether that is better."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from deploy.load.metrics import Metric
from deploy.load.report import Report, Size

NOISE = 0.2
"""Differences below this share are not told from chance (they are not on a shared machine)."""


@dataclass(frozen=True, slots=True)
class Row:
    shape: str
    metric: Metric
    size: Size
    before: float
    after: float

    @property
    def change(self) -> float:
        """As a share of what was: 0.5 is half as much again."""
        if self.before == self.after:
            return 0.0
        return (self.after - self.before) / abs(self.before) if self.before else math.inf

    @property
    def verdict(self) -> str:
        if abs(self.change) < NOISE:
            return "="
        return "better" if (self.change > 0) == (self.metric.better == "higher") else "worse"

    @property
    def is_worse(self) -> bool:
        """Times of the clock are shown and never held against anybody."""
        return self.verdict == "worse" and not self.metric.noisy


def rows(before: Report, after: Report) -> list[Row]:
    """What both have measured."""
    known = {(shape, name): found for shape, name, _, found in before.values()}
    return [
        Row(shape, metric, size, known[shape, name][size], value)
        for shape, name, metric, found in after.values()
        for size, value in found.items()
        if size in known.get((shape, name), {})
        and not math.isnan(value)
        and not math.isnan(known[shape, name][size])
    ]


def text(rows: Sequence[Row], before: str, after: str) -> str:
    lines = [f"{'':<78}{before[:12]:>13}{after[:12]:>13}"]
    for row in rows:
        title = f"{row.shape} {row.size}  {row.metric.title}, {row.metric.unit}".rstrip(", ")
        figures = f"{row.before:>13,.4g}{row.after:>13,.4g}{row.change:>+9.0%}"
        lines.append(f"{title:<78}{figures}  {row.verdict}")
    return "\n".join(lines)
