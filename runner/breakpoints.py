"""Where a thread stands at a static breakpoint that LangGraph has reached, told by durable state.

A runner can die between LangGraph's stop and our storing of the pause; invoked again, LangGraph
goes on. So whoever takes the run up looks: a checkpoint before whose next nodes, or behind whose
last ones, a breakpoint stands is a pause, unless it is the one that was stored and continued
(`runs.paused_at`). Subgraphs have breakpoints of their own.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot

JUST_ENDED = "steadyrun_just_ended"
"""Key in a checkpoint's metadata: the nodes whose step led to it (`runner/gate`)."""

Nodes = Literal["*"] | Sequence[str]


@dataclass(frozen=True, slots=True)
class Breakpoints:
    """Those of a run's graph; what the run's request names replaces the graph's own."""

    graph: Pregel[Any, Any, Any, Any]
    before: Nodes
    after: Nodes

    @classmethod
    def of_run(cls, graph: Pregel[Any, Any, Any, Any], given: Mapping[str, Any]) -> "Breakpoints":
        return cls(
            graph,
            given.get("interruptBefore") or graph.interrupt_before_nodes,
            given.get("interruptAfter") or graph.interrupt_after_nodes,
        )

    def reached(self, snapshot: StateSnapshot) -> Iterator[str]:
        """The checkpoints, nested ones too, at which a breakpoint stands."""
        metadata: Mapping[str, Any] = {**(snapshot.metadata or {})}
        ended = metadata.get(JUST_ENDED, ())
        if snapshot.next and (_any(self.before, snapshot.next) or _any(self.after, ended)):
            yield checkpoint_of(snapshot)
        inner = dict(self.graph.get_subgraphs()) if _nested(snapshot) else {}
        for task, state in _nested(snapshot):
            if isinstance(graph := inner.get(task), Pregel):
                yield from Breakpoints.of_run(graph, {}).reached(state)


def checkpoint_of(snapshot: StateSnapshot) -> str:
    return str(snapshot.config["configurable"].get("checkpoint_id", ""))


def standing(snapshot: StateSnapshot) -> Iterator[str]:
    """Where the thread stands, its subgraphs included."""
    yield checkpoint_of(snapshot)
    for _, state in _nested(snapshot):
        yield from standing(state)


def _nested(snapshot: StateSnapshot) -> list[tuple[str, StateSnapshot]]:
    return [
        (task.name, task.state)
        for task in snapshot.tasks
        if task.result is None and isinstance(task.state, StateSnapshot)
    ]


def _any(nodes: Nodes, names: Collection[str]) -> bool:
    return bool(names) if nodes == "*" else any(name in nodes for name in names)
