"""What guarded effects need no server for."""

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.db.interrupts import Interrupt
from common.graphfile import GraphSpec
from common.hitl import Answer, CancelRun, Invalid, answer, validate_raw
from common.loading import Reference
from common.masking import MASK, Masker
from runner.asking import Unknown
from runner.authoring import effect_key, guarded, guarded_sync, rehearsal
from runner.authoring.effects import outside_key_of
from runner.effectcard import Done, done, is_again, native_id, question
from runner.ledger import KEY_CHARS_MAX, OUTCOME_BYTES_MAX, as_json, check_key


@pytest.mark.parametrize("value", [None, 1, "数", [1, {"a": None}], {"x": 1.5}, True])
def test_a_json_value_is_kept_as_it_is(value: Any) -> None:
    assert as_json(value) == (value, None)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        b"bytes",
        {1: "a"},
        float("inf"),
        2**70,
        "\x00",
        "\ud800",
        {"a", "b"},
        "x" * OUTCOME_BYTES_MAX,
    ],
    ids=["object", "bytes", "number key", "inf", "big int", "nul", "surrogate", "set", "big"],
)
def test_what_is_not_json_is_refused_with_a_reason(value: Any) -> None:
    kept, refused = as_json(value)
    assert kept is None
    assert refused
    assert len(refused) < 300


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    assert as_json(value)[1]


@pytest.mark.parametrize("key", ["", "x" * (KEY_CHARS_MAX + 1), "\x00", "\ud800"])
def test_a_key_that_cannot_be_stored_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="key of an effect"):
        check_key(key)


def test_a_key_is_a_text() -> None:
    with pytest.raises(TypeError, match="text"):
        check_key(17)  # type: ignore[arg-type]


async def test_outside_of_a_run_the_error_says_so() -> None:
    with pytest.raises(RuntimeError, match="inside a node or tool of a run"):
        await guarded("key", lambda: 1)
    with pytest.raises(RuntimeError, match="inside a node or tool of a run"):
        await asyncio.to_thread(guarded_sync, "key", lambda: 1)
    with pytest.raises(RuntimeError, match="inside a guarded effect"):
        effect_key()


async def test_a_rehearsal_performs_each_key_once() -> None:
    seen: list[str] = []

    async def act() -> int:
        seen.append(effect_key())
        return len(seen)

    with rehearsal():
        assert [await guarded(key, act) for key in ("a", "b", "a")] == [1, 2, 1]
        assert guarded_sync("b", lambda: 7) == 2
    assert len(set(seen)) == 2


def test_the_outside_key_differs_by_run_and_key_only() -> None:
    keys = {outside_key_of(run, key) for run in ("run_1", "run_2") for key in ("a", "b")}
    assert len(keys) == 4
    assert {len(key) for key in keys} == {36}
    assert outside_key_of("run_1", "a") in keys


CARD = question(
    Unknown("mail/password=hunter2", 3, "rnr_1", datetime(2026, 1, 2, tzinfo=UTC), "mail.send"),
    GraphSpec("g", Reference(Path("g.py"), "g"), interrupt_ttl_s=60),
    Masker(),
)


def test_the_card_masks_the_key_and_tells_when_and_by_whom() -> None:
    text = json.dumps(CARD.payload)
    assert "hunter2" not in text
    assert f"mail/password={MASK}" in CARD.payload["title"]
    assert CARD.payload["effect"]["begunAt"] == "2026-01-02T00:00:00+00:00"
    assert "rnr_1" in CARD.payload["description"]
    assert (CARD.required_permission, CARD.expires_in_s) == ("mail.send", 60)


@pytest.mark.parametrize(
    ("decision", "meant"),
    [
        ({"select": "again"}, "again"),
        ({"select": "done"}, Done(None)),
        ({"fill": {"result": [1]}}, Done([1])),
        ({"fill": {"result": None}}, Done(None)),
    ],
)
def test_each_decision_means_what_the_card_says(decision: Any, meant: Any) -> None:
    given = answer(CARD, decision, by="ada")
    assert isinstance(given, Answer)
    assert is_again(given.value) is (meant == "again")
    assert done(given.value) == (None if meant == "again" else meant)
    raw = {name: value for name, value in given.value.items() if name != "by"}
    assert validate_raw(CARD, raw) is None


def test_to_reject_is_to_give_up() -> None:
    assert isinstance(answer(CARD, "reject"), CancelRun)
    assert done({"type": "reject"}) is None
    assert not is_again({"type": "reject"})


@pytest.mark.parametrize(
    "wrong",
    ["approve", {"select": "perhaps"}, {"fill": {}}, {"fill": {"result": 1, "more": 2}}],
    ids=str,
)
def test_a_wrong_answer_about_an_effect_is_refused(wrong: Any) -> None:
    assert isinstance(answer(CARD, wrong), Invalid)


def test_a_question_about_an_effect_is_told_from_those_of_the_graph() -> None:
    is_of_effect: Any = Interrupt.is_of_effect
    rows = [SimpleNamespace(native_id=i) for i in (native_id("run_1", "a"), "0" * 32)]
    assert [is_of_effect.fget(row) for row in rows] == [True, False]


def test_authors_import_no_server_and_gateways_no_effects() -> None:
    """A user's graph file is imported by plain LangGraph as well."""
    loaded = json.loads(_loaded("runner.authoring"))
    assert not {"asyncpg", "redis", "runner.effects", "runner.execution"} & set(loaded)
    assert "runner.authoring" not in json.loads(_loaded("gateway.app"))


def _loaded(module: str) -> str:
    told = f"import sys, json, {module}; print(json.dumps(list(sys.modules)))"
    return subprocess.run(
        [sys.executable, "-c", told], check=True, capture_output=True, text=True
    ).stdout
