"""Reads what a run's durable state says, before and after each execution of its graph.

Pure: a snapshot (`aget_state(subgraphs=True)`) in, facts out. Only the durable state decides what
was done: events precede durability, and a killed process takes its memory with it.
"""

from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.types import Interrupt, StateSnapshot

from runner.steps import finished
from runner.steps import unfinished as unfinished_steps


@dataclass(frozen=True, slots=True)
class Durable:
    """`input_applied`: the run's input is in the thread. `pending`: native id → question.

    `unfinished`: ids of the steps that will be executed again, nested ones too; this is what
    `run_resumed.discard` lists (contract §3). `finished_steps`: those that LangGraph announces
    again without executing them. `message_ids`: native ids that the thread has already.
    """

    input_applied: bool
    next: list[str]
    pending: dict[str, Interrupt]
    unfinished: list[str]
    finished_steps: list[str]
    waiting: bool
    values: Any

    @property
    def message_ids(self) -> list[str]:
        found = self.values.get("messages") if isinstance(self.values, dict) else None
        if not isinstance(found, list):
            return []
        return [m.id for m in found if isinstance(m, BaseMessage) and m.id is not None]

    @property
    def finished(self) -> bool:
        return self.input_applied and not self.next


def read(snapshot: StateSnapshot, run_id: str) -> Durable:
    """What the thread's newest checkpoint means for this run."""
    metadata = snapshot.metadata or {}
    if metadata.get("run_id") != run_id:  # another run's end, or an empty thread
        return Durable(False, [], {}, [], [], False, snapshot.values)
    unfinished = [task for task in snapshot.tasks if task.result is None]
    return Durable(
        input_applied=True,
        next=list(snapshot.next),
        pending={i.id: i for task in unfinished for i in task.interrupts},
        unfinished=list(unfinished_steps(snapshot)),
        finished_steps=list(finished(snapshot)),
        waiting=bool(unfinished) and all(task.interrupts for task in unfinished),
        values=snapshot.values,
    )
