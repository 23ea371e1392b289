"""LangGraph's Postgres checkpointer, fenced by (run, epoch).

After a newer epoch exists, an older runner can change nothing (invariant I3). The check and the
write are **one statement**: a check in an earlier statement lets late writes through, and a
transaction that a stopped process holds open would block the claim for ever. `FOR SHARE` makes
the writer wait for a claim that is about to commit, and refuses it afterwards. The status is part
of the fence, so that stragglers after the terminal event are refused as well; hence a runner sets
the status only when the graph's stream has ended.

Of a step that failed the answers of people are not kept: the thread stays as it was before them
(runner/answers says why).

Only the two writes are ours; reading and serialising stay LangGraph's. Every write is idempotent
(`ON CONFLICT`), so it is sent again when the connection broke, as every read is: a graph whose
checkpoint cannot be stored waits at it, while its runner holds the lease (a runner that loses it
cancels the graph). No fault of Postgres reaches a graph as an error.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME
from psycopg import AsyncCursor
from psycopg.errors import CheckViolation
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from common.batch import Batch
from common.db import archive
from common.errors import LeaseLost, Unavailable
from common.facts import STORED_BYTES_MAX
from runner.authoring.context import FactsFull
from runner.breakpoints import JUST_ENDED
from runner.checkpoint_sql import (
    INSERT_WRITES,
    INSERT_WRITES_WITH_FACTS,
    PUT,
    UPSERT_WRITES,
    columns,
    with_events,
)
from runner.facts import Facts
from runner.gate import Gate
from runner.guarding import outside_graph
from runner.plain import split
from runner.session_saver import SessionSaver, translated
from runner.sessions import Sessions

T = TypeVar("T")
Writes = Sequence[tuple[str, Any]]
OnFailure = Callable[[str, BaseException, Sequence[Any]], None]
"""Told of a step that failed: its id, the error, the answers its questions had returned."""

_HANDLED = "__error_source_node__"
"""Beside an error: the graph has a node that deals with it."""

PATIENCE_S = 60.0
"""Longer than a lease: a runner that holds it through such a time can reach Postgres otherwise."""

PAUSE_S, PAUSE_MAX_S = 0.05, 0.4

BIG_STATE_BYTES = 256 * 1024
"""Above this, serialising would hold the event loop too long and goes to a thread."""

_ENDINGS = frozenset({ERROR, INTERRUPT})
"""Of a step that has no result: what it has remembered does not count."""


class FencedSaver(SessionSaver):
    """The checkpointer of one (run, epoch); make a new one for every take-up of a run.

    `aput` and `aput_writes` raise `LeaseLost` and write nothing when the run is not `running`
    under this epoch, and `Unavailable` when Postgres stays away for `patience_s` seconds.
    """

    def __init__(
        self,
        sessions: Sessions,
        run_id: str,
        epoch: int,
        *,
        gate: Gate | None = None,
        facts: Facts | None = None,
        on_failure: OnFailure | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        super().__init__(sessions)
        self._gate = gate or Gate()
        self._facts = facts
        self._on_failure = on_failure
        self._run_id = run_id
        self._epoch = epoch
        self._patience_s = patience_s
        self._last_bytes = 0

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        with self._gate.saving():
            return await self._put(config, checkpoint, metadata, new_versions)

    async def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        conf = config["configurable"]
        inline, blobs = split(checkpoint["channel_values"])
        versions = {name: v for name, v in new_versions.items() if name in blobs}
        rows = await self._dump(
            self._dump_blobs, conf["thread_id"], conf["checkpoint_ns"], blobs, versions
        )
        batches = await self._gate.before_checkpoint(conf["checkpoint_ns"])
        if nodes := self._gate.just_ended(conf["checkpoint_ns"]):
            metadata = cast(CheckpointMetadata, {**metadata, JUST_ENDED: nodes})
        await self._fenced(
            PUT,
            batches,
            {
                "thread": conf["thread_id"],
                "ns": conf["checkpoint_ns"],
                "id": checkpoint["id"],
                "parent": conf.get("checkpoint_id"),
                "checkpoint": Jsonb({**checkpoint, "channel_values": inline}),
                "metadata": Jsonb(get_serializable_checkpoint_metadata(config, metadata)),
                **columns(rows, ("channel", "version", "type", "blob")),
            },
        )
        return _address(conf["thread_id"], conf["checkpoint_ns"], checkpoint["id"])

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        with self._gate.saving():
            await self._put_writes(config, writes, task_id, task_path)

    async def _put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> None:
        conf = config["configurable"]
        where = (conf["thread_id"], conf["checkpoint_ns"], conf["checkpoint_id"])
        writes = self._without_failed_answers(task_id, writes)
        rows = await self._dump(self._dump_writes, *where, task_id, task_path, writes)
        channels = [channel for channel, _ in writes]
        batches = await self._gate.before_result(conf["checkpoint_ns"], task_id, channels)
        values = {
            **dict(zip(("thread", "ns", "id"), where, strict=True)),
            "task": task_id,
            "path": task_path,
            **columns(rows, ("idx", "channel", "type", "blob")),
        }
        if all(channel in WRITES_IDX_MAP for channel in channels):
            if self._facts is not None and not _ENDINGS.isdisjoint(channels):
                self._facts.drop(task_id)
            await self._fenced(UPSERT_WRITES, batches, values)
        elif self._facts is None or (change := self._facts.of_step(task_id)) is None:
            await self._fenced(INSERT_WRITES, batches, values)
        else:
            given = {"facts": Jsonb(change.facts), "forget": change.forget}
            with _bounded():
                await self._fenced(INSERT_WRITES_WITH_FACTS, batches, {**values, **given})
            self._facts.drop(task_id)

    def _without_failed_answers(self, task_id: str, writes: Writes) -> Writes:
        """A step that failed shall not keep the answers it failed with (runner/answers)."""
        error = next((value for channel, value in writes if channel == ERROR), None)
        if error is None or any(channel == _HANDLED for channel, _ in writes):
            return writes
        given = [answers[-1] for channel, answers in writes if channel == RESUME]
        if self._on_failure is not None and not isinstance(error, asyncio.CancelledError):
            self._on_failure(task_id, error, given)
        return [write for write in writes if write[0] != RESUME]

    async def _dump(self, dump: Any, *args: Any) -> list[tuple[Any, ...]]:
        """Serialise inline (a thread costs more than it gives), except after a big state."""
        big = self._last_bytes > BIG_STATE_BYTES
        with outside_graph():
            rows: list[tuple[Any, ...]] = (
                await asyncio.to_thread(dump, *args) if big else dump(*args)
            )
        self._last_bytes = sum(len(row[-1] or b"") for row in rows)
        return rows

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._patiently(lambda: super(FencedSaver, self).aget_tuple(config))

    async def aget_delta_channel_history(self, *args: Any, **options: Any) -> Any:
        read = super().aget_delta_channel_history
        return await self._patiently(lambda: read(*args, **options))

    async def _fenced(
        self, statement: str, batches: list[Batch], values: Mapping[str, Any]
    ) -> None:
        """`batches` are archived by the same statement."""
        parameters = {"run": self._run_id, "epoch": self._epoch, **values}
        if batches:
            statement = with_events(statement)
            parameters |= archive.columns(batches)
        if not await self._patiently(lambda: self._execute(statement, parameters)):
            raise LeaseLost(self._run_id, self._epoch)
        self._gate.archived(batches)

    async def _execute(self, statement: str, parameters: Mapping[str, Any]) -> bool:
        async with self._cursor() as cursor:
            await cursor.execute(statement, parameters, binary=True)
            return await cursor.fetchone() is not None

    async def _patiently(self, act: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Again and again while Postgres is away; it may be done twice."""
        deadline, pause_s = time.monotonic() + self._patience_s, PAUSE_S
        while True:
            try:
                with outside_graph():  # it may load in a thread
                    return await _apart(act())
            except Unavailable:
                if time.monotonic() + pause_s > deadline:
                    raise
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    @asynccontextmanager
    async def _cursor(self, *, pipeline: bool = False) -> AsyncIterator[AsyncCursor[DictRow]]:
        async with translated(), super()._cursor(pipeline=pipeline) as cursor:
            yield cursor


async def _apart(act: Coroutine[Any, Any, T]) -> T:
    """`act` in a task that a cancelled caller does not wait for: the driver's own way out of a
    statement takes many seconds where the server does not answer."""
    task = asyncio.create_task(act)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        task.cancel()
        raise


@contextmanager
def _bounded() -> Iterator[None]:
    """Too many facts are the graph's fault, and told so; its step is not saved."""
    try:
        yield
    except CheckViolation as error:
        raise FactsFull(f"facts may take {STORED_BYTES_MAX} bytes") from error


def _address(thread_id: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": namespace,
            "checkpoint_id": checkpoint_id,
        }
    }
