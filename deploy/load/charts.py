"""Charts as SVG, without a library: a bar for each size of the system."""

from collections.abc import Iterator, Mapping
from html import escape

_WIDTH, _BAR, _GAP, _LEFT, _TOP = 560, 22, 10, 96, 44
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2933}.title{font-weight:600}.unit{fill:#5f6c7b}"
    "rect{fill:#2f6f8f}@media(prefers-color-scheme:dark){text{fill:#e4e9ee}.unit{fill:#9aa7b4}"
    "rect{fill:#6fb1d0}}"
)


def bars(title: str, unit: str, values: Mapping[str, float]) -> str:
    """Lengths are in proportion, from zero; each bar carries its value."""
    height = _TOP + len(values) * (_BAR + _GAP) + 6
    most = max((abs(value) for value in values.values()), default=0.0) or 1.0
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"'
            f' aria-label="{escape(title)}" width="{_WIDTH}" height="{height}">',
            f"<style>{_STYLE}</style>",
            f'<text class="title" x="8" y="20">{escape(title)}</text>',
            f'<text class="unit" x="8" y="37">{escape(unit)}</text>',
            *_rows(values, most),
            "</svg>",
            "",
        ]
    )


def _rows(values: Mapping[str, float], most: float) -> Iterator[str]:
    room = _WIDTH - _LEFT - 90
    for number, (label, value) in enumerate(values.items()):
        top = _TOP + number * (_BAR + _GAP)
        length = max(1.0, abs(value) / most * room)
        yield f'<text x="8" y="{top + 16}">{escape(label)}</text>'
        yield f'<rect x="{_LEFT}" y="{top}" width="{length:.1f}" height="{_BAR}" rx="3"/>'
        yield f'<text x="{_LEFT + length + 8:.1f}" y="{top + 16}">{value:,.4g}</text>'
