"""Where a run was paused last, so that a takeover knows whether a breakpoint was passed.

Revision ID: 0003
Revises: 0002
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE runs ADD COLUMN paused_at TEXT")


def downgrade() -> None:
    op.execute("ALTER TABLE runs DROP COLUMN paused_at")
