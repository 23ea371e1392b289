"""The pool: what survives, what is translated, what is never handed on."""

import asyncio
from typing import Any

import psycopg
import pytest

from common.db.engine import Connection, Database
from common.errors import Misconfigured, Refused, Unavailable
from deploy.state import free_port
from tests.support.proxy import Proxy
from tests.support.until import until


async def backend(connection: Connection) -> int:
    return int(await connection.value("SELECT pg_backend_pid()"))


async def pid_of(database: Database) -> int:
    async with database.connect() as connection:
        return await backend(connection)


async def test_sessions_that_the_server_ended_are_replaced(database_url: str) -> None:
    database = Database(database_url, application_name="ended", pool_size=2)
    async with database.connect() as first, database.connect() as second:
        pids = [await backend(first), await backend(second)]
    with psycopg.connect(database_url, autocommit=True) as killer:
        for pid in pids:
            killer.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    assert await pid_of(database) not in pids
    await database.aclose()


async def test_a_session_that_ends_inside_a_transaction_is_unavailable(database: Database) -> None:
    with pytest.raises(Unavailable):
        async with database.begin() as connection:
            await connection.rows("SELECT pg_terminate_backend(pg_backend_pid())")
    await database.ping()


async def test_a_session_that_ended_between_two_statements_is_unavailable(
    database: Database,
) -> None:
    async with database.connect() as killer, database.connect() as idle:
        await killer.rows("SELECT pg_terminate_backend($1, 5000)", await backend(idle))
        with pytest.raises(Unavailable):
            await idle.rows("SELECT 1")
    await database.ping()


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_a_session_that_ends_as_it_is_given_back_harms_nobody(
    database: Database, turns: int
) -> None:
    """Its last answer was read, so what was done counts; only the connection is gone."""
    async with database.connect() as connection:
        await connection.rows("SELECT 1")
        connection._driver._transport.abort()
        for _ in range(turns):
            await asyncio.sleep(0)
    await database.ping()


async def test_a_closed_database_opens_no_second_pool(database_url: str) -> None:
    database = Database(database_url, application_name="t", pool_size=1)
    await database.ping()
    await database.aclose()
    with pytest.raises(Unavailable):
        await database.ping()


async def test_nobody_listening_is_unavailable() -> None:
    database = Database(
        f"postgresql://nobody@127.0.0.1:{free_port()}/x", application_name="t", pool_size=1
    )
    with pytest.raises(Unavailable, match="Postgres cannot be reached"):
        await database.ping()
    with pytest.raises(Unavailable):
        await database.check()


async def test_a_server_that_does_not_answer_is_unavailable_after_the_limit(
    database_url: str,
) -> None:
    async with Proxy(database_url) as proxy:
        database = Database(proxy.url, application_name="t", pool_size=1, timeout_s=0.1)
        await database.ping()
        proxy.stall()
        with pytest.raises(Unavailable):
            await database.ping()
        proxy.resume()
        await until(lambda: answers(database))
        await database.aclose()


async def answers(database: Database) -> bool:
    try:
        await database.ping()
    except Unavailable:
        return False
    return True


async def test_a_statement_that_takes_too_long_is_unavailable(database_url: str) -> None:
    database = Database(database_url, application_name="t", pool_size=1, timeout_s=0.05)
    with pytest.raises(Unavailable):
        async with database.connect() as connection:
            await connection.rows("SELECT pg_sleep(30)")
    await database.ping()
    await database.aclose()


async def test_an_exhausted_pool_is_unavailable(database_url: str) -> None:
    database = Database(database_url, application_name="t", pool_size=1, pool_timeout_s=0.05)
    async with database.connect():
        with pytest.raises(Unavailable):
            await database.ping()
    await database.ping()
    await database.aclose()


@pytest.mark.parametrize(
    ("change", "says"),
    [({"dbname": "nowhere"}, "does not exist"), ({"password": "wrong"}, "refuses the user")],
)
async def test_what_waiting_cannot_heal_is_misconfigured_at_start(
    database_url: str, change: dict[str, str], says: str
) -> None:
    url = changed(database_url, **change)
    if "password" in change and not asks_for_password(url):
        url = changed(database_url, user="nobody_here")  # a server that trusts everybody
    database = Database(url, application_name="t", pool_size=1)
    with pytest.raises(Misconfigured, match=says):
        await database.check()


