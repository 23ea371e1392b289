"""Which step, and which attempt of it, a chunk of a graph's stream belongs to.

The chunks of LangGraph's stream do not say it: tools and custom chunks carry the namespace of
their *graph* only, and no chunk of any mode shows a retry. Callbacks do, but they run ahead of the
stream's queue. So one inline callback counts the starts of each step and stamps what it can reach
before LangGraph's own stream handlers run:

* a model call's metadata, the same dict that arrives in each of its chunks;
* tool calls: the k-th `tool-started` of a call id is the k-th entry under that id;
* what the graph writes with a stream writer is wrapped in `Stepped`.

A step's id is the text after the last colon of its checkpoint namespace, the same after a crash.
Two private keys of LangGraph are used, `__pregel_runtime` and `__pregel_strict_resume`; tests pin
both.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config
from langgraph.constants import TAG_HIDDEN, TAG_NOSTREAM
from langgraph.runtime import Runtime
from langgraph.types import StateSnapshot

START_KEY = "steadyrun_start"


def step_of(metadata: Mapping[str, Any] | None) -> str | None:
    """The step that a callback or a chunk belongs to, from its metadata."""
    namespace = (metadata or {}).get("langgraph_checkpoint_ns")
    return _step_id(namespace) if namespace else None


def unfinished(snapshot: StateSnapshot) -> Iterator[str]:
    """The steps without a saved result, nested ones too: they will be executed again.

    Of a snapshot read with `subgraphs=True`; all of them go into `run_resumed.discard`.
    `result == {}` wrote nothing and is finished.
    """
    for task in snapshot.tasks:
        if task.result is None:
            yield task.id
            if isinstance(task.state, StateSnapshot):
                yield from unfinished(task.state)


def finished(snapshot: StateSnapshot) -> Iterator[str]:
    """The steps with a saved result: LangGraph announces them again and does not execute them."""
    for task in snapshot.tasks:
        if task.result is not None:
            yield task.id
        elif isinstance(task.state, StateSnapshot):
            yield from finished(task.state)


def _step_id(namespace: str) -> str:
    return namespace.rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class Stepped:
    """A custom chunk with the step that wrote it and the attempt it was written in."""

    step_id: str
    start: int
    value: Any


class Steps(BaseCallbackHandler):
    """Counts starts. One for each take-up of a run, first among the callbacks."""

    run_inline = True  # in the order of the events, on the thread that raises them

    def __init__(self) -> None:
        self.starts: Counter[str] = Counter()
        """How often a step has begun."""
        self.calls: dict[str, list[tuple[str, int]]] = {}
        """For each tool call: step and start of every time it began."""
        self.hidden: set[str] = set()
        """Tool calls that the graph's author keeps out of the stream."""
        self._runs: dict[UUID | None, str] = {}
        self._unannounced: set[str] = set()

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A branch or another part of the node may have its name: it runs inside the node's run."""
        step = step_of(metadata)
        if not metadata or not step or kwargs.get("name") != metadata.get("langgraph_node"):
            return
        if self._runs.get(parent_run_id) != step:
            self.starts[step] += 1
        if TAG_HIDDEN in (tags or ()):
            self._unannounced.add(step)
        self._runs[run_id] = step

    def announces(self, step_id: str) -> bool:
        """Whether the stream tells of this step's end: it is executed, and LangGraph shows it."""
        return self.starts[step_id] > 0 and step_id not in self._unannounced

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[Any]],
        *,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        step = step_of(metadata)
        if metadata and step:
            metadata[START_KEY] = self.starts[step]

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        call, step = kwargs.get("tool_call_id") or str(run_id), step_of(metadata)
        if TAG_NOSTREAM in (tags or ()):
            self.hidden.add(call)
        elif step:
            self.calls.setdefault(call, []).append((step, self.starts[step]))


@dataclass(kw_only=True, slots=True, frozen=True)
class SteppedRuntime(Runtime[Any]):  # type: ignore[misc]  # Runtime is frozen, by **kwargs
    """Given to LangGraph as the parent runtime; what it merges gets a stamping stream writer."""

    steps: Steps = field(default_factory=Steps)

    def merge(self, other: Runtime[Any]) -> Runtime[Any]:
        merged = Runtime.merge(self, other)
        write, starts = merged.stream_writer, self.steps.starts

        def stepped(value: Any) -> None:
            step = _step_id(get_config()["configurable"]["checkpoint_ns"])
            write(Stepped(step, starts[step], value))

        return dataclasses.replace(merged, stream_writer=stepped)


def run_config(
    *, thread_id: str, run_id: str, steps: Steps, others: Sequence[BaseCallbackHandler] = ()
) -> RunnableConfig:
    """The config of one take-up.

    Strict resume refuses answers to questions that are not pending. `metadata.run_id` makes a
    second invocation with the same input a continuation. Nothing secret may be added here: the
    checkpointer stores metadata in clear.
    """
    return {
        "configurable": {
            "thread_id": thread_id,
            "__pregel_strict_resume": True,
            "__pregel_runtime": SteppedRuntime(steps=steps),
        },
        "metadata": {"run_id": run_id},
        "callbacks": [steps, *others],
    }
