"""What the steps of one take-up remember, until it is stored with their results (for authors:
`runner/authoring/context`).

Facts wait here under the step that remembered them. The checkpointer takes them when it stores the
step's result, in the same statement (`FencedSaver.aput_writes`); what fails, is interrupted or is
tried again stores no result, and its facts are never taken. Inside a step the tools count as well:
`ToolNode` turns a tool's error into a result of the step. So a callback notes how each tool ended,
and facts of a tool are taken only when it, and every tool around it in the same step, ended well.

Steps of a subgraph without a checkpointer store no results: their facts go with the step around
them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import ToolMessage
from langgraph.config import get_config

from common.db import conversations
from common.db.engine import Database
from common.db.runs import ClaimedRun
from common.errors import Unavailable
from common.facts import STORED_BYTES_MAX, Rules, visible
from common.masking import Masker
from runner.authoring import context as authoring
from runner.authoring.layers import Known
from runner.patience import patiently
from runner.steps import Steps, step_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Change:
    facts: dict[str, Any]
    forget: list[str]


@dataclass(frozen=True, slots=True)
class _Remembered:
    """`start`: which execution of the step it was."""

    namespace: str
    start: int
    tool: UUID | None
    facts: dict[str, Any]
    forget: list[str]

    @property
    def steps(self) -> list[str]:
        return [part.rpartition(":")[2] for part in self.namespace.split("|")]


@dataclass(slots=True)
class _Tool:
    namespace: str
    around: UUID | None
    ended_well: bool = False


class Tools(BaseCallbackHandler):
    """Which tool a call stands in, and how the tools ended."""

    run_inline = True  # before the step that they belong to goes on

    def __init__(self) -> None:
        self._tools: dict[UUID, _Tool] = {}
        self._inside: dict[UUID, UUID] = {}

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        namespace = namespace_of(metadata)
        self._tools[run_id] = _Tool(namespace, self.around(parent_run_id, namespace))

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        if parent_run_id is not None and (tool := self._tool_of(parent_run_id)) is not None:
            self._inside[run_id] = tool

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        failed = isinstance(output, ToolMessage) and output.status == "error"
        if (tool := self._tools.get(run_id)) is not None:
            tool.ended_well = not failed

    def around(self, run_id: UUID | None, namespace: str) -> UUID | None:
        """The tool in which this run is, in the same step."""
        tool = None if run_id is None else self._tool_of(run_id)
        return tool if tool and self._tools[tool].namespace == namespace else None

    def ended_well(self, tool: UUID | None) -> bool:
        while tool is not None:
            if not self._tools[tool].ended_well:
                return False
            tool = self._tools[tool].around
        return True

    def _tool_of(self, run_id: UUID) -> UUID | None:
        return run_id if run_id in self._tools else self._inside.get(run_id)


class Stream:
    """The memory of one stream of the graph: what authors' functions find in their context."""

    def __init__(self, facts: Facts, steps: Steps) -> None:
        self.tools = Tools()
        self.masker = facts.masker
        self._facts = facts
        self._steps = steps
        self._remembered: list[_Remembered] = []
        self._lock = threading.Lock()  # tools may be in threads

    def remember(self, facts: Mapping[str, Any], forget: Sequence[str]) -> None:
        config = get_config()
        namespace, step = namespace_of(config.get("metadata")), step_of(config.get("metadata"))
        if step is None:
            raise RuntimeError("remember(…) is for use inside a node or a tool")
        caller = getattr(config.get("callbacks"), "parent_run_id", None)
        tool = self.tools.around(caller, namespace)
        shown = self.masker.value(dict(facts), STORED_BYTES_MAX)
        made = _Remembered(namespace, self._steps.starts[step], tool, shown, list(forget))
        with self._lock:
            self._remembered.append(made)

    async def recall(self) -> Known:
        return await self._facts.recall()

    async def keep(self, before: Known, summary: str, covers: str | None) -> None:
        await self._facts.keep(before, summary, covers)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._facts.wait(work)

    def of_step(self, step_id: str) -> Change | None:
        """All that counts of what the step has remembered, the last word of it."""
        facts: dict[str, Any] = {}
        forget: list[str] = []
        for made in self._of(step_id):
            facts = {k: v for k, v in facts.items() if k not in made.forget} | made.facts
            forget = [k for k in forget if k not in made.facts] + made.forget
        return Change(facts, forget) if facts or forget else None

    def drop(self, step_id: str) -> None:
        """It is written, or the step came to nothing."""
        with self._lock:
            self._remembered = [made for made in self._remembered if step_id not in made.steps]

    def _of(self, step_id: str) -> list[_Remembered]:
        starts = self._steps.starts
        return [
            made
            for made in self._remembered
            if step_id in made.steps
            and made.start == starts[made.steps[-1]]
            and self.tools.ended_well(made.tool)
        ]


class Facts:
    """Of one take-up of a run."""

    def __init__(
        self,
        db: Database,
        run: ClaimedRun,
        rules: Rules,
        masker: Masker,
        *,
        stopped: Callable[[], bool],
    ) -> None:
        self.masker = masker
        self._db = db
        self._run = run
        self._rules = rules
        self._stopped = stopped
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._stream: Stream | None = None

    def open(self, steps: Steps) -> Stream:
        """A stream begins, in this task and what it makes."""
        self._stream = stream = Stream(self, steps)
        authoring.current.set(stream)
        return stream

    def of_step(self, step_id: str) -> Change | None:
        return None if self._stream is None else self._stream.of_step(step_id)

    def drop(self, step_id: str) -> None:
        if self._stream is not None:
            self._stream.drop(step_id)

    async def recall(self) -> Known:
        run = self._run
        found = await patiently(
            self._db,
            lambda conn: conversations.find(conn, run.conversation_id, run.user_id),
            self._pause,
        )
        if found is None:
            return Known()
        seen = visible(found.facts, self._rules, run.principal.get("permissions") or ())
        return Known(seen, found.facts_version, found.summary, found.summary_covers)

    async def keep(self, before: Known, summary: str, covers: str | None) -> None:
        """One that another branch has stored meanwhile stands; of a run that is lost, too."""
        run = self._run
        await patiently(
            self._db,
            lambda conn: conversations.set_summary(
                conn, run.id, run.epoch, summary, covers, before.covers
            ),
            self._pause,
        )

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        if threading.get_ident() == self._thread:
            work.close()
            raise RuntimeError("in async code: await assemble(…) instead of assemble_sync(…)")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _pause(self, seconds: float) -> None:
        if self._stopped():
            raise Unavailable("Postgres")
        await asyncio.sleep(seconds)


def namespace_of(metadata: Mapping[str, Any] | None) -> str:
    return str((metadata or {}).get("langgraph_checkpoint_ns") or "")
