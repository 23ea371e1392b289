"""The database session that a runner's lease lives on (the theory is in runner/lease.py).

Synchronous psycopg, since it is used by a thread of its own: one that blocks in a driver must not
block the event loop, and a graph that blocks the loop must not stop a renewal. A `LeaseConnection`
belongs to that one thread. No retry happens in here: whatever fails raises `Unavailable`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from selectors import EVENT_READ, DefaultSelector
from socket import socket
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import QueryCanceled

from common.db.runners import LOCK_CLASS
from common.errors import Misconfigured, Unavailable

log = logging.getLogger(__name__)

SILENCE_MS: Final = 4000
"""A peer that acknowledges nothing for so long is gone; well below the default lease of 6 s."""

STATEMENT_LIMIT_MS: Final = 2000
"""A renewal may wait for another session's row lock, but must not wait the lease away."""

_CLIENT_SIDE: Final = {
    "connect_timeout": 2,
    "keepalives": 1,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": SILENCE_MS,
}
# The same for the server's side of this session: else the lock of a machine that was cut off stays
# held for the two hours of the kernel's default (core protocol, step 1).
_SERVER_SIDE: Final = (
    "-c tcp_keepalives_idle=2 -c tcp_keepalives_interval=1 -c tcp_keepalives_count=3"
    f" -c tcp_user_timeout={SILENCE_MS} -c statement_timeout={STATEMENT_LIMIT_MS}"
)

_LOCK: Final = "SELECT pg_try_advisory_lock(%(lock_class)s::int, %(slot)s::int), pg_backend_pid()"

# The database's clock decides (lease_until). `lost_at` is cleared only by whoever holds the lock;
# 'infinity' is the mark of a runner without a lock: a free lock never counts against it.
_RENEW: Final = """
UPDATE runners
SET lease_until = clock_timestamp() + %(ttl_s)s * interval '1 second',
    lost_at = CASE %(lock)s WHEN 'held' THEN NULL WHEN 'none' THEN 'infinity' ELSE lost_at END
WHERE id = %(id)s AND dead_at IS NULL
RETURNING pg_backend_pid()
"""

_RELEASE: Final = """
UPDATE runners SET dead_at = clock_timestamp() WHERE id = %(id)s AND dead_at IS NULL
"""


class LeaseConnection:
    """One session at a time; `connect` begins the next one, which has to lock anew.

    `locking=False` (setting death_notice=lease) takes no lock and sends no session settings, so
    that a transaction pooler may stand between.
    """

    def __init__(
        self, database_url: str, *, runner_id: str, slot: int, ttl_s: float, locking: bool = True
    ) -> None:
        self.locking = locking
        self._parameters = _parameters(database_url, runner_id, locking)
        self._values = {"id": runner_id, "slot": slot, "lock_class": LOCK_CLASS, "ttl_s": ttl_s}
        self._connection: psycopg.Connection[Any] | None = None
        self._locked_by: int | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    @property
    def locked(self) -> bool:
        """The lock was got on this session, which nobody has seen broken since."""
        return self._locked_by is not None

    def connect(self) -> None:
        """A new session, without the lock. Takes at most 2 s for each host of the URL.

        Raises `Misconfigured` when a pooler refuses the session's settings: waiting heals nothing.
        """
        self.close()
        try:
            self._connection = psycopg.connect(**self._parameters)
        except psycopg.Error as error:
            if "unsupported startup parameter" in str(error):
                raise Misconfigured(_POOLER) from error
            raise Unavailable("Postgres") from error

    def lock(self) -> bool:
        """Try to take the lock. False: an older session of ours has not been ended yet."""
        got, pid = self._ask(_LOCK)
        self._locked_by = pid if got else None
        return self.locked

    def renew(self) -> bool:
        """Prolong the lease by its whole length. False: the runner is dead for good."""
        mark = "held" if self.locked else "missing" if self.locking else "none"
        row = self._ask(_RENEW, lock=mark)
        if row is not None and self.locked and row[0] != self._locked_by:
            self._give_up_locking()
            return self.renew()
        return row is not None

    def release(self) -> None:
        """The runner is over, by its own will; nobody has to find it dead. Frees the lock."""
        with self._translated() as connection:
            connection.execute(_RELEASE, self._values)
        self.close()

    def wait(self, timeout_s: float, waker: socket) -> None:
        """Sleep until `waker` is readable or the time is over; raise if the session ends meanwhile.

        A readable socket alone is no proof of a lost session: TLS and reloads of the server's
        configuration send as well. Only the driver can tell.
        """
        with DefaultSelector() as selector:
            selector.register(waker, EVENT_READ)
            if self._connection is not None:
                selector.register(self._connection.fileno(), EVENT_READ, self._connection)
            ready = [key.data for key, _ in selector.select(timeout_s)]
        if any(ready):
            self._listen()

    def close(self) -> None:
        """Ends the session, and with it the lock."""
        self._locked_by = None
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def _ask(self, statement: str, **values: Any) -> Any:
        with self._translated() as connection:
            return connection.execute(statement, self._values | values).fetchone()

    def _listen(self) -> None:
        with self._translated() as connection:
            connection.pgconn.consume_input()
            connection.pgconn.notifies()  # makes the driver take apart what it has read

    @contextmanager
    def _translated(self) -> Iterator[psycopg.Connection[Any]]:
        """The open session, or `Unavailable`. A statement that ran too long leaves it usable."""
        if self._connection is None:
            raise Unavailable("Postgres")
        try:
            yield self._connection
        except psycopg.Error as error:
            if not isinstance(error, QueryCanceled):
                self.close()
            raise Unavailable("Postgres") from error

    def _give_up_locking(self) -> None:
        """Another backend answers than the one that holds the lock: a transaction pooler."""
        log.warning("%s", _POOLER)
        self.locking, self._locked_by = False, None


_POOLER: Final = (
    "a transaction pooler stands before Postgres, where session locks do not hold:"
    " set STEADYRUN_DEATH_NOTICE=lease"
)


def _parameters(database_url: str, runner_id: str, locking: bool) -> dict[str, Any]:
    given = conninfo_to_dict(database_url)
    ours: dict[str, Any] = _CLIENT_SIDE | {"application_name": f"steadyrun:{runner_id}"}
    if locking:
        ours["options"] = f"{given.get('options', '')} {_SERVER_SIDE}".strip()
    return given | ours | {"autocommit": True, "prepare_threshold": None}
