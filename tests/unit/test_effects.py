"""What guarded effects need no server for."""

import asyncio
import json
import subprocess
import sys
from typing import Any, get_args

import pytest

from common.masking import Masker
from common.runs import FailureCode
from runner.authoring import effect_key, guarded, guarded_sync, rehearsal
from runner.authoring.effects import outside_key_of
from runner.effects import KEY_CHARS_MAX, OUTCOME_BYTES_MAX, as_json, check_key, unknown


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


def test_the_failure_names_the_effect_and_is_final() -> None:
    failed = unknown(Masker().text("mail/password=hunter2"))
    assert failed.code == "EFFECT_UNKNOWN"
    assert failed.code in get_args(FailureCode)
    assert not failed.retryable
    assert "mail/" in failed.message
    assert "hunter2" not in failed.message
    assert "nobody knows" in failed.message


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
