"""The agreement of both processes: ids, batches, frames, the table of statuses, settings."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import ids, runs
from common.batch import Batch
from common.environment import load
from common.errors import Misconfigured
from common.events import EVENT_FIELDS, TERMINAL, Event, encode_frame, ends_of, utc_text
from common.settings import GatewaySettings, RunnerSettings


def batch_of(first: int, count: int, after: int | None = None) -> Batch:
    frames = b"".join(
        encode_frame(
            Event("custom", {"data": {"n": n, "text": "汉字\n\r\n\u2028"}}),
            run_id="run_x",
            sequence=n,
            epoch=3,
            at=utc_text(datetime(2026, 1, 2, tzinfo=UTC)),
        )
        for n in range(first, first + count)
    )
    last = first + count - 1
    return Batch(first - 1 if after is None else after, first, last, 3, "", frames)


@given(st.integers(1, 10**12), st.integers(1, 20), st.integers(-3, 25))
def test_a_batch_survives_its_encoding_and_is_cut_at_any_cursor(
    first: int, count: int, offset: int
) -> None:
    batch = batch_of(first, count)
    assert Batch.decode(batch.encode()) == batch
    cursor = first + offset
    left = [int(frame.split(b"\n")[0][4:]) for frame in batch.cut(cursor).split(b"\n\n") if frame]
    assert left == [n for n in range(first, first + count) if n > cursor]


def test_a_batch_is_taken_only_where_it_continues_what_the_reader_has() -> None:
    batch = batch_of(10, 3, after=6)
    assert [c for c in range(20) if batch.takes(c)] == [6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("encoded", [b"", b"1 2 3\n", b"1 2 3 4 x\nid: 1\n\n", b"a b c d -\n"])
def test_what_is_not_a_batch_is_refused(encoded: bytes) -> None:
    with pytest.raises(ValueError, match=r"batch|invalid literal"):
        Batch.decode(encoded)


@given(st.text(), st.integers(1, 2**53))
def test_a_frame_is_one_line_of_json_whatever_the_text(text: str, sequence: int) -> None:
    text = text.encode(errors="ignore").decode()
    frame = encode_frame(
        Event("text_delta", {"messageId": "msg_1", "delta": text}, step_id="s1"),
        run_id="run_1",
        sequence=sequence,
        epoch=1,
        at=utc_text(),
    )
    id_line, type_line, data_line, blank, rest = frame.split(b"\n")
    assert (id_line, type_line, blank, rest) == (
        b"id: %d" % sequence,
        b"event: text_delta",
        b"",
        b"",
    )
    assert b"\r" not in frame
    body = json.loads(data_line.removeprefix(b"data: "))
    assert body["delta"] == text
    assert body["sequence"] == sequence
    assert body["stepId"] == "s1"


def test_a_batch_ends_a_pause_or_the_run_by_its_last_event() -> None:
    assert ends_of([Event("interrupt"), Event("interrupt")]) == "pause"
    assert ends_of([Event("run_paused")]) == "pause"
    assert {ends_of([Event(t)]) for t in TERMINAL} == {"run"}
    others = set(EVENT_FIELDS) - TERMINAL - {"interrupt", "run_paused"}
    assert {ends_of([Event(t)]) for t in others} == {""}


def test_terminal_statuses_lead_nowhere_and_all_others_do() -> None:
    assert frozenset({"completed", "failed", "cancelled"}) == runs.TERMINAL_STATUSES
    for status in runs.STATUSES:
        assert bool(runs.TRANSITIONS[status]) == (status in runs.ACTIVE_STATUSES)
        assert not runs.can_become(status, status)


def test_every_status_can_be_reached_from_queued() -> None:
    reached: set[str] = {"queued"}
    for _ in runs.STATUSES:
        reached |= {new for old, news in runs.TRANSITIONS.items() if old in reached for new in news}
    assert reached == set(runs.STATUSES)


def test_ids_rise_with_time_and_tell_their_kind() -> None:
    made = [ids.new_id("run") for _ in range(1000)]
    assert len(set(made)) == 1000
    assert [i[:16] for i in made] == sorted(i[:16] for i in made)
    assert all(ids.is_id(i, "run") and not ids.is_id(i, "conv") for i in made)
    assert not ids.is_id(made[0] + "\n", "run")
    assert not ids.is_id("run_" + "\0" * 32, "run")


def test_a_stable_id_depends_on_every_part_and_its_borders() -> None:
    assert ids.stable_id("msg", "a", "b") == ids.stable_id("msg", "a", "b")
    assert len({ids.stable_id("msg", *p) for p in (("a", "b"), ("ab", ""), ("a", "c"))}) == 3


def test_settings_name_each_unusable_variable_and_never_its_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATABASE_URL", "mysql://u:hunter2@h/d")
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.setenv("STEADYRUN_LEASE_TTL_S", "soon")
    with pytest.raises(Misconfigured) as caught:
        load(RunnerSettings)
    message = str(caught.value)
    assert "DATABASE_URL" in message
    assert "REDIS_URL" in message
    assert "STEADYRUN_LEASE_TTL_S" in message
    assert "hunter2" not in message
    assert "\n" not in message


@pytest.mark.parametrize("given", ["[", '{"a": 1}', "secret"])
def test_a_list_that_is_none_is_named_without_its_value(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1/0")
    monkeypatch.setenv("STEADYRUN_MASKING_PATTERNS", given)
    with pytest.raises(Misconfigured) as caught:
        load(RunnerSettings)
    assert "STEADYRUN_MASKING_PATTERNS: " in str(caught.value)
    assert "DATABASE_URL: must be set" in str(caught.value)
    assert given not in str(caught.value)


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:p@127.0.0.1/d")
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1/0")
    monkeypatch.setenv("STEADYRUN_CORS_ORIGINS", "https://a.example, https://b.example")
    monkeypatch.setenv("STEADYRUN_MASKING_PATTERNS", '["a-[0-9]+"]')
    settings = load(GatewaySettings)
    assert settings.masking_patterns == ["a-[0-9]+"]
    assert settings.cors_origins == ["https://a.example", "https://b.example"]
    monkeypatch.setenv("STEADYRUN_JWT_SECRET", "short")
    with pytest.raises(Misconfigured, match="STEADYRUN_JWT_SECRET: must have at least 32 bytes"):
        load(GatewaySettings)


@pytest.mark.parametrize("odd", [10**30, "half \ud83d", object(), {"\ud83d": [10**30]}])
def test_a_value_that_json_cannot_hold_does_not_fail_its_frame(odd: Any) -> None:
    event = Event("custom", {"data": odd, "kept": {"a": [1, 2.5, None, True, "数"]}})
    frame = encode_frame(event, run_id="run_1", sequence=1, epoch=1, at="now")
    body = json.loads(frame.decode().split("data: ")[1])
    assert body["kept"] == {"a": [1, 2.5, None, True, "数"]}
    assert frame.count(b"\n") == 4


def test_a_native_id_with_half_a_character_has_a_stable_id() -> None:
    one, other = ids.stable_id("msg", "run_1", "\ud800"), ids.stable_id("msg", "run_1", "?")
    assert one == ids.stable_id("msg", "run_1", "\ud800") != other
