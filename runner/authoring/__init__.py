"""What the author of an agent imports."""

from runner.authoring.ask import Approval, confirm_action, provide_input, select_option
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

__all__ = [
    "NOT_PERFORMED",
    "UNKNOWN",
    "Approval",
    "NotPerformed",
    "OutcomeRefused",
    "Performed",
    "confirm_action",
    "effect_key",
    "guarded",
    "guarded_sync",
    "provide_input",
    "rehearsal",
    "select_option",
]
