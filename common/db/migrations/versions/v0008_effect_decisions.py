"""Who began a guarded effect, and what people have said of it.

Revision ID: 0008
Revises: 0007
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_SCHEMA = """
ALTER TABLE effects
    ADD COLUMN runner_id TEXT,
    ADD COLUMN decisions JSONB DEFAULT '[]' NOT NULL;
"""


def upgrade() -> None:
    op.execute(_SCHEMA)


def downgrade() -> None:
    op.execute("ALTER TABLE effects DROP COLUMN runner_id, DROP COLUMN decisions")
