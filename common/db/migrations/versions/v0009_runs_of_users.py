"""How many runs of a user are under way, counted so that no two creations count the same.

Revision ID: 0009
Revises: 0008

A function, since it has to see what was committed while it waited for the lock: each statement in
one that is volatile has a snapshot of its own, where a single statement has one from before.
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_SCHEMA = """
CREATE INDEX runs_of_user ON runs (user_id) WHERE status IN ('queued', 'running');

CREATE FUNCTION has_room_for_run(of_user text, most int, instead_of text) RETURNS boolean
    LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('runs of ' || of_user, 0));
    RETURN (SELECT count(*) FROM runs
             WHERE user_id = of_user AND status IN ('queued', 'running')
               AND conversation_id IS DISTINCT FROM instead_of) < most;
END $$;
"""


def upgrade() -> None:
    op.execute(_SCHEMA)
