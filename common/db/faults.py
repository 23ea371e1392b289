"""What can be done to a Postgres to see whether anybody minds, and when it has been at peace. For
drills on a server of their own: nothing in the product calls this."""

from common.db.engine import Connection
from common.db.statement import Statement


async def cut_sessions(connection: Connection) -> int:
    """Ends every session but this one, as a pooler's restart does; returns how many there were."""
    return len(await _CUT.rows(connection))


async def server_age_s(connection: Connection) -> float:
    """Since the server's start. Within one lease of it, a free lock is no sign of death."""
    return float(await _AGE.value(connection))


_CUT = Statement("""
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
""")

_AGE = Statement("""
SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float8
""")
