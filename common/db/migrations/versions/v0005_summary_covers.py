"""What a conversation's summary stands for, and a bound on its facts.

Revision ID: 0005
Revises: 0004
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_SCHEMA = """
ALTER TABLE conversations
    ADD COLUMN summary_covers TEXT,
    ADD COLUMN summary_run_id TEXT COLLATE "C",
    ADD CONSTRAINT conversations_facts_bounded CHECK (octet_length(facts::text) <= 65536);
"""


def upgrade() -> None:
    op.execute(_SCHEMA)
