"""Who asked for a run's cancellation, and when.

Revision ID: 0010
Revises: 0009

Null for what nobody asked for (expired, disconnected), and where a program from before this
revision stored the request.
"""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_SCHEMA = """
ALTER TABLE runs ADD COLUMN cancel_requested_by TEXT,
                 ADD COLUMN cancel_requested_at TIMESTAMPTZ;
"""


def upgrade() -> None:
    op.execute(_SCHEMA)
