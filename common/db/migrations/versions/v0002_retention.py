"""What clean-up has to know: whether a run can still be replayed, a thread was pruned.

Revision ID: 0002
Revises: 0001
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_SCHEMA = """
ALTER TABLE runs ADD COLUMN replayable BOOLEAN DEFAULT true NOT NULL;
ALTER TABLE conversations ADD COLUMN pruned_at TIMESTAMP WITH TIME ZONE;
CREATE INDEX runs_ended ON runs (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX runs_replayable ON runs (finished_at) WHERE replayable AND finished_at IS NOT NULL;
CREATE INDEX conversations_to_prune ON conversations (updated_at)
 WHERE pruned_at IS NULL OR pruned_at < updated_at;
"""


def upgrade() -> None:
    op.execute(_SCHEMA)
