"""Everything there is at first.

Revision ID: 0001
Revises: nothing

The text is frozen: common/db/tables.py goes on changing, this page does not.
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_SCHEMA = """
CREATE TABLE conversations (
    id TEXT COLLATE "C" NOT NULL,
    user_id TEXT COLLATE "C" NOT NULL,
    title TEXT NOT NULL,
    graph TEXT NOT NULL,
    facts JSONB DEFAULT '{}'::jsonb NOT NULL,
    facts_version INTEGER DEFAULT 1 NOT NULL,
    summary TEXT,
    session BOOLEAN DEFAULT false NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT conversations_facts_object CHECK (jsonb_typeof(facts) = 'object'),
    CONSTRAINT conversations_facts_version CHECK (facts_version >= 1)
);

CREATE INDEX conversations_of_user ON conversations (user_id, updated_at DESC, id DESC);

CREATE UNIQUE INDEX conversations_one_session ON conversations (user_id) WHERE session;

CREATE TABLE idempotency_keys (
    user_id TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    fingerprint BYTEA NOT NULL,
    response JSONB,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (user_id, key)
);

CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);

CREATE TABLE runners (
    id TEXT COLLATE "C" NOT NULL,
    slot INTEGER GENERATED ALWAYS AS IDENTITY,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    capacity INTEGER NOT NULL,
    draining BOOLEAN DEFAULT false NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    lease_until TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    lost_at TIMESTAMP WITH TIME ZONE,
    dead_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (id),
    UNIQUE (slot)
);

CREATE INDEX runners_alive ON runners (lease_until) WHERE dead_at IS NULL;

CREATE TABLE messages (
    id TEXT COLLATE "C" NOT NULL,
    conversation_id TEXT COLLATE "C" NOT NULL,
    run_id TEXT COLLATE "C",
    role TEXT NOT NULL,
    content TEXT NOT NULL,
    tool_call_id TEXT,
    tool_name TEXT,
    position BIGINT GENERATED ALWAYS AS IDENTITY,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT messages_role CHECK (role IN ('assistant', 'tool', 'user')),
    CONSTRAINT messages_tool_call CHECK ((role = 'tool') = (tool_call_id IS NOT NULL)),
    FOREIGN KEY(conversation_id) REFERENCES conversations (id) ON DELETE CASCADE
);

CREATE INDEX messages_of_conversation ON messages (conversation_id, position);

CREATE INDEX messages_of_run ON messages (run_id) WHERE run_id IS NOT NULL;

CREATE TABLE runs (
    id TEXT COLLATE "C" NOT NULL,
    conversation_id TEXT COLLATE "C" NOT NULL,
    user_id TEXT COLLATE "C" NOT NULL,
    user_message_id TEXT COLLATE "C" NOT NULL,
    graph TEXT NOT NULL,
    status TEXT DEFAULT 'queued' NOT NULL,
    waiting BOOLEAN DEFAULT false NOT NULL,
    followed BOOLEAN DEFAULT false NOT NULL,
    epoch INTEGER DEFAULT 0 NOT NULL,
    runner_id TEXT COLLATE "C",
    attempts INTEGER DEFAULT 0 NOT NULL,
    resume_reason TEXT,
    last_sequence BIGINT DEFAULT 0 NOT NULL,
    sequence_reserved BIGINT DEFAULT 0 NOT NULL,
    redis_identity TEXT,
    input JSONB NOT NULL,
    principal JSONB NOT NULL,
    metadata JSONB DEFAULT '{}'::jsonb NOT NULL,
    on_disconnect TEXT NOT NULL,
    cancel_requested TEXT,
    next JSONB DEFAULT '[]'::jsonb NOT NULL,
    output JSONB,
    message_id TEXT COLLATE "C",
    error JSONB,
    cancel_reason TEXT,
    rollback BOOLEAN DEFAULT false NOT NULL,
    position BIGINT GENERATED ALWAYS AS IDENTITY,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    queued_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE,
    finished_at TIMESTAMP WITH TIME ZONE,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT runs_status
        CHECK (status IN ('cancelled', 'completed', 'failed', 'interrupted', 'queued', 'running')),
    CONSTRAINT runs_runner CHECK ((status = 'running') = (runner_id IS NOT NULL)),
    CONSTRAINT runs_finished
        CHECK ((status IN ('cancelled', 'completed', 'failed')) = (finished_at IS NOT NULL)),
    CONSTRAINT runs_error CHECK ((status = 'failed') = (error IS NOT NULL)),
    CONSTRAINT runs_cancelled CHECK ((status = 'cancelled') = (cancel_reason IS NOT NULL)),
    CONSTRAINT runs_output CHECK (status = 'completed' OR output IS NULL),
    CONSTRAINT runs_waiting CHECK (NOT waiting OR (status = 'queued' AND epoch = 0)),
    CONSTRAINT runs_claimed CHECK (status <> 'running' OR epoch > 0),
    CONSTRAINT runs_counts CHECK (epoch >= 0 AND attempts >= 0),
    CONSTRAINT runs_sequence CHECK (last_sequence BETWEEN 0 AND sequence_reserved),
    CONSTRAINT runs_resume_reason
        CHECK (resume_reason IN ('continue', 'decision', 'failover', 'handover')),
    CONSTRAINT runs_on_disconnect CHECK (on_disconnect IN ('cancel', 'continue')),
    CONSTRAINT runs_cancel_requested
        CHECK (cancel_requested IN ('disconnected', 'expired', 'rejected', 'superseded', 'user')),
    CONSTRAINT runs_cancel_reason
        CHECK (cancel_reason IN ('disconnected', 'expired', 'rejected', 'superseded', 'user')),
    FOREIGN KEY(conversation_id) REFERENCES conversations (id) ON DELETE CASCADE
);

