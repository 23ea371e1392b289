"""What the author of an agent imports."""

from runner.authoring.ask import Approval, confirm_action, provide_input, select_option
from runner.authoring.context import (
    FactsFull,
    assemble,
    assemble_sync,
    recall,
    remember,
)
from runner.authoring.effects import (
    NOT_PERFORMED,
    UNKNOWN,
    NotPerformed,
    OutcomeRefused,
    Performed,
    effect_key,
    guarded,
    guarded_sync,
    rehearsal,
)
from runner.authoring.layers import Known, estimate

__all__ = [
    "NOT_PERFORMED",
    "UNKNOWN",
    "Approval",
    "FactsFull",
    "Known",
    "NotPerformed",
    "OutcomeRefused",
    "Performed",
    "assemble",
    "assemble_sync",
    "confirm_action",
    "effect_key",
    "estimate",
    "guarded",
    "guarded_sync",
    "provide_input",
    "recall",
    "rehearsal",
    "remember",
    "select_option",
]