def changed(url: str, **values: str) -> str:
    known = {"password": "", **psycopg.conninfo.conninfo_to_dict(url), **values}
    return "postgresql://{user}:{password}@{host}:{port}/{dbname}".format(**known)


def asks_for_password(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return True
    return False


async def test_a_refusal_rolls_back_and_keeps_the_connection(database: Database) -> None:
    async with database.connect() as connection:
        await connection.rows("CREATE TABLE kept (n int)")
    before = await pid_of(database)
    with pytest.raises(Refused):
        await insert_and_refuse(database)
    async with database.begin() as connection:
        assert await backend(connection) == before
        assert await connection.value("SELECT count(*) FROM kept") == 0
        await connection.rows("INSERT INTO kept VALUES (2)")
    async with database.connect() as connection:
        assert await connection.value("SELECT n FROM kept") == 2


async def insert_and_refuse(database: Database) -> None:
    async with database.begin() as connection:
        await connection.rows("INSERT INTO kept VALUES (1)")
        raise Refused("CONVERSATION_BUSY", "busy")


async def test_errors_of_the_body_are_not_translated(database: Database) -> None:
    with pytest.raises(FileNotFoundError):
        async with database.begin():
            raise FileNotFoundError("not the network")


async def test_a_caller_cancelled_in_a_statement_leaves_its_connection_to_nobody(
    database_url: str,
) -> None:
    database = Database(database_url, application_name="cancelled", pool_size=1)
    async with database.connect() as connection:
        pid = await backend(connection)
        await connection.rows("CREATE TABLE locked (n int)")
        await connection.rows("INSERT INTO locked VALUES (0)")

    async def holds_the_row() -> None:
        async with database.begin() as connection:
            await connection.rows("UPDATE locked SET n = 1")
            await connection.rows("SELECT pg_sleep(60)")

    task = asyncio.create_task(holds_the_row())
    with psycopg.connect(database_url, autocommit=True) as watcher:
        await until(lambda: sleeps(watcher, pid))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with database.connect() as connection:
        assert await backend(connection) != pid
        await connection.rows("SELECT pg_terminate_backend($1, 5000)", pid)
        assert await connection.value("SELECT n FROM locked") == 0
    await database.aclose()


def sleeps(watcher: psycopg.Connection[Any], pid: int) -> bool:
    row = watcher.execute(
        "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = %s", [pid]
    ).fetchone()
    return bool(row and row[0])


async def test_a_caller_cancelled_between_statements_drops_its_transaction(
    database: Database,
) -> None:
    began, pid = asyncio.Event(), 0

    async def waits() -> None:
        nonlocal pid
        async with database.begin() as connection:
            pid = await backend(connection)
            began.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(waits())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await pid_of(database) != pid


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"])
async def test_text_that_cannot_be_stored_is_a_refusal_and_no_failure(
    connection: Connection, text: str
) -> None:
    with pytest.raises(Refused) as refused:
        await connection.rows("SELECT $1::text", text)
    assert refused.value.code == "VALIDATION"
    assert await connection.value("SELECT 1") == 1


async def test_json_that_cannot_be_stored_is_repaired(connection: Connection) -> None:
    value = {"a\x00": ["b\x00", {"c": "d\ud800"}], "fine": "ü"}
    stored = await connection.value("SELECT $1::jsonb", value)
    assert stored == {"a\ufffd": ["b\ufffd", {"c": "d\ufffd"}], "fine": "ü"}


async def test_json_with_a_backslash_before_u0000_is_left_alone(connection: Connection) -> None:
    value = {"path": "C:\\u0000"}
    assert await connection.value("SELECT $1::jsonb", value) == value


async def test_sessions_carry_their_name_and_limits(database_url: str) -> None:
    database = Database(database_url, application_name="steadyrun:rnr_1", pool_size=1)
    async with database.connect() as connection:
        shown = await connection.row(
            "SELECT current_setting('application_name'), current_setting('statement_timeout'),"
            " current_setting('idle_in_transaction_session_timeout')"
        )
    assert tuple(shown or ()) == ("steadyrun:rnr_1", "5s", "30s")
    await database.aclose()
