"""Which step, and which attempt of it, a chunk of a graph's stream belongs to.

The chunks of LangGraph's stream do not say it: tools and custom chunks carry the namespace of
their *graph* only, and no chunk of any mode shows a retry. Callbacks do, but they run ahead of the
stream's queue. So one inline callback counts the starts of each step and stamps what it can reach
before LangGraph's own stream handlers run:

* a model call's metadata, the same dict that arrives in each of its chunks;
* tool calls: the k-th `tool-started` of a call id is the k-th entry under that id;
* what the graph writes with a stream writer is wrapped in `Stepped`.

A step is named by its checkpoint namespace; its id is the text after the last colon, the same
after a crash. Two private keys of LangGraph are used, `__pregel_runtime` and
`__pregel_strict_resume`; tests pin both.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config
from langgraph.runtime import Runtime

START_KEY = "steadyrun_start"
_NAMESPACE = "langgraph_checkpoint_ns"


def step_id(namespace: str) -> str | None:
    """The step's id from its full checkpoint namespace (`node:id|inner:id`)."""
    return namespace.rpartition(":")[2] or None


@dataclass(frozen=True, slots=True)
class Stepped:
    """A custom chunk with the step that wrote it and the attempt it was written in."""

    namespace: str
    start: int
    value: Any


class Steps(BaseCallbackHandler):
    """Counts starts. One for each take-up of a run, first among the callbacks."""

    run_inline = True  # in the order of the events, on the thread that raises them

    def __init__(self) -> None:
        self.starts: Counter[str] = Counter()
        self.calls: dict[str, list[tuple[str, int]]] = {}

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if metadata and kwargs.get("name") == metadata.get("langgraph_node", kwargs):
            self.starts[metadata[_NAMESPACE]] += 1

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[Any]],
        *,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if metadata and _NAMESPACE in metadata:
            metadata[START_KEY] = self.starts[metadata[_NAMESPACE]]

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if metadata and _NAMESPACE in metadata:
            namespace = metadata[_NAMESPACE]
            call = kwargs.get("tool_call_id") or str(run_id)
            self.calls.setdefault(call, []).append((namespace, self.starts[namespace]))


@dataclass(kw_only=True, slots=True, frozen=True)
class SteppedRuntime(Runtime[Any]):  # type: ignore[misc]  # Runtime is frozen, by **kwargs
    """Given to LangGraph as the parent runtime; what it merges gets a stamping stream writer."""

    steps: Steps = field(default_factory=Steps)

    def merge(self, other: Runtime[Any]) -> Runtime[Any]:
        merged = Runtime.merge(self, other)
        write, starts = merged.stream_writer, self.steps.starts

        def stepped(value: Any) -> None:
            namespace = get_config()["configurable"]["checkpoint_ns"]
            write(Stepped(namespace, starts[namespace], value))

        return dataclasses.replace(merged, stream_writer=stepped)


def run_config(*, thread_id: str, run_id: str, steps: Steps) -> RunnableConfig:
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
        "callbacks": [steps],
    }
