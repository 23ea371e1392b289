"""What Postgres says of all runs at once, for metrics and console: cheap, by partial indexes only.

Ended runs are counted for a while only: they stay for ever, and a count would read them all.
"""

from dataclasses import dataclass

from common.db.engine import Connection
from common.db.rules import IS_ACTIVE
from common.db.statement import Statement


@dataclass(frozen=True, slots=True)
class Fleet:
    """One look. Ages are seconds by the database's clock, 0 where there is nothing."""

    queued: int
    running: int
    interrupted: int
    overdue: int
    queue_oldest_s: float
    pending: int
    pending_oldest_s: float
    runners: int
    draining: int
    places: int


async def look(connection: Connection) -> Fleet:
    row = await _LOOK.row(connection)
    assert row is not None  # aggregates always give a row
    return Fleet(*row)


async def count_ended(connection: Connection, within_s: float, most: int) -> dict[str, int]:
    """Runs that ended lately, by status; no more than `most` are looked at."""
    rows = await _ENDED.rows(connection, within=within_s, most=most)
    return {status: int(number) for status, number in rows}


_LOOK = Statement(f"""
WITH active AS (
    SELECT count(*) FILTER (WHERE status = 'queued') AS queued,
           count(*) FILTER (WHERE status = 'running') AS running,
           count(*) FILTER (WHERE status = 'interrupted') AS interrupted,
           count(*) FILTER (WHERE overdue_at < clock_timestamp()) AS overdue,
           min(queued_at) FILTER (WHERE status = 'queued') AS oldest
      FROM runs WHERE {IS_ACTIVE}),
asked AS (
    SELECT count(*) AS pending, min(created_at) AS oldest FROM interrupts
     WHERE status = 'pending'),
living AS (
    SELECT count(*) FILTER (WHERE NOT draining) AS runners,
           count(*) FILTER (WHERE draining) AS draining,
           coalesce(sum(capacity) FILTER (WHERE NOT draining), 0)::bigint AS places
      FROM runners WHERE dead_at IS NULL AND lease_until > clock_timestamp())
SELECT active.queued, active.running, active.interrupted, active.overdue,
       coalesce(greatest(0, extract(epoch FROM clock_timestamp() - active.oldest)), 0)::float8,
       asked.pending,
       coalesce(greatest(0, extract(epoch FROM clock_timestamp() - asked.oldest)), 0)::float8,
       living.runners, living.draining, living.places
  FROM active, asked, living
""")

_ENDED = Statement("""
SELECT status, count(*) FROM (
    SELECT status FROM runs
     WHERE finished_at > clock_timestamp() - make_interval(secs => :within::double precision)
     LIMIT :most::int) ended
 GROUP BY status
""")