CREATE INDEX runs_held ON runs (runner_id) WHERE runner_id IS NOT NULL;

CREATE INDEX runs_of_conversation ON runs (conversation_id, position);

CREATE UNIQUE INDEX runs_one_active ON runs (conversation_id)
    WHERE status IN ('interrupted', 'queued', 'running') AND NOT waiting;

CREATE INDEX runs_to_cancel ON runs (updated_at)
    WHERE cancel_requested IS NOT NULL AND status IN ('queued', 'interrupted');

CREATE INDEX runs_to_claim ON runs (queued_at) WHERE status = 'queued' AND NOT waiting;

CREATE TABLE effects (
    run_id TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    epoch INTEGER NOT NULL,
    outcome JSONB,
    started_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (run_id, key),
    CONSTRAINT effects_outcome CHECK ((outcome IS NULL) = (finished_at IS NULL)),
    FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);

CREATE TABLE interrupts (
    id TEXT COLLATE "C" NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL,
    conversation_id TEXT COLLATE "C" NOT NULL,
    user_id TEXT COLLATE "C" NOT NULL,
    native_id TEXT NOT NULL,
    asked INTEGER DEFAULT 0 NOT NULL,
    type TEXT NOT NULL,
    format TEXT NOT NULL,
    status TEXT DEFAULT 'pending' NOT NULL,
    payload JSONB NOT NULL,
    allowed_decisions JSONB DEFAULT '[]'::jsonb NOT NULL,
    actions JSONB DEFAULT '[]'::jsonb NOT NULL,
    required_permission TEXT,
    expires_at TIMESTAMP WITH TIME ZONE,
    on_reject TEXT NOT NULL,
    on_expire TEXT NOT NULL,
    resource JSONB,
    answer_schema JSONB,
    facts_version INTEGER NOT NULL,
    decision JSONB,
    answer JSONB,
    resolved_by TEXT,
    resolved_at TIMESTAMP WITH TIME ZONE,
    told BOOLEAN DEFAULT false NOT NULL,
    taken BOOLEAN DEFAULT false NOT NULL,
    position BIGINT GENERATED ALWAYS AS IDENTITY,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT interrupts_asked_once UNIQUE (run_id, native_id, asked),
    CONSTRAINT interrupts_status CHECK (status IN ('cancelled', 'expired', 'pending', 'resolved')),
    CONSTRAINT interrupts_type CHECK (type IN ('confirm_action', 'provide_input', 'select_option')),
    CONSTRAINT interrupts_on_reject CHECK (on_reject IN ('cancel', 'continue')),
    CONSTRAINT interrupts_on_expire CHECK (on_expire IN ('cancel', 'reject')),
    CONSTRAINT interrupts_resolved CHECK ((status = 'pending') = (resolved_at IS NULL)),
    CONSTRAINT interrupts_answer CHECK (answer IS NULL OR status IN ('resolved', 'expired')),
    CONSTRAINT interrupts_told CHECK (NOT told OR status <> 'pending'),
    CONSTRAINT interrupts_taken CHECK (NOT taken OR answer IS NOT NULL),
    FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE,
    FOREIGN KEY(conversation_id) REFERENCES conversations (id) ON DELETE CASCADE
);

CREATE INDEX interrupts_by_permission ON interrupts (required_permission, status, position DESC)
    WHERE required_permission IS NOT NULL;

CREATE INDEX interrupts_of_conversation ON interrupts (conversation_id);

CREATE INDEX interrupts_of_user ON interrupts (user_id, status, position DESC);

CREATE INDEX interrupts_to_expire ON interrupts (expires_at) WHERE status = 'pending';

CREATE TABLE run_events (
    run_id TEXT COLLATE "C" NOT NULL,
    last_sequence BIGINT NOT NULL,
    after_sequence BIGINT NOT NULL,
    first_sequence BIGINT NOT NULL,
    epoch INTEGER NOT NULL,
    ends TEXT NOT NULL,
    frames BYTEA NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (run_id, last_sequence),
    CONSTRAINT run_events_order
        CHECK (after_sequence >= 0 AND after_sequence < first_sequence
        AND first_sequence <= last_sequence),
    CONSTRAINT run_events_ends CHECK (ends IN ('', 'pause', 'run')),
    CONSTRAINT run_events_no_fork UNIQUE (run_id, after_sequence),
    FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
"""


def upgrade() -> None:
    op.execute(_SCHEMA)
