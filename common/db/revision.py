"""Whether the database has the schema that this program needs; cheap to import at every start.

Migrations expand first and contract later, so a program goes on working on a newer schema: old
gateways and runners may restart while new ones are rolled out (style of `common/db/migrations`).
"""

from common.db.engine import Connection

NEEDED = "0010"
"""The revision whose tables and columns this program uses; revisions are numbers of four digits."""


async def is_ready(connection: Connection) -> bool:
    """Migrated at least to `NEEDED`, with LangGraph's checkpoint tables."""
    there = await connection.value(
        "SELECT to_regclass('alembic_version') IS NOT NULL"
        " AND to_regclass('checkpoint_writes') IS NOT NULL"
    )
    if not there:
        return False
    found = await connection.value("SELECT max(version_num) FROM alembic_version")
    return found is not None and str(found) >= NEEDED
