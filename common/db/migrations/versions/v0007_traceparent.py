"""The trace that a run belongs to.

Revision ID: 0007
Revises: 0006
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_SCHEMA = """
ALTER TABLE runs ADD COLUMN traceparent TEXT;
"""


def upgrade() -> None:
    op.execute(_SCHEMA)
