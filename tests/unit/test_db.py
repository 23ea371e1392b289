"""Parts of common/db that need no server."""

from datetime import UTC, datetime, timedelta

import asyncpg
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.db import conversations, interrupt_sql, interrupts, messages, run_sql, tables
from common.db.failures import misconfigured, translate
from common.db.migrate import head
from common.db.paging import at_moment, at_position, microseconds, page
from common.db.revision import NEEDED
from common.db.runs import Run
from common.db.statement import Statement
from common.db.values import (
    decode_jsonb,
    encode_jsonb,
    is_storable,
    refuse_unstorable,
    repair,
    repair_text,
)
from common.errors import Misconfigured, Refused, Unavailable

TEXT = st.text(alphabet=st.characters(exclude_categories=()) | st.just("\x00"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)


@given(TEXT)
def test_repaired_text_can_be_stored_and_good_text_is_left_alone(text: str) -> None:
    repaired = repair_text(text)
    assert is_storable(repaired)
    assert "\x00" not in repaired
    repaired.encode()
    assert (repaired == text) == is_storable(text)


@given(JSON)
def test_any_json_value_is_encoded_as_postgres_takes_it(value: object) -> None:
    encoded = encode_jsonb(value)
    assert encoded[:1] == b"\x01"
    assert decode_jsonb(encoded) == repair(value)
    if is_storable(value):
        assert decode_jsonb(encoded) == value


def test_what_json_does_not_know_is_an_error_of_ours() -> None:
    with pytest.raises(TypeError):
        encode_jsonb(object())


def test_a_persons_text_is_refused_by_the_name_of_its_field() -> None:
    refuse_unstorable(content="fine", facts={"a": ["ü", 1, None]})
    with pytest.raises(Refused, match="facts holds"):
        refuse_unstorable(content="fine", facts={"a": [{"b\x00": 1}]})


@given(st.integers(0, 2**63 - 1))
def test_a_cursor_over_a_number_comes_back(position: int) -> None:
    items, cursor = page([position, position], 1, lambda item: (item,))
    assert items == [position]
    assert at_position(cursor) == position


@given(
    st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=40_000)),
    st.text(alphabet="abc_0123", max_size=40),
)
def test_a_cursor_over_a_moment_comes_back(since: timedelta, item_id: str) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + since
    _, cursor = page([0, 0], 1, lambda _: (microseconds(moment), item_id))
    assert at_moment(cursor) == (moment, item_id)


@given(st.text(max_size=60))
def test_any_other_cursor_is_refused_and_never_a_failure(cursor: str) -> None:
    for read in (at_position, at_moment):
        with pytest.raises(Refused, match="BAD_REQUEST"):
            read(cursor)


def test_named_parameters_become_numbers_and_casts_stay() -> None:
    statement = Statement("SELECT :b::text, :a, :b WHERE 'x'::text = :a")
    assert statement.sql == "SELECT $1::text, $2, $1 WHERE 'x'::text = $2"
    assert statement._arguments({"a": 1, "b": 2}) == [2, 1]


@pytest.mark.parametrize("values", [{"a": 1}, {"a": 1, "c": 2}, {"a": 1, "b": 2, "c": 3}])
def test_a_statement_takes_exactly_its_parameters(values: dict[str, int]) -> None:
    with pytest.raises((TypeError, KeyError)):
        Statement("SELECT :a, :b")._arguments(values)


@pytest.mark.parametrize(
    ("fields", "table"),
    [
        (run_sql.COLUMNS.split(", "), "runs"),
        (list(interrupts.Interrupt.__dataclass_fields__), "interrupts"),
        (list(messages.Message.__dataclass_fields__), "messages"),
        (list(conversations.Conversation.__dataclass_fields__), "conversations"),
    ],
)
def test_rows_have_the_columns_of_their_tables(fields: list[str], table: str) -> None:
    missing = set(tables.metadata.tables[table].columns.keys()) - set(fields)
    assert set(fields) <= set(tables.metadata.tables[table].columns.keys())
    unread = {"position", "followed", "pruned_at", "claimed_at", "overdue_at", "summary_run_id"}
    assert missing <= unread


def test_rows_are_read_by_position_in_the_order_of_their_fields() -> None:
    assert run_sql.COLUMNS.split(", ") == list(Run.__dataclass_fields__)
    asked = list(interrupts.Interrupt.__dataclass_fields__)
    assert interrupt_sql.COLUMNS.split(", ") == asked


@pytest.mark.parametrize(
    "error",
    [
        OSError("connection refused"),
        TimeoutError(),
        asyncpg.ConnectionDoesNotExistError(),
        asyncpg.InterfaceError("connection is closed"),
        asyncpg.InternalClientError("unexpected"),
        asyncpg.CannotConnectNowError(),
        asyncpg.AdminShutdownError(),
        asyncpg.QueryCanceledError(),
        asyncpg.TooManyConnectionsError(),
        asyncpg.DiskFullError(),
        asyncpg.DeadlockDetectedError(),
        asyncpg.SerializationError(),
        asyncpg.LockNotAvailableError(),
        asyncpg.ReadOnlySQLTransactionError(),
        asyncpg.InvalidPasswordError(),
    ],
)
def test_a_server_that_cannot_be_used_now_is_unavailable(error: Exception) -> None:
    translated = translate(error)
    assert isinstance(translated, Unavailable)
    assert str(translated) == "Postgres cannot be reached"


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.PostgresSyntaxError(),
        asyncpg.UniqueViolationError(),
        asyncpg.CheckViolationError(),
        asyncpg.DataError("a mistake of ours"),
    ],
)
def test_mistakes_of_ours_surface(error: Exception) -> None:
    assert translate(error) is None


def test_a_missing_parent_row_is_not_found() -> None:
    translated = translate(asyncpg.ForeignKeyViolationError())
    assert isinstance(translated, Refused)
    assert translated.code == "NOT_FOUND"


def test_only_what_waiting_cannot_heal_is_misconfigured() -> None:
    assert isinstance(misconfigured(asyncpg.InvalidPasswordError()), Misconfigured)
    assert isinstance(misconfigured(asyncpg.InvalidCatalogNameError()), Misconfigured)
    assert misconfigured(asyncpg.CannotConnectNowError()) is None
    assert misconfigured(OSError()) is None


def test_frames_of_json_are_as_orjson_writes_them() -> None:
    assert encode_jsonb({"a": 1})[1:] == orjson.dumps({"a": 1})


def test_the_migrations_are_one_line_to_the_revision_that_the_program_needs() -> None:
    """Two of the same number are found where they are made, not by the servers' tests."""
    assert head() == NEEDED
