"""`steadyrun load`: what runs and streams cost, in shapes that people know (contract §7).

On topologies of its own, of one after the other size, unless an address is named. Processes are
measured only where they run on this machine; a remote address gives latencies and counts.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import Unusable
from deploy.load import compare, report
from deploy.load.client import LoadClient, Order
from deploy.load.machine import Machine
from deploy.load.metrics import DOES
from deploy.load.metrics import SHAPES as NAMES
from deploy.load.report import Report, Size
from deploy.load.shapes import SHAPES
from deploy.load.stage import KINDS, Amount, Figures, Stage
from deploy.load.target import gateways_of, own_topology, running_topology
from deploy.signing import sign
from deploy.topology import Topology

Say = Callable[[str], object]

OWN_ONLY = frozenset({"overhead", "kills"})
_TOKEN_TTL_S = 12 * 3600.0
_WARMING_RUNS = 12


@dataclass(frozen=True)
class Choices:
    """The options of `load`. `replicas`: so many gateways and runners, one topology after another;
    `json_file`, `markdown_file` and `charts` (a folder) are where the report is written."""

    shapes: Sequence[str] = ("overhead", "watchers")
    amount: Amount = field(default_factory=Amount)
    replicas: Sequence[Size] = (Size(1, 1),)
    url: str | None = None
    state: Path = Path(".steadyrun")
    json_file: Path | None = None
    markdown_file: Path | None = None
    charts: Path | None = None
    command: str = "steadyrun load"


def load(choices: Choices, say: Say) -> int:
    """Measure, say the table, write the files. 1 if anything was lost. Raises Misconfigured."""
    _check(choices)
    made = Report.of(choices.command, choices.amount)
    for size in choices.replicas if choices.url is None else [Size(0, 0)]:
        with _target(choices, size) as topology:
            where = choices.url or f"{size}, at {topology.url}"
            say(f"{where}: {', '.join(choices.shapes)}")
            made.add(size, asyncio.run(_measure(choices, topology, say)))
        _write(choices, made)  # what is there so far, should the next size fail
    say(report.text(made))
    return 1 if made.losses() else 0


def compared(before: Path, after: Path, say: Say) -> int:
    """Two reports beside each other. 1 where a figure that is not a time got clearly worse."""
    rows = compare.rows(Report.read(before), Report.read(after))
    say(compare.text(rows, before.name, after.name))
    return 1 if any(row.is_worse for row in rows) else 0


REPLICAS_MAX = 64  # of `up`


def listing() -> str:
    return "\n".join(f"{name:<12}{DOES[name]}" for name in NAMES)


def sizes(said: str) -> list[Size]:
    """`2` is two of each, `2+3` two gateways and three runners. Raises Unusable."""
    try:
        pairs = [part.split("+") for part in said.split(",")]
        found = [Size(int(pair[0]), int(pair[-1])) for pair in pairs if len(pair) <= 2]
    except ValueError:
        found = []
    if len(found) != len(said.split(",")) or any(
        not 1 <= count <= REPLICAS_MAX for size in found for count in size
    ):
        raise Unusable(
            f"--replicas {said}: give sizes such as 1,2,3 or 1+2,3+4, of {REPLICAS_MAX} at most"
        )
    return found


def _check(choices: Choices) -> None:
    if unknown := [name for name in choices.shapes if name not in NAMES]:
        raise Unusable(f"no such shape: {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if choices.amount.kind not in KINDS:
        raise Unusable(f"--kind {choices.amount.kind}: give one of {', '.join(KINDS)}")
    if choices.url is not None and (own := OWN_ONLY.intersection(choices.shapes)):
        raise Unusable(f"{' and '.join(sorted(own))}: on a system of its own only, omit --url")


def _target(choices: Choices, size: Size) -> AbstractContextManager[Topology]:
    if choices.url is None:
        return own_topology(gateways=size.gateways, runners=size.runners)
    return nullcontext(running_topology(choices.url, choices.state))


async def _measure(choices: Choices, topology: Topology, say: Say) -> dict[str, Figures]:
    token = sign(topology.jwt_secret, "load", [], ttl_s=_TOKEN_TTL_S)
    found: dict[str, Figures] = {}
    async with LoadClient(gateways_of(topology), token) as client:
        stage = Stage(client, Machine(topology), choices.amount, lambda: topology, say)
        await client.runs(Order("tokens", 10), _WARMING_RUNS)  # the first run of a process is slow
        for name in choices.shapes:
            began = time.monotonic()
            found[name] = await SHAPES[name](stage)
            say(f"  {name}: {time.monotonic() - began:.0f} s")
            await stage.settle()
    return found


def _write(choices: Choices, made: Report) -> None:
    if choices.json_file:
        choices.json_file.write_text(json.dumps(made.wire(), indent=2) + "\n")
    if choices.charts:
        report.draw(made, choices.charts)
    if choices.markdown_file:
        choices.markdown_file.write_text(report.markdown(made, choices.charts))
