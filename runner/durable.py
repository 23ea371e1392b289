"""Reads what a run's durable state says, before and after each execution of its graph.

Pure: a snapshot (`aget_state(subgraphs=True)`) in, facts out. Only the durable state decides what
was done: events precede durability, and a killed process takes its memory with it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolCall
from langgraph.types import Interrupt, StateSnapshot

from common.page import Page
from runner import breakpoints
from runner.breakpoints import Breakpoints
from runner.steps import finished
from runner.steps import unfinished as unfinished_steps


@dataclass(frozen=True, slots=True)
class Asker:
    """A step that asks a person, and the values of its graph."""

    step_id: str
    values: Any

    @property
    def calls(self) -> list[ToolCall]:
        """The tool calls of the graph's last message of a model: an approval is about these."""
        found = self.values.get("messages") if isinstance(self.values, dict) else None
        messages = found if isinstance(found, list) else []
        said = (m for m in reversed(messages) if isinstance(m, AIMessage))
        return list(last.tool_calls) if (last := next(said, None)) is not None else []


@dataclass(frozen=True, slots=True)
class Durable:
    """`input_applied`: the run's input is in the thread. `pending`: native id → question.

    `unfinished`: ids of the steps that will be executed again, nested ones too.
    `finished_steps`: those that LangGraph announces again without executing them. `message_ids`:
    native ids that the thread has already. `standing`: the checkpoints where the thread and its
    subgraphs stand; `breakpoints`: those of them at which a breakpoint is (`runner/breakpoints`).
    `left`: an earlier run was stopped in the middle of a step.
    """

    input_applied: bool
    next: list[str]
    pending: dict[str, Interrupt]
    unfinished: list[str]
    finished_steps: list[str]
    waiting: bool
    values: Any
    standing: tuple[str, ...] = ()
    breakpoints: frozenset[str] = frozenset()
    steps_left: bool = False
    """Also steps whose result is saved and not yet in the values: then `next` is empty already."""
    left: bool = False
    askers: Mapping[str, "Asker"] = field(default_factory=dict)
    """Who asks, by the question's native id; of nested ones the innermost."""

    def discard(self, page: Page) -> list[str]:
        """What `run_resumed.discard` lists: every step that is executed again (contract §3).

        Calls of `@task`s are in no snapshot: of those on the page, one that has not ended has no
        result. One that has ended may have none either, if its runner died before that was saved.
        It cannot be told from steps that are done for good: of a checkpoint the pending writes name
        the calls that are saved, but not the calls there were, and a page names no step's caller.
        Such a call is told by `step_retried` when it is executed again.

        An input that is not in the thread is applied under a new checkpoint, so that all steps get
        new ids, and nothing that was shown stands.
        """
        if not self.input_applied:
            return page.steps
        known = {*self.unfinished, *self.finished_steps}
        return [*self.unfinished, *(step for step in page.running if step not in known)]

    @property
    def message_ids(self) -> list[str]:
        found = self.values.get("messages") if isinstance(self.values, dict) else None
        if not isinstance(found, list):
            return []
        return [m.id for m in found if isinstance(m, BaseMessage) and m.id is not None]

    @property
    def finished(self) -> bool:
        return self.input_applied and not self.steps_left


def read(snapshot: StateSnapshot, run_id: str, stops: Breakpoints) -> Durable:
    """What the thread's newest checkpoint means for this run."""
    metadata = snapshot.metadata or {}
    if metadata.get("run_id") != run_id:  # another run's end, or an empty thread
        left = bool(snapshot.tasks)
        return Durable(False, [], {}, [], [], False, snapshot.values, left=left)
    unfinished = [task for task in snapshot.tasks if task.result is None]
    return Durable(
        input_applied=True,
        next=list(snapshot.next),
        pending={i.id: i for task in unfinished for i in task.interrupts},
        unfinished=list(unfinished_steps(snapshot)),
        finished_steps=list(finished(snapshot)),
        waiting=bool(unfinished) and all(task.interrupts for task in unfinished),
        values=snapshot.values,
        standing=tuple(breakpoints.standing(snapshot)),
        breakpoints=frozenset(stops.reached(snapshot)),
        steps_left=bool(snapshot.tasks),
        askers=dict(_askers(snapshot)),
    )


def _askers(snapshot: StateSnapshot) -> Iterator[tuple[str, Asker]]:
    """Outer steps first: a nested question is pending in each of the steps around it."""
    for task in snapshot.tasks:
        asker = Asker(task.id, snapshot.values)
        yield from ((question.id, asker) for question in task.interrupts)
        if isinstance(task.state, StateSnapshot):
            yield from _askers(task.state)
