"""The figures as a table for people and as JSON for machines."""

from dataclasses import asdict
from typing import Any

from deploy.load.measures import FanOut, Overhead


def wire(overheads: list[Overhead], fan: FanOut | None) -> dict[str, Any]:
    """Times in milliseconds of CPU unless the name says otherwise."""
    return {
        "overhead": [
            asdict(o) | {"ratio": o.ratio, "ratio_of_all": o.ratio_of_all} for o in overheads
        ],
        "fanOut": None if fan is None else asdict(fan) | {"events_per_cpu_s": fan.events_per_cpu_s},
    }


def table(overheads: list[Overhead], fan: FanOut | None) -> str:
    lines = [
        "CPU of one run in ms; bare: the same graph in a process of its own; ratio: gateway +"
        " runner to that process, and all to all",
        f"{'run':<14}{'gateway':>9}{'runner':>9}{'postgres':>10}{'redis':>8}"
        f"{'bare':>8}{'postgres':>10}{'ratio':>8}{'all':>7}   first event p50 / p99",
        *map(_overhead_row, overheads),
    ]
    return "\n".join(lines + (_fan_rows(fan) if fan else []))


def _overhead_row(row: Overhead) -> str:
    ours = row.ours_ms
    cells = [ours.get("gateway", 0), ours.get("runner", 0), ours.get("postgres", 0)]
    return (
        f"{f'{row.events} {row.kind}':<14}{cells[0]:>9.1f}{cells[1]:>9.1f}{cells[2]:>10.1f}"
        f"{ours.get('redis', 0):>8.1f}{row.bare_ms:>8.1f}{row.bare_postgres_ms:>10.1f}"
        f"{row.ratio:>8.2f}{row.ratio_of_all:>7.2f}"
        f"   {row.first_event_p50_ms:.0f} / {row.first_event_p99_ms:.0f} ms"
    )


def _fan_rows(fan: FanOut) -> list[str]:
    return [
        f"{fan.subscribers} streams on one run: {fan.delivered} of {fan.expected} events delivered,"
        f" {fan.events_per_cpu_s:,.0f} a gateway CPU second",
        f"an idle stream takes {fan.idle_bytes_per_stream / 1024:.1f} KiB of gateway memory",
    ]
