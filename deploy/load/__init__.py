"""`steadyrun load`: what a run and a stream cost (contract §7).

On a topology of its own unless an address is named. Processes are measured only where they run on
this machine; a remote address gives latencies and counts.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from common.errors import Misconfigured
from deploy.load import report
from deploy.load.client import LoadClient, Order
from deploy.load.machine import Machine
from deploy.load.measures import Bare, FanOut, Overhead, fan_out, overhead
from deploy.load.target import gateways_of, own_topology, running_topology
from deploy.signing import sign
from deploy.topology import Topology

_RUN_EVENTS = (10, 100)


@dataclass(frozen=True)
class Choices:
    """The options of `load`. `events` and `rate` are those of the run that many streams follow."""

    url: str | None = None
    runs: int = 20
    subscribers: int = 200
    events: int = 200
    rate: float = 50.0
    kind: str = "tokens"
    json_file: Path | None = None
    state: Path = Path(".steadyrun")
    gateways: int = 1
    runners: int = 1


def load(choices: Choices, say: Callable[[str], object]) -> int:
    """Measure, say the table, write the JSON. 0 unless events were lost. Raises Misconfigured."""
    with _target(choices) as topology:
        say(f"measuring {topology.url}: this takes some minutes")
        overheads, fan = asyncio.run(_measure(choices, topology))
    say(report.table(overheads, fan))
    if choices.json_file:
        choices.json_file.write_text(json.dumps(report.wire(overheads, fan), indent=2) + "\n")
    return 1 if fan and fan.delivered != fan.expected else 0


def _target(choices: Choices) -> AbstractContextManager[Topology]:
    if choices.url is None:
        return own_topology(gateways=choices.gateways, runners=choices.runners)
    return nullcontext(running_topology(choices.url, choices.state))


async def _measure(choices: Choices, topology: Topology) -> tuple[list[Overhead], FanOut | None]:
    machine = Machine(topology)
    token = sign(topology.jwt_secret, "load", [], ttl_s=6 * 3600)
    async with LoadClient(gateways_of(topology), token) as client:
        overheads = await _overheads(choices, topology, client, machine)
        if not choices.subscribers:
            return overheads, None
        order = Order("custom", choices.events, choices.rate, hold=True)
        return overheads, await fan_out(client, machine, order, choices.subscribers)


async def _overheads(
    choices: Choices, topology: Topology, client: LoadClient, machine: Machine
) -> list[Overhead]:
    if not choices.runs:
        return []
    if not topology.database_url:
        raise Misconfigured("a run is compared on this machine only: set --runs 0, or omit --url")
    with Bare.opened(topology.database_url) as bare:
        return [
            await overhead(client, machine, bare, Order(choices.kind, events), choices.runs)
            for events in _RUN_EVENTS
        ]
