"""The lease against a real Postgres, in this process: what it takes, keeps and gives back."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest

from common.db import runners
from common.db.engine import Database
from common.db.lease import SILENCE_MS, LeaseConnection
from common.errors import Misconfigured, Unavailable
from common.ids import RunnerId, new_id
from deploy.state import free_port
from runner.lease import DECLARED_DEAD, NOT_RENEWED, Lease
from runner.renewal import MARGIN_S
from tests.support.leases import Witness, until, witness
from tests.support.proxy import Proxy

TTL_S = 60.0  # far away: no lease runs out here unless a test says so

Registered = tuple[RunnerId, int]


@pytest.fixture
async def seen(database_url: str) -> AsyncIterator[Witness]:
    async with witness(database_url) as found:
        yield found


@pytest.fixture
async def registered(database_url: str) -> Registered:
    runner_id = RunnerId(new_id("rnr"))
    database = Database(database_url, application_name="registry", pool_size=1)
    async with database.connect() as connection:
        slot = await runners.register(
            connection, id=runner_id, host="test", pid=1, capacity=1, ttl_s=TTL_S
        )
    await database.aclose()
    return runner_id, slot


@pytest.fixture
def session(database_url: str, registered: Registered) -> Iterator[LeaseConnection]:
    """A lease session that is open and has not locked yet."""
    found = connection_of(database_url, registered)
    found.connect()
    yield found
    found.close()


@pytest.fixture
def waker() -> Iterator[socket.socket]:
    """Stays silent."""
    ours, other = socket.socketpair()
    with ours, other:
        yield ours


@pytest.fixture
def losses() -> list[str]:
    """What `on_lost` was called with."""
    return []


@pytest.fixture
async def lease(
    database_url: str, registered: Registered, losses: list[str]
) -> AsyncIterator[Lease]:
    async with started(database_url, registered, losses) as found:
        yield found


def connection_of(url: str, registered: Registered, **settings: Any) -> LeaseConnection:
    runner_id, slot = registered
    return LeaseConnection(url, runner_id=runner_id, slot=slot, ttl_s=TTL_S, **settings)


@asynccontextmanager
async def started(
    url: str, registered: Registered, losses: list[str], **settings: Any
) -> AsyncIterator[Lease]:
    """A lease that renews, until it is lost or the block ends."""
    runner_id, slot = registered
    defaults: dict[str, Any] = {"ttl_s": TTL_S, "renew_interval_s": 0.1, "death_notice": "lock"}
    lease = Lease(
        database_url=url,
        runner_id=runner_id,
        slot=slot,
        on_lost=losses.append,
        **(defaults | settings),
    )
    lease.start()
    try:
        yield lease
    finally:
        await lease.stop()


async def is_held(lease: Lease) -> bool:
    return lease.held


# --- the session


def test_only_one_session_at_a_time_has_the_lock(
    database_url: str, registered: Registered, session: LeaseConnection
) -> None:
    assert session.lock()
    second = connection_of(database_url, registered)
    second.connect()
    assert not second.lock()
    session.close()
    while not second.lock():  # until the server has seen the end
        pass
    second.close()


async def test_a_renewal_takes_back_a_free_lock_only_with_the_lock(
    registered: Registered, session: LeaseConnection, seen: Witness
) -> None:
    await seen.execute("UPDATE runners SET lost_at = now()")
    assert session.renew()
    assert (await seen.runner(registered[0]))["lost_at"] is not None
    assert session.lock()
    assert session.renew()
    assert (await seen.runner(registered[0]))["lost_at"] is None


async def test_a_lease_without_a_lock_is_marked_so_that_no_free_lock_counts(
    database_url: str, registered: Registered, seen: Witness
) -> None:
    session = connection_of(database_url, registered, locking=False)
    session.connect()
    assert session.renew()
    session.close()
    assert (await seen.runner(registered[0]))["lost_at"].year == 9999


async def test_another_backend_in_a_locked_session_means_a_pooler_and_ends_locking(
    registered: Registered, session: LeaseConnection, seen: Witness
) -> None:
    assert session.lock()
    session._locked_by = -1  # as if the lock had been taken through another backend
    assert session.renew()
    assert (session.locking, session.locked) == (False, False)
    assert (await seen.runner(registered[0]))["lost_at"].year == 9999


async def test_a_dead_runner_cannot_renew(session: LeaseConnection, seen: Witness) -> None:
    await seen.execute("UPDATE runners SET dead_at = now()")
    assert not session.renew()


async def test_a_renewal_does_not_wait_the_lease_away_behind_a_row_lock(
    database_url: str, session: LeaseConnection
) -> None:
    """A reaper that stands still must not stop its living neighbours from trying."""
    assert session.lock()
    database = Database(database_url, application_name="reaper", pool_size=1)
    async with database.begin() as standing_still:
        await standing_still.rows("SELECT 1 FROM runners FOR UPDATE")
        with pytest.raises(Unavailable):
            await asyncio.to_thread(session.renew)
    await database.aclose()
    assert (session.is_open, session.locked) == (True, True)
    assert session.renew()


async def test_the_end_of_the_session_is_noticed_while_nothing_is_asked(
    registered: Registered, session: LeaseConnection, seen: Witness, waker: socket.socket
) -> None:
    assert session.lock()
    pid = await seen.lock_pid(registered[1])
    assert pid is not None
    await seen.terminate(pid)

    def listen_to_the_end() -> None:
        while True:  # the server's last words, then the end
            session.wait(30.0, waker)

    with pytest.raises(Unavailable):
        await asyncio.to_thread(listen_to_the_end)
    assert (session.is_open, session.locked) == (False, False)


async def test_a_message_of_the_server_is_not_taken_for_the_end_of_the_session(
    registered: Registered, session: LeaseConnection, seen: Witness, waker: socket.socket
) -> None:
    assert session.lock()
    assert session._connection is not None
    session._connection.execute("LISTEN anything")
    await seen.execute("NOTIFY anything")
    await asyncio.to_thread(session.wait, 30.0, waker)
    assert (session.is_open, session.renew()) == (True, True)


def test_both_sides_give_up_a_silent_session_before_the_lease_is_over(
    session: LeaseConnection,
) -> None:
    names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count")
    asked = ", ".join(f"current_setting('{n}')" for n in (*names, "tcp_user_timeout"))
    assert session._ask(f"SELECT {asked}") == ("2", "1", "3", str(SILENCE_MS))
    assert session._connection is not None
    ours = session._connection.info.get_parameters()
    assert ours["tcp_user_timeout"] == str(SILENCE_MS)


def test_options_of_the_url_are_kept(database_url: str, registered: Registered) -> None:
    session = connection_of(f"{database_url}?options=-c%20work_mem%3D5MB", registered)
    session.connect()
    shown = session._ask("SELECT current_setting('work_mem'), current_setting('tcp_user_timeout')")
    session.close()
    assert shown == ("5MB", str(SILENCE_MS))


def test_a_pooler_that_refuses_session_settings_is_named(registered: Registered) -> None:
    with refusing_pooler() as port:
        url = f"postgresql://u:p@127.0.0.1:{port}/d?sslmode=disable&gssencmode=disable"
        with pytest.raises(Misconfigured, match="STEADYRUN_DEATH_NOTICE=lease"):
            connection_of(url, registered).connect()


@contextmanager
def refusing_pooler() -> Iterator[int]:
    """Answers the first startup packet as PgBouncer does when it gets `options`."""
    fields = b"SFATAL\0C08P01\0Munsupported startup parameter: options\0\0"
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client, _ = server.accept()
            with client:
                client.recv(4096)
                client.sendall(b"E" + (len(fields) + 4).to_bytes(4) + fields)

        thread = threading.Thread(target=answer)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


# --- the lease


async def test_a_started_lease_is_held_locked_and_renewed(
    lease: Lease, registered: Registered, seen: Witness
) -> None:
    await until(lambda: is_held(lease))
    assert await seen.lock_pid(registered[1]) is not None
    assert await seen.sessions(registered[0]) == 1
    first, until_first = lease.deadline, (await seen.runner(registered[0]))["lease_until"]

    async def is_renewed() -> bool:
        row = await seen.runner(registered[0])
        return lease.deadline > first and row["lease_until"] > until_first

    assert await until(is_renewed)


async def test_the_deadline_counts_from_before_a_slow_renewal_was_sent(
    database_url: str, registered: Registered, losses: list[str]
) -> None:
    """The database may have counted from the first moment on."""
    async with (
        Proxy(database_url) as network,
        started(network.url, registered, losses) as lease,
    ):
        await until(lambda: is_held(lease))
        network.delay_s = 0.5
        for _ in range(2):  # the second of them was sent and answered at that pace
            await until(partial(is_renewed_since, lease, lease.deadline))
        assert lease.deadline - time.monotonic() <= TTL_S - MARGIN_S - 2 * network.delay_s


async def is_renewed_since(lease: Lease, deadline: float) -> bool:
    return lease.deadline > deadline


async def test_a_released_lease_leaves_nothing_to_wait_for(
    database_url: str, registered: Registered, losses: list[str], seen: Witness
) -> None:
    async with started(database_url, registered, losses) as lease:
        watching = asyncio.create_task(lease.watch())
        await until(lambda: is_held(lease))
    assert await watching is None
    assert not lease.held
    assert await seen.is_dead(registered[0])
    assert await seen.lock_pid(registered[1]) is None
    assert losses == []


async def test_a_runner_that_was_declared_dead_learns_it_by_its_next_renewal(
    lease: Lease, losses: list[str], seen: Witness
) -> None:
    """The local deadline, the other defence, is a minute away."""
    await until(lambda: is_held(lease))
    await seen.execute("UPDATE runners SET dead_at = now()")
    assert await lease.watch() == DECLARED_DEAD
    assert losses == [DECLARED_DEAD]
    assert not lease.held


async def test_a_terminated_session_is_followed_by_another_with_the_lock_and_a_renewal(
    database_url: str, registered: Registered, losses: list[str], seen: Witness
) -> None:
    """At once: the next renewal in turn would come in minutes."""
    patient = {"ttl_s": 600.0, "renew_interval_s": 250.0}
    async with started(database_url, registered, losses, **patient) as lease:
        await until(lambda: is_held(lease))
        pid = await seen.lock_pid(registered[1])
        assert pid is not None
        await seen.execute("UPDATE runners SET lost_at = now()")
        await seen.terminate(pid)

        async def is_back() -> bool:
            row = await seen.runner(registered[0])
            return await seen.lock_pid(registered[1]) not in (None, pid) and row["lost_at"] is None

        assert await until(is_back)
        assert (lease.held, losses) == (True, [])


async def test_a_lease_without_a_lock_is_renewed_all_the_same(
    database_url: str, registered: Registered, losses: list[str], seen: Witness
) -> None:
    async with started(database_url, registered, losses, death_notice="lease") as lease:
        await until(lambda: is_held(lease))
        assert await seen.lock_pid(registered[1]) is None


async def test_a_lease_that_never_reaches_postgres_is_lost_and_was_never_held(
    registered: Registered, losses: list[str]
) -> None:
    nobody = f"postgresql://u:p@127.0.0.1:{free_port()}/d"
    async with started(nobody, registered, losses, ttl_s=0.5) as lease:
        assert await lease.watch() == NOT_RENEWED
        assert losses == [NOT_RENEWED]
        assert lease.deadline == float("-inf")
