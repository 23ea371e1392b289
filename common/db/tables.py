"""The schema as SQLAlchemy Core metadata: what the migrations must lead to (a test compares both).

Every id is text under COLLATE "C", every moment is the database's clock, and what must always hold
is a CHECK or a unique index here, so that no code path can break it:

* one active run a conversation: `runs_one_active` (those that wait behind it are `waiting`);
* a runner holds a run exactly while it is `running`; `failed`, `cancelled` and the terminal
  statuses carry their error, reason and time, no other does (contract §2);
* numbers of a running run are reserved before they are used (design §3).

`runs.executed_s` is what the run was executed for before its present owner (`claimed_at`) took it;
waiting for a person and in the queue do not count. After `overdue_at` any reaper takes it away.

`runs.followed` says that at least one run waits behind this one. Whoever enqueues sets it on the
active run's row; whoever ends that run reads it with the same UPDATE and promotes the next.
"""

from typing import get_args

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from common.db.rules import IS_ACTIVE, IS_TERMINAL, one_of
from common.facts import STORED_BYTES_MAX
from common.runs import (
    INTERRUPT_STATUSES,
    STATUSES,
    CancelReason,
    InterruptType,
    OnDisconnect,
    ResumeReason,
)

metadata = MetaData()

_NOW = text("clock_timestamp()")
_EMPTY_OBJECT = text("'{}'::jsonb")
_EMPTY_LIST = text("'[]'::jsonb")


def _id(name: str, *rest: ForeignKey, primary_key: bool = False, null: bool = False) -> Column[str]:
    return Column(name, Text(collation="C"), *rest, primary_key=primary_key, nullable=null)


def _moment(name: str, *, null: bool = False) -> Column[object]:
    default = None if null else _NOW
    return Column(name, DateTime(timezone=True), nullable=null, server_default=default)


def _conversation() -> Column[str]:
    return _id("conversation_id", ForeignKey("conversations.id", ondelete="CASCADE"))


def _run(*, primary_key: bool = False) -> Column[str]:
    return _id("run_id", ForeignKey("runs.id", ondelete="CASCADE"), primary_key=primary_key)


conversations = Table(
    "conversations",
    metadata,
    _id("id", primary_key=True),
    Column("user_id", Text(collation="C"), nullable=False),
    Column("title", Text, nullable=False),
    Column("graph", Text, nullable=False),
    Column("facts", JSONB, nullable=False, server_default=_EMPTY_OBJECT),
    Column("facts_version", Integer, nullable=False, server_default=text("1")),
    Column("summary", Text),
    Column("session", Boolean, nullable=False, server_default=text("false")),
    _moment("created_at"),
    _moment("updated_at"),
    _moment("pruned_at", null=True),
    Column("summary_covers", Text),
    _id("summary_run_id", null=True),
    CheckConstraint("jsonb_typeof(facts) = 'object'", name="conversations_facts_object"),
    CheckConstraint("facts_version >= 1", name="conversations_facts_version"),
    CheckConstraint(
        f"octet_length(facts::text) <= {STORED_BYTES_MAX}", name="conversations_facts_bounded"
    ),
)
Index("conversations_of_user", "user_id", conversations.c.updated_at.desc(), text("id DESC"))
Index(
    "conversations_to_prune",
    "updated_at",
    postgresql_where=text("pruned_at IS NULL OR pruned_at < updated_at"),
    _table=conversations,
)
# the session facade: one active session a user (contract §6)
Index(
    "conversations_one_session",
    "user_id",
    unique=True,
    postgresql_where=text("session"),
    _table=conversations,
)

