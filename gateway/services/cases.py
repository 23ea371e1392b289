"""The values that a decision is carried in from step to step (contract §5). Pure."""

from dataclasses import dataclass, replace
from typing import Any

from common import hitl
from common.db.conversations import Conversation
from common.db.interrupts import Interrupt
from common.db.runs import Run
from gateway.auth import Principal


@dataclass(frozen=True, slots=True)
class Case:
    """One call: who decides what on which run, as it was read at its beginning."""

    principal: Principal
    run: Run
    conversation: Conversation
    rows: tuple[Interrupt, ...] = ()

    @property
    def owner(self) -> bool:
        return self.run.user_id == self.principal.user

    def sees(self, row: Interrupt) -> bool:
        """The owner, or whoever holds the permission that the interrupt requires."""
        required = row.required_permission
        return self.owner or (required is not None and self.principal.holds(required))


@dataclass(frozen=True, slots=True)
class Looked:
    """A resource as it was noted and as it is now. `action`: the index of the interrupt's action
    that is about it; None: the question itself has named it."""

    interrupt_id: str
    noted: Any
    now: Any
    action: int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision that passed its validation: what the graph gets, or that the run ends."""

    interrupt: Interrupt
    shown: Any
    answer: dict[str, Any] | None
    cancels: bool = False

    def accepting(self, resource: Any) -> "Choice":
        """The same for the resource as it was read anew."""
        if self.answer is None:
            return self
        value = hitl.accepted(self.interrupt, self.answer["value"], resource)
        return replace(self, answer={"value": value})
