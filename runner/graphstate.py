"""The graph of a run on its thread: what is durable there, and what it is given next."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import structlog
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command

from common.db.runs import ClaimedRun
from common.errors import LeaseLost, Unavailable
from common.page import Page
from runner import durable
from runner.breakpoints import Breakpoints
from runner.checkpointer import FencedSaver
from runner.durable import Durable
from runner.inputs import graph_input, leave
from runner.kit import Kit
from runner.registry import Graph
from runner.steps import Steps, run_config
from runner.thread import read_thread

log = structlog.get_logger(__name__)

Discard = Callable[[Page], list[str]]
"""Which steps of a page are executed again."""

VALUES_WITHIN_S: Final = 5.0


class GraphState:
    """Of one take-up. `graph` is None until it was built, and where it cannot be."""

    def __init__(self, kit: Kit, run: ClaimedRun) -> None:
        self.graph: Graph | None = None
        self._kit, self._run = kit, run
        self._as_found: Durable | None = None

    @property
    def is_built(self) -> bool:
        """For this process: then it costs nothing to have it."""
        return self._kit.registry.is_built(self._run.graph)

    async def build(self, saver: FencedSaver) -> Discard:
        """A graph that cannot be built, or whose state cannot be read, is None: its run fails once
        its log is open, so that this is told. Raises LeaseLost or Unavailable."""
        try:
            self.graph = await self._kit.registry.graph(
                self._run.graph, saver, self.config(Steps())
            )
            if self._run.epoch == 1:
                return nothing
            self._as_found = state = await self._read()
            return state.discard
        except (LeaseLost, Unavailable):
            raise
        except (Exception, SystemExit, KeyboardInterrupt):  # a user's factory, an unreadable state
            log.warning("graph_failed", exc_info=True)
            self.graph = None
            return nothing

    async def read(self) -> Durable:
        """As it is now; nobody has changed it since it was built, before anything is executed."""
        found, self._as_found = self._as_found, None
        return found or await self._read()

    async def _read(self) -> Durable:
        assert self.graph is not None
        snapshot = await read_thread(self.graph, self.config(Steps()))
        stops = Breakpoints.of_run(self.graph, self._run.input)
        return durable.read(snapshot, self._run.id, stops)

    async def values(self) -> Any:
        """None as well when the state cannot be read (in time): the outcome must be stored."""
        if self.graph is None:
            return None
        try:
            async with asyncio.timeout(VALUES_WITHIN_S):
                return (await self.read()).values
        except (LeaseLost, Unavailable):
            raise
        except Exception as error:  # it takes too long, or what a graph wrote cannot be read
            log.warning("state_not_read", error=type(error).__name__)
            return None

    async def input(self, state: Durable, answers: dict[str, Any]) -> Any:
        """Answers, or the run's own input once, or None to go on."""
        if answers:
            return Command(resume=answers)
        if state.input_applied:
            return None
        assert self.graph is not None
        left = await leave(self.graph, self.config(Steps())) if state.left else []
        spec = self._kit.registry.spec(self._run.graph)
        return await graph_input(spec, self.graph, self._run, state.values, left)

    def config(self, steps: Steps, *others: BaseCallbackHandler) -> RunnableConfig:
        run = self._run
        return run_config(thread_id=run.conversation_id, run_id=run.id, steps=steps, others=others)


def nothing(_: Page) -> list[str]:
    return []
