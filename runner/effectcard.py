"""The question that a person is asked about an effect, and what the answers mean (contract §5).

It is a choice between `again` and `done`; a result can be given with `{"fill": {"result": …}}`,
which says "done" as well. To reject it is to give up: the run ends as cancelled, and so it does
when nobody answers in time.
"""

from dataclasses import dataclass
from typing import Any, Final

from common.graphfile import GraphSpec
from common.hitl import Question
from common.masking import Masker
from runner.asking import Unknown
from runner.authoring.effects import outside_key_of

AGAIN: Final = "again"
DONE: Final = "done"
_RESULT: Final = {
    "type": "object",
    "properties": {"result": {"title": "What it gave, as the graph expects it (JSON)"}},
    "required": ["result"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Done:
    value: Any = None


def done(answer: Any) -> Done | None:
    """What the effect gave, if a person says that it has happened."""
    match answer:
        case {"type": "select", "value": "done"}:
            return Done()
        case {"type": "fill", "values": {"result": value}}:
            return Done(value)
    return None


def is_again(answer: Any) -> bool:
    match answer:
        case {"type": "select", "value": "again"}:
            return True
    return False


def native_id(run_id: str, key: str) -> str:
    """Under which the question is stored; LangGraph's own ids are 32 hexadecimal digits."""
    return outside_key_of(run_id, key)


def question(unknown: Unknown, spec: GraphSpec, masker: Masker) -> Question:
    return Question(
        type="select_option",
        format="steadyrun",
        payload=masker.value(_payload(masker.text(unknown.key), unknown)),
        allowed_decisions=["select", "fill", "reject"],
        actions=[],
        on_reject="cancel",
        on_expire="cancel",
        required_permission=unknown.permission or None,
        answer_schema={"options": [AGAIN, DONE], "values": _RESULT},
        expires_in_s=spec.interrupt_ttl_s,
    )


def _payload(name: str, unknown: Unknown) -> dict[str, Any]:
    begun_at = unknown.started_at.isoformat(timespec="seconds")
    begun_by = unknown.runner_id or "an earlier runner"
    return {
        "steadyrun": "select_option",
        "title": f"Has the effect {name!r} happened?",
        "description": (
            f"It was begun at {begun_at} by {begun_by}, and how it ended was never noted: the"
            " runner died or stood still meanwhile, or the effect failed half-way. Please look"
            " where it acts. Nothing is done about it until you answer."
        ),
        "options": [
            {"value": AGAIN, "label": "Do it again. If it did happen, it happens twice."},
            {"value": DONE, "label": "It is done. The run goes on, without a result of it."},
        ],
        "schema": _RESULT,
        "fill": "It is done, and this is its result. The run goes on with it.",
        "reject": "Give up. It is not done again, and the run ends as cancelled.",
        "effect": {"name": name, "begunAt": begun_at, "begunBy": begun_by, "epoch": unknown.epoch},
    }
