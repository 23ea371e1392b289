"""Reads what a run's durable state says, before and after each execution of its graph.

Pure: a snapshot (`aget_state(subgraphs=True)`) in, facts out. Only the durable state decides what
was done: events precede durability, and a killed process takes its memory with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from langgraph.types import Interrupt, StateSnapshot


@dataclass(frozen=True, slots=True)
class Durable:
    """`input_applied`: the run's input is in the thread. `pending`: native id → question.

    `unfinished`: ids of the steps that will be executed again, nested ones too; this is what
    `run_resumed.discard` lists (contract §3).
    """

    input_applied: bool
    next: list[str]
    pending: dict[str, Interrupt]
    unfinished: list[str]
    waiting: bool
    values: Any

    @property
    def finished(self) -> bool:
        return self.input_applied and not self.next


def read(snapshot: StateSnapshot, run_id: str) -> Durable:
    """What the thread's newest checkpoint means for this run."""
    metadata = snapshot.metadata or {}
    if metadata.get("run_id") != run_id:  # another run's end, or an empty thread
        return Durable(False, [], {}, [], False, snapshot.values)
    unfinished = [task for task in snapshot.tasks if task.result is None]
    return Durable(
        input_applied=True,
        next=list(snapshot.next),
        pending={i.id: i for task in unfinished for i in task.interrupts},
        unfinished=list(_unfinished(snapshot)),
        waiting=bool(unfinished) and all(task.interrupts for task in unfinished),
        values=snapshot.values,
    )


def _unfinished(snapshot: StateSnapshot) -> Iterator[str]:
    """A task without a saved result is executed again; `{}` is a result, it wrote nothing."""
    for task in snapshot.tasks:
        if task.result is None:
            yield task.id
            if isinstance(task.state, StateSnapshot):
                yield from _unfinished(task.state)
