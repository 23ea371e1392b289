"""A step's result becomes durable only together with all that the step has shown.

LangGraph saves a result beside the stream that announces it. A runner that is killed in between
would leave a step that is never executed again, with the rest of its text, its tools' ends or its
custom events in nobody's log. So the checkpointer asks here before each write: the result waits
until its announcement has been translated (everything the step has shown comes before it in the
stream), and what the archive lacks by then is archived by the statement that saves the result.

For breakpoints behind a node a checkpoint also notes which nodes led to it (`runner/breakpoints`).
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog
from langgraph.errors import GraphBubbleUp

from common.batch import Batch
from runner.outlet import Outlet
from runner.steps import Steps

log = structlog.get_logger(__name__)

PATIENCE_S = 5.0
_CONTROL = frozenset({"__error__", "__error_source_node__", "__interrupt__", "__resume__"})
"""Channels that say what became of a step, not what it made: a step with these alone is executed
again (langgraph.pregel._task_status)."""


class StreamOver(GraphBubbleUp):
    """Nobody takes the stream any more, so that what this step has shown cannot be told: its
    result is not saved, and the step is executed again if the run goes on."""


class Gate:
    """Between the stream of one take-up and its checkpointer, in the loop of both."""

    def __init__(self) -> None:
        self._steps = Steps()
        self._outlet: Outlet | None = None
        self._told: dict[str, asyncio.Event] = {}
        self._waiting: dict[str, set[str]] = {}
        self._nodes: dict[str, set[str]] = {}
        self._over = asyncio.Event()
        self._saves = 0
        self.on_saved: Callable[[], None] = lambda: None

    @property
    def is_saving(self) -> bool:
        """Whether a result or a checkpoint is on its way to Postgres."""
        return self._saves > 0

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Around each write of the checkpointer."""
        self._saves += 1
        try:
            yield
        finally:
            self._saves -= 1
            self.on_saved()

    def open(self, steps: Steps, outlet: Outlet) -> None:
        """A stream begins."""
        self._steps, self._outlet = steps, outlet
        self._told, self._waiting, self._nodes = {}, {}, {}
        self._over = asyncio.Event()

    def close(self) -> None:
        """The stream is not taken any further."""
        self._over.set()
        for told in self._told.values():
            told.set()

    def note(self, chunk: Mapping[str, Any]) -> None:
        """After the events of a chunk were emitted."""
        if chunk["type"] != "tasks":
            return
        data = chunk["data"]
        if "triggers" in data:
            self._nodes.setdefault("|".join(chunk.get("ns") or ()), set()).add(data["name"])
        else:
            self._told_of(data["id"]).set()

    async def before_result(
        self, namespace: str, step_id: str, channels: Iterable[str]
    ) -> list[Batch]:
        """What is to be archived with the result of a step. Raises StreamOver, LeaseLost."""
        if self._outlet is None or _CONTROL.issuperset(channels):
            return []
        if self._steps.announces(step_id):
            waiting = self._waiting.setdefault(namespace, set())
            waiting.add(step_id)
            try:
                await self._until_told(step_id)
            finally:
                waiting.discard(step_id)
        return await self._outlet.complete()

    async def before_checkpoint(self, namespace: str) -> list[Batch]:
        """What is to be archived with a checkpoint, which makes the results before it final."""
        if self._outlet is None:
            return []
        for step_id in list(self._waiting.get(namespace, ())):
            await self._until_told(step_id)
        return await self._outlet.complete()

    def just_ended(self, namespace: str) -> list[str]:
        """The nodes since the namespace's last checkpoint, once for each checkpoint."""
        return sorted(self._nodes.pop(namespace, ()))

    def archived(self, batches: list[Batch]) -> None:
        if self._outlet is not None:
            self._outlet.archived(batches)

    def _told_of(self, step_id: str) -> asyncio.Event:
        return self._told.setdefault(step_id, asyncio.Event())

    async def _until_told(self, step_id: str) -> None:
        while not self._over.is_set() and self._outlet is not None:
            had_room = self._outlet.has_room
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._told_of(step_id).wait()
                break
            except TimeoutError:
                if had_room and self._outlet.has_room:  # else the stream is held up, not silent
                    log.warning("result_untold", step_id=step_id)
                    break
        if self._over.is_set():
            raise StreamOver
