"""What a question is about: how it is named, noted, compared and given to the graph."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common import hitl
from common.graphfile import GraphSpec
from common.hitl import Question, question
from common.loading import Reference
from common.masking import Masker
from gateway.services.changes import compared
from runner.authoring import confirm_action
from tests.unit.test_ask import Dialogue

SPEC = GraphSpec("g", Reference(Path("g.py"), "graph"))
PUMP = {"id": "p7", "version": 1}


def asked(value: Any) -> Question:
    return question(value, SPEC, Masker())


def test_any_payload_that_is_an_object_may_name_its_resource() -> None:
    noted = asked({"why": "?", "resource": {"id": 7, "since": datetime(2026, 1, 2, tzinfo=UTC)}})
    assert noted.format == "opaque"
    assert noted.resource == {"id": 7, "since": "2026-01-02 00:00:00+00:00"}
    assert asked("why?").resource is None


def test_a_resource_that_json_cannot_hold_is_noted_as_it_is_shown() -> None:
    ring: list[Any] = []
    ring.append(ring)
    noted = asked({"resource": {"ring": ring, "password": "hunter2"}}).resource
    assert noted is not None
    assert "hunter2" not in str(noted)


def test_only_the_noted_fields_are_compared() -> None:
    assert compared(PUMP, {**PUMP, "state": "running"}) == PUMP
    assert compared(PUMP, {"id": "p7"}) == {"id": "p7"}
    assert compared(PUMP, None) is None
    assert compared("p7", "p8") == "p8"


def test_an_approval_knows_the_resource_that_was_accepted() -> None:
    dialogue = Dialogue(lambda: confirm_action("restart", resource=PUMP))
    answer = hitl.answer(dialogue.asked, "approve", by="ada")
    assert isinstance(answer, hitl.Answer)
    approval = dialogue.resume(hitl.accepted(dialogue.asked, answer.value, {**PUMP, "version": 2}))
    assert (approval.by, approval.resource) == ("ada", {"id": "p7", "version": 2})


def test_values_of_other_formats_stay_as_they_are() -> None:
    opaque = asked({"resource": PUMP})
    assert hitl.accepted(opaque, {"type": "approve"}, PUMP) == {"type": "approve"}
    assert hitl.accepted(opaque, True, PUMP) is True
