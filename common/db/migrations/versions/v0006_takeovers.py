"""Which runs were taken off which runner, for those who look after the system.

Revision ID: 0006
Revises: 0005
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_SCHEMA = """
CREATE TABLE takeovers (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id TEXT COLLATE "C" NOT NULL,
    runner_id TEXT COLLATE "C" NOT NULL,
    epoch INTEGER NOT NULL,
    at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL
);
"""


def upgrade() -> None:
    op.execute(_SCHEMA)


def downgrade() -> None:
    op.execute("DROP TABLE takeovers")
