"""How long a run has been executed, and until when its present owner may.

Revision ID: 0004
Revises: 0003
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_SCHEMA = """
ALTER TABLE runs
    ADD COLUMN executed_s DOUBLE PRECISION DEFAULT 0 NOT NULL,
    ADD COLUMN claimed_at TIMESTAMP WITH TIME ZONE,
    ADD COLUMN overdue_at TIMESTAMP WITH TIME ZONE;

CREATE INDEX runs_suspect ON runs (queued_at)
    WHERE status = 'queued' AND NOT waiting AND attempts > 0;
"""


def upgrade() -> None:
    op.execute(_SCHEMA)
