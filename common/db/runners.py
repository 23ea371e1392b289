"""Runners: one row each, whose lease the database's clock decides (core-facts §1).

A living runner renews `lease_until` and its session holds an advisory lock. A held lock is no sign
of life and a free one no proof of death, so the reaper wants the lease over, or the lock seen free
twice with a grace between, and not just after a start of Postgres, when every lock is free.

The lease's own session is common.db.lease, in a thread of its own; the theory is in runner/lease.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from common.db.engine import Connection
from common.db.statement import Statement

LOCK_CLASS: Final = int.from_bytes(b"Stdy")
"""First half of the advisory lock (class, runners.slot): nobody else's locks look like ours."""


CANCEL_WITHIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Runner:
    """A row of `runners`, and how many runs it holds."""

    id: str
    slot: int
    host: str
    pid: int
    capacity: int
    draining: bool
    started_at: datetime
    lease_until: datetime
    lost_at: datetime | None
    dead_at: datetime | None
    runs: int


@dataclass(frozen=True, slots=True)
class Takeover:
    """A run that was taken off a runner, which held it under `epoch`; and how the run is now."""

    run_id: str
    runner: str
    epoch: int
    at: datetime
    status: str


@dataclass(frozen=True, slots=True)
class Reaped:
    """Runners found dead by this look, and the runs that were handed back to the queue."""

    runners: list[str]
    runs: list[str]


_FIELDS = tuple(Runner.__dataclass_fields__)[:-1]
_COLUMNS = ", ".join(f"r.{field}" for field in _FIELDS)


def application_name(runner_id: str) -> str:
    """Of all connections of a runner, so that `terminate_sessions` finds what it left open."""
    return f"steadyrun:{runner_id}"


async def register(
    connection: Connection, *, id: str, host: str, pid: int, capacity: int, ttl_s: float
) -> int:
    """A runner has a new id at each start. Gives its slot, the number of its advisory lock.

    `lost_at` begins as 'infinity': until the first renewal that holds the lock, a free lock says
    nothing and the lease alone counts.
    """
    return int(
        await _REGISTER.value(connection, id=id, host=host, pid=pid, capacity=capacity, ttl=ttl_s)
    )


async def renew(connection: Connection, runner_id: str, ttl_s: float) -> bool:
    """False: the runner is dead for good; it stops everything and starts under a new id."""
    return await _RENEW.found(connection, id=runner_id, ttl=ttl_s)


async def drain(connection: Connection, runner_id: str) -> None:
    """For the console: it claims nothing any more and hands its runs over."""
    await _DRAIN.rows(connection, id=runner_id)


async def release(connection: Connection, runner_id: str) -> None:
    """The last act of a clean stop. Runs it still held are handed back by any reaper."""
    await _RELEASE.rows(connection, id=runner_id)


async def reap(
    connection: Connection, grace_s: float, ttl_s: float, *, charged: bool = True
) -> Reaped:
    """One look for dead runners, in one idempotent statement that anybody may run at any time.

    Their runs are queued again, reason `failover`, charged as an attempt, unless it was Postgres
    that was away: when it has just started, or when the caller could not look for long (not
    `charged`). A run does not fail because its database did. Rows that a stopped
    process still holds locked are passed over: `terminate_sessions` frees them, the next look takes
    them. The epoch rises with the claim; until then the old owner is the newest and may go on.

    A living runner loses, uncharged, what it should have ended: a run that is overdue, or whose
    cancellation was asked `CANCEL_WITHIN_S` ago. Its event loop may stand still (runner/leftovers).
    """
    rows = await _REAP.rows(
        connection,
        grace=grace_s,
        ttl=ttl_s,
        lock_class=LOCK_CLASS,
        charged=charged,
        cancel_within=CANCEL_WITHIN_S,
    )
    return Reaped(
        runners=[row[1] for row in rows if row[0] == "runner"],
        runs=[row[1] for row in rows if row[0] == "run"],
    )


async def terminate_sessions(connection: Connection) -> int:
    """Ends what dead runners still have open: a stopped process may sit in a transaction."""
    return len(await _TERMINATE.rows(connection))


async def list_all(connection: Connection, dead_for_s: float = 60.0) -> list[Runner]:
    """For the console: the living, and those that died within `dead_for_s`."""
    rows = await _LIST.rows(connection, dead_for=dead_for_s)
    return [Runner(*row) for row in rows]


async def list_takeovers(connection: Connection, most: int = 20) -> list[Takeover]:
    """For the console: runs that were taken off their runner, the newest first."""
    return [Takeover(*row) for row in await _TAKEOVERS.rows(connection, most=most)]


async def count_alive(connection: Connection) -> int:
    """How many share the reaping: each looks less often the more there are."""
    return int(await _COUNT_ALIVE.value(connection))


async def purge(connection: Connection, retention_s: float = 86_400.0) -> int:
    """Forgets runners that died long ago and hold nothing, and what was taken off runners then."""
    await _PURGE_TAKEOVERS.rows(connection, retention=retention_s)
    return len(await _PURGE.rows(connection, retention=retention_s))


