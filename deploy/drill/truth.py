"""What is really so at the end: what Postgres says of every run, and the effects that happened."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.batch import Batch
from common.db import archive, audit, interrupts, runs
from common.db.audit import EffectBegun, Saved
from common.db.engine import Connection, Database
from common.db.interrupts import Interrupt
from common.db.runs import Run
from common.errors import Unavailable
from deploy.drill.record import Record
from deploy.topology import Topology
from runner.graphs.drill.effect import FOLDER_VARIABLE

EFFECTS_VARIABLE = FOLDER_VARIABLE
"""Names the folder of the performed effects to the runners: one file a key, one line each time."""

_PATIENCE_S = 30.0
_BATCHES = 500


@dataclass(frozen=True, slots=True)
class Question:
    """An interrupt's row. `decision` is what its winner sent."""

    id: str
    status: str
    decision: Any = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A message that a run has left."""

    id: str
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class RunTruth:
    """One run, as of a moment when nothing happens any more. `batches`: the archive of its log."""

    id: str
    status: str
    epoch: int
    last_sequence: int
    message_id: str | None = None
    error_code: str | None = None
    cancel_reason: str | None = None
    questions: Sequence[Question] = ()
    messages: Sequence[Stored] = ()
    batches: Sequence[Batch] = ()
    effects: Sequence[EffectBegun] = ()
    checkpoints: Sequence[Saved] = ()


@dataclass(frozen=True, slots=True)
class Truth:
    """`performed`: by key, a line for each time that an effect was really done."""

    runs: dict[str, RunTruth] = field(default_factory=dict)
    performed: dict[str, list[str]] = field(default_factory=dict)


async def read_truth(topology: Topology, record: Record, effects: Path) -> Truth:
    """Everything about the record's runs. Raises Unavailable when Postgres does not answer."""
    db = Database(topology.database_url, application_name="steadyrun-drill", pool_size=1)
    try:
        found = await _patiently(db, list(record.ordered))
    finally:
        await db.aclose()
    tags = {ordered.order.key for ordered in record.ordered.values()}
    return Truth(found, {key: _lines(effects / key) for key in sorted(tags)})


async def _patiently(db: Database, run_ids: list[str]) -> dict[str, RunTruth]:
    """A server that has just been restarted may need a while."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            async with db.connect() as connection:
                return await _all(connection, run_ids)
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)


async def _all(connection: Connection, run_ids: list[str]) -> dict[str, RunTruth]:
    """Runs that Postgres does not know are missing in it."""
    rows = [await runs.find(connection, run_id) for run_id in run_ids]
    return {run.id: await _one(connection, run) for run in rows if run is not None}


async def _one(connection: Connection, run: Run) -> RunTruth:
    asked = await interrupts.of_run(connection, run.id)
    told = await audit.messages_of(connection, run.id)
    return RunTruth(
        id=run.id,
        status=run.status,
        epoch=run.epoch,
        last_sequence=run.last_sequence,
        message_id=run.message_id,
        error_code=None if run.error is None else run.error.get("code"),
        cancel_reason=run.cancel_reason,
        questions=[_question(row) for row in asked],
        messages=[Stored(message.id, message.role, message.content) for message in told],
        batches=await _archive(connection, run.id),
        effects=await audit.effects_of(connection, run.id),
        checkpoints=await audit.checkpoints_of(connection, run.conversation_id),
    )


def _question(row: Interrupt) -> Question:
    return Question(row.id, row.status, row.decision)


async def _archive(connection: Connection, run_id: str) -> list[Batch]:
    """All rows, as they are: whether they are a history is for the checker to say."""
    found: list[Batch] = []
    while page := await archive.read(connection, run_id, found[-1].last if found else 0, _BATCHES):
        found += page
    return found


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []
