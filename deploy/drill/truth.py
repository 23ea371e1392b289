"""What is really so at the end: what Postgres says of every run, and the effects that happened."""

from dataclasses import dataclass, field
from pathlib import Path

from deploy.drill.record import Record
from deploy.topology import Topology

EFFECTS_VARIABLE = "STEADYRUN_DRILL_EFFECTS"
"""Names the folder of the performed effects to the runners: a file a key, a line each time."""


@dataclass(slots=True)
class Truth:
    """As of a moment when nothing happens any more."""

    performed: dict[str, list[str]] = field(default_factory=dict)
    """By key: a line for each time it was really done."""


async def read_truth(topology: Topology, record: Record, effects: Path) -> Truth:
    """Everything about the record's runs. Raises Unavailable when Postgres does not answer."""
    raise NotImplementedError