messages = Table(
    "messages",
    metadata,
    _id("id", primary_key=True),
    _conversation(),
    _id("run_id", null=True),
    Column("role", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("tool_call_id", Text),
    Column("tool_name", Text),
    Column("position", BigInteger, Identity(always=True), nullable=False),
    _moment("created_at"),
    CheckConstraint(one_of("role", ("user", "assistant", "tool")), name="messages_role"),
    CheckConstraint("(role = 'tool') = (tool_call_id IS NOT NULL)", name="messages_tool_call"),
    Index("messages_of_conversation", "conversation_id", "position"),
    Index("messages_of_run", "run_id", postgresql_where=text("run_id IS NOT NULL")),
)

runs = Table(
    "runs",
    metadata,
    _id("id", primary_key=True),
    _conversation(),
    Column("user_id", Text(collation="C"), nullable=False),
    _id("user_message_id"),
    Column("graph", Text, nullable=False),
    Column("status", Text, nullable=False, server_default=text("'queued'")),
    Column("waiting", Boolean, nullable=False, server_default=text("false")),
    Column("followed", Boolean, nullable=False, server_default=text("false")),
    Column("epoch", Integer, nullable=False, server_default=text("0")),
    _id("runner_id", null=True),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("resume_reason", Text),
    Column("last_sequence", BigInteger, nullable=False, server_default=text("0")),
    Column("sequence_reserved", BigInteger, nullable=False, server_default=text("0")),
    Column("redis_identity", Text),
    Column("input", JSONB, nullable=False),
    Column("principal", JSONB, nullable=False),
    Column("metadata", JSONB, nullable=False, server_default=_EMPTY_OBJECT),
    Column("on_disconnect", Text, nullable=False),
    Column("cancel_requested", Text),
    Column("next", JSONB, nullable=False, server_default=_EMPTY_LIST),
    Column("output", JSONB),
    _id("message_id", null=True),
    Column("error", JSONB),
    Column("cancel_reason", Text),
    Column("rollback", Boolean, nullable=False, server_default=text("false")),
    Column("position", BigInteger, Identity(always=True), nullable=False),
    _moment("created_at"),
    _moment("queued_at"),
    _moment("started_at", null=True),
    _moment("finished_at", null=True),
    _moment("updated_at"),
    Column("replayable", Boolean, nullable=False, server_default=text("true")),
    Column("paused_at", Text),
    Column("executed_s", Double, nullable=False, server_default=text("0")),
    _moment("claimed_at", null=True),
    _moment("overdue_at", null=True),
    Column("traceparent", Text),
    Column("cancel_requested_by", Text),
    _moment("cancel_requested_at", null=True),
    CheckConstraint(one_of("status", STATUSES), name="runs_status"),
    CheckConstraint("(status = 'running') = (runner_id IS NOT NULL)", name="runs_runner"),
    CheckConstraint(f"({IS_TERMINAL}) = (finished_at IS NOT NULL)", name="runs_finished"),
    CheckConstraint("(status = 'failed') = (error IS NOT NULL)", name="runs_error"),
    CheckConstraint("(status = 'cancelled') = (cancel_reason IS NOT NULL)", name="runs_cancelled"),
    CheckConstraint("status = 'completed' OR output IS NULL", name="runs_output"),
    CheckConstraint("NOT waiting OR (status = 'queued' AND epoch = 0)", name="runs_waiting"),
    CheckConstraint("status <> 'running' OR epoch > 0", name="runs_claimed"),
    CheckConstraint("epoch >= 0 AND attempts >= 0", name="runs_counts"),
    CheckConstraint("last_sequence BETWEEN 0 AND sequence_reserved", name="runs_sequence"),
    CheckConstraint(one_of("resume_reason", get_args(ResumeReason)), name="runs_resume_reason"),
    CheckConstraint(one_of("on_disconnect", get_args(OnDisconnect)), name="runs_on_disconnect"),
    CheckConstraint(
        one_of("cancel_requested", get_args(CancelReason)), name="runs_cancel_requested"
    ),
    CheckConstraint(one_of("cancel_reason", get_args(CancelReason)), name="runs_cancel_reason"),
    Index("runs_of_conversation", "conversation_id", "position"),
    Index("runs_one_active", "conversation_id", unique=True, postgresql_where=text(IS_ACTIVE)),
    Index(
        "runs_to_claim",
        "queued_at",
        postgresql_where=text("status = 'queued' AND NOT waiting"),
    ),
    Index("runs_of_user", "user_id", postgresql_where=text("status IN ('queued', 'running')")),
    Index("runs_ended", "finished_at", postgresql_where=text("finished_at IS NOT NULL")),
    Index(
        "runs_replayable",
        "finished_at",
        postgresql_where=text("replayable AND finished_at IS NOT NULL"),
    ),
    Index(
        "runs_suspect",
        "queued_at",
        postgresql_where=text("status = 'queued' AND NOT waiting AND attempts > 0"),
    ),
    Index("runs_held", "runner_id", postgresql_where=text("runner_id IS NOT NULL")),
    Index(
        "runs_to_cancel",
        "updated_at",
        postgresql_where=text(
            "cancel_requested IS NOT NULL AND status IN ('queued', 'interrupted')"
        ),
    ),
)

interrupts = Table(
    "interrupts",
    metadata,
    _id("id", primary_key=True),
    _run(),
    _conversation(),
    Column("user_id", Text(collation="C"), nullable=False),
    Column("native_id", Text, nullable=False),
    Column("asked", Integer, nullable=False, server_default=text("0")),
    Column("type", Text, nullable=False),
    Column("format", Text, nullable=False),
    Column("status", Text, nullable=False, server_default=text("'pending'")),
    Column("payload", JSONB, nullable=False),
    Column("allowed_decisions", JSONB, nullable=False, server_default=_EMPTY_LIST),
    Column("actions", JSONB, nullable=False, server_default=_EMPTY_LIST),
    Column("required_permission", Text),
    _moment("expires_at", null=True),
    Column("on_reject", Text, nullable=False),
    Column("on_expire", Text, nullable=False),
    Column("resource", JSONB),
    Column("answer_schema", JSONB),
    Column("facts_version", Integer, nullable=False),
    Column("decision", JSONB),
    Column("answer", JSONB),
    Column("resolved_by", Text),
    _moment("resolved_at", null=True),
    Column("told", Boolean, nullable=False, server_default=text("false")),
    Column("taken", Boolean, nullable=False, server_default=text("false")),
    Column("position", BigInteger, Identity(always=True), nullable=False),
    _moment("created_at"),
    UniqueConstraint("run_id", "native_id", "asked", name="interrupts_asked_once"),
    CheckConstraint(one_of("status", INTERRUPT_STATUSES), name="interrupts_status"),
    CheckConstraint(one_of("type", get_args(InterruptType)), name="interrupts_type"),
    CheckConstraint(one_of("on_reject", ("cancel", "continue")), name="interrupts_on_reject"),
    CheckConstraint(one_of("on_expire", ("cancel", "reject")), name="interrupts_on_expire"),
    CheckConstraint("(status = 'pending') = (resolved_at IS NULL)", name="interrupts_resolved"),
    CheckConstraint(
        "answer IS NULL OR status IN ('resolved', 'expired')", name="interrupts_answer"
    ),
    CheckConstraint("NOT told OR status <> 'pending'", name="interrupts_told"),
    CheckConstraint("NOT taken OR answer IS NOT NULL", name="interrupts_taken"),
    Index("interrupts_of_user", "user_id", "status", text("position DESC")),
    Index(
        "interrupts_by_permission",
        "required_permission",
        "status",
        text("position DESC"),
        postgresql_where=text("required_permission IS NOT NULL"),
    ),
    Index("interrupts_of_conversation", "conversation_id"),
    Index("interrupts_to_expire", "expires_at", postgresql_where=text("status = 'pending'")),
)

run_events = Table(
    "run_events",
    metadata,
    _run(primary_key=True),
    Column("last_sequence", BigInteger, primary_key=True),
    Column("after_sequence", BigInteger, nullable=False),
    Column("first_sequence", BigInteger, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("ends", Text, nullable=False),
    Column("frames", LargeBinary, nullable=False),
    _moment("created_at"),
    CheckConstraint(
        "after_sequence >= 0 AND after_sequence < first_sequence"
        " AND first_sequence <= last_sequence",
        name="run_events_order",
    ),
    CheckConstraint(one_of("ends", ("", "pause", "run")), name="run_events_ends"),
    # two batches that follow the same event would be two histories (I1)
    UniqueConstraint("run_id", "after_sequence", name="run_events_no_fork"),
)

runners = Table(
    "runners",
    metadata,
    _id("id", primary_key=True),
    Column("slot", Integer, Identity(always=True), nullable=False, unique=True),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("capacity", Integer, nullable=False),
    Column("draining", Boolean, nullable=False, server_default=text("false")),
    _moment("started_at"),
    _moment("lease_until"),
    _moment("lost_at", null=True),
    _moment("dead_at", null=True),
)
Index("runners_alive", "lease_until", postgresql_where=text("dead_at IS NULL"), _table=runners)

# no foreign key: it is kept for a day only, and nothing is decided by it
takeovers = Table(
    "takeovers",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    _id("run_id"),
    _id("runner_id"),
    Column("epoch", Integer, nullable=False),
    _moment("at"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("user_id", Text(collation="C"), primary_key=True),
    Column("key", Text(collation="C"), primary_key=True),
    Column("fingerprint", LargeBinary, nullable=False),
    Column("response", JSONB),
    _moment("created_at"),
    Index("idempotency_keys_by_age", "created_at"),
)

effects = Table(
    "effects",
    metadata,
    _run(primary_key=True),
    Column("key", Text(collation="C"), primary_key=True),
    Column("epoch", Integer, nullable=False),
    Column("outcome", JSONB),
    _moment("started_at"),
    _moment("finished_at", null=True),
    Column("runner_id", Text),
    Column("decisions", JSONB, nullable=False, server_default=text("'[]'")),
    CheckConstraint("(outcome IS NULL) = (finished_at IS NULL)", name="effects_outcome"),
)