_REGISTER = Statement("""
INSERT INTO runners (id, host, pid, capacity, lease_until, lost_at)
VALUES (:id, :host, :pid, :capacity,
        clock_timestamp() + make_interval(secs => :ttl::double precision), 'infinity')
RETURNING slot
""")

_RENEW = Statement("""
UPDATE runners SET lease_until = clock_timestamp() + make_interval(secs => :ttl::double precision),
       lost_at = NULL
 WHERE id = :id AND dead_at IS NULL RETURNING 1
""")

_DRAIN = Statement("UPDATE runners SET draining = true WHERE id = :id")

_RELEASE = Statement("""
UPDATE runners SET dead_at = clock_timestamp() WHERE id = :id AND dead_at IS NULL
""")

_REAP = Statement("""
WITH held AS MATERIALIZED (
    SELECT objid::bigint AS slot FROM pg_locks
     WHERE locktype = 'advisory' AND classid::bigint = :lock_class::bigint
       AND objsubid = 2 AND granted
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())),
lost AS (
    UPDATE runners SET lost_at = clock_timestamp()
     WHERE dead_at IS NULL AND lost_at IS NULL AND lease_until >= clock_timestamp()
       AND slot NOT IN (SELECT slot FROM held)),
dead AS (
    UPDATE runners SET dead_at = clock_timestamp()
     WHERE dead_at IS NULL
       AND (lease_until < clock_timestamp()
            OR (lost_at < clock_timestamp() - make_interval(secs => :grace)
                AND slot NOT IN (SELECT slot FROM held)
                AND pg_postmaster_start_time()
                    < clock_timestamp() - make_interval(secs => :ttl)))
    RETURNING id),
held_runs AS (
    SELECT r.id, r.runner_id, l.lease_until,
           l.id IS NULL OR l.dead_at IS NOT NULL OR l.id IN (SELECT id FROM dead) AS orphaned,
           r.overdue_at < clock_timestamp() OR (r.cancel_requested IS NOT NULL AND
               r.updated_at < clock_timestamp() - make_interval(secs => :cancel_within)) AS late
      FROM runs r LEFT JOIN runners l ON l.id = r.runner_id WHERE r.runner_id IS NOT NULL),
to_hand_back AS MATERIALIZED (
    SELECT r.id, r.runner_id, h.orphaned, least(clock_timestamp(), h.lease_until) AS until
      FROM runs r JOIN held_runs h ON h.id = r.id AND h.runner_id = r.runner_id
     WHERE h.orphaned OR h.late
     ORDER BY r.id FOR NO KEY UPDATE OF r SKIP LOCKED),
handed_back AS (
    UPDATE runs SET status = 'queued', runner_id = NULL, claimed_at = NULL, overdue_at = NULL,
           attempts = attempts + CASE
               WHEN orphaned AND :charged::boolean AND pg_postmaster_start_time()
                    < clock_timestamp() - make_interval(secs => :ttl) THEN 1 ELSE 0 END,
           executed_s = executed_s
               + greatest(0, coalesce(extract(epoch FROM t.until - claimed_at), 0)),
           resume_reason = 'failover', queued_at = clock_timestamp(),
           updated_at = clock_timestamp()
      FROM to_hand_back t WHERE runs.id = t.id AND runs.status = 'running'
    RETURNING runs.id, t.runner_id, runs.epoch),
noted AS (
    INSERT INTO takeovers (run_id, runner_id, epoch) SELECT id, runner_id, epoch FROM handed_back)
SELECT 'runner', id FROM dead UNION ALL SELECT 'run', id FROM handed_back
""")

_TERMINATE = Statement("""
SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a
  JOIN runners r ON a.application_name = 'steadyrun:' || r.id
 WHERE r.dead_at IS NOT NULL AND a.pid <> pg_backend_pid()
   AND a.datname = current_database()
""")

_LIST = Statement(f"""
SELECT {_COLUMNS}, (SELECT count(*) FROM runs WHERE runs.runner_id = r.id)::int FROM runners r
 WHERE r.dead_at IS NULL
    OR r.dead_at > clock_timestamp() - make_interval(secs => :dead_for::double precision)
 ORDER BY r.started_at, r.id
""")

_TAKEOVERS = Statement("""
SELECT t.run_id, coalesce(l.host || ':' || l.pid, t.runner_id), t.epoch, t.at, r.status
  FROM (SELECT * FROM takeovers ORDER BY id DESC LIMIT :most::int) t
  JOIN runs r ON r.id = t.run_id LEFT JOIN runners l ON l.id = t.runner_id
 ORDER BY t.id DESC
""")

_COUNT_ALIVE = Statement("SELECT count(*) FROM runners WHERE dead_at IS NULL")

_PURGE = Statement("""
DELETE FROM runners r
 WHERE r.dead_at < clock_timestamp() - make_interval(secs => :retention::double precision)
   AND NOT EXISTS (SELECT FROM runs WHERE runs.runner_id = r.id)
RETURNING 1
""")

_PURGE_TAKEOVERS = Statement("""
DELETE FROM takeovers
 WHERE at < clock_timestamp() - make_interval(secs => :retention::double precision)
""")
