"""The statements of common.db.runs, in the order of their functions.

`COLUMNS` are the fields of `runs.Run`, in its order: rows become objects by position.
"""

from common.db.rules import IS_ACTIVE
from common.db.statement import Statement

_FIELDS = [
    "id",
    "conversation_id",
    "user_id",
    "user_message_id",
    "graph",
    "status",
    "waiting",
    "epoch",
    "runner_id",
    "attempts",
    "resume_reason",
    "last_sequence",
    "sequence_reserved",
    "redis_identity",
    "input",
    "principal",
    "metadata",
    "on_disconnect",
    "cancel_requested",
    "next",
    "output",
    "message_id",
    "error",
    "cancel_reason",
    "rollback",
    "created_at",
    "queued_at",
    "started_at",
    "finished_at",
    "updated_at",
    "replayable",
    "paused_at",
    "executed_s",
    "traceparent",
    "cancel_requested_by",
    "cancel_requested_at",
]
COLUMNS = ", ".join(_FIELDS)
_COLUMNS_OF_R = ", ".join(f"r.{field}" for field in _FIELDS)

_INSERT_RUN = f"""
run AS (
    INSERT INTO runs (id, conversation_id, user_id, user_message_id, graph, input, principal,
                      metadata, on_disconnect, waiting, traceparent)
    SELECT :id, :conversation, :user, :message, :graph, :input::jsonb, :principal::jsonb,
           :metadata::jsonb, :on_disconnect, {{waiting}}, :traceparent
    ON CONFLICT (conversation_id) WHERE {IS_ACTIVE} DO NOTHING
    RETURNING {COLUMNS}),
message AS (
    INSERT INTO messages (id, conversation_id, run_id, role, content)
    SELECT :message, :conversation, run.id, 'user', :content FROM run),
touched AS (
    UPDATE conversations SET updated_at = clock_timestamp()
     WHERE id = :conversation AND EXISTS (SELECT FROM run))
SELECT {COLUMNS} FROM run
"""

CREATE = Statement("WITH" + _INSERT_RUN.format(waiting="false"))

ENQUEUE = Statement(
    f"""
WITH active AS (
    UPDATE runs SET followed = true, updated_at = clock_timestamp()
     WHERE conversation_id = :conversation AND {IS_ACTIVE}
    RETURNING id),"""
    + _INSERT_RUN.format(waiting="EXISTS (SELECT FROM active)")
)

LOCK_ACTIVE = Statement(f"""
SELECT id FROM runs WHERE conversation_id = :conversation AND {IS_ACTIVE} FOR NO KEY UPDATE
""")

# the first request counts: its reason, who made it and when
_CANCEL_REQUESTED = """cancel_requested = coalesce(cancel_requested, {reason}),
       cancel_requested_by = CASE WHEN cancel_requested IS NULL THEN {by}
                                  ELSE cancel_requested_by END,
       cancel_requested_at = CASE WHEN cancel_requested IS NULL THEN clock_timestamp()
                                  ELSE cancel_requested_at END"""

SUPERSEDE = Statement(
    f"""
WITH superseded AS (
    UPDATE runs SET followed = followed OR NOT waiting, rollback = rollback OR :rollback,
           {_CANCEL_REQUESTED.format(reason="'superseded'", by=":user::text")},
           updated_at = clock_timestamp()
     WHERE conversation_id = :conversation AND finished_at IS NULL
    RETURNING waiting),"""
    + _INSERT_RUN.format(waiting="EXISTS (SELECT FROM superseded WHERE NOT waiting)")
)

HAS_ROOM = Statement("""
SELECT has_room_for_run(:user, :most::int, :instead_of)
""")

UNENDED = Statement(f"""
SELECT {COLUMNS} FROM runs WHERE conversation_id = :conversation AND finished_at IS NULL
 ORDER BY position
""")

FIND = Statement(f"SELECT {COLUMNS} FROM runs WHERE id = :id")
LOCK = Statement(f"SELECT {COLUMNS} FROM runs WHERE id = :id FOR NO KEY UPDATE")
TRY_LOCK = Statement(f"SELECT {COLUMNS} FROM runs WHERE id = :id FOR NO KEY UPDATE SKIP LOCKED")
ACTIVE = Statement(
    f"SELECT {COLUMNS} FROM runs WHERE conversation_id = :conversation AND {IS_ACTIVE}"
)
ACTIVE_OF = Statement(
    f"SELECT {COLUMNS} FROM runs"
    f" WHERE conversation_id = ANY(:conversations::text[]) AND {IS_ACTIVE}"
)
GRAPHS_OF = Statement("SELECT id, graph FROM runs WHERE id = ANY(:ids::text[])")
LATEST = Statement(f"""
SELECT {COLUMNS} FROM runs WHERE conversation_id = :conversation ORDER BY position DESC LIMIT 1
""")
COUNT = Statement("SELECT status, count(*) FROM runs GROUP BY status")

# when the present owner lets go of a run, however that comes about
LEFT = """runner_id = NULL, claimed_at = NULL, overdue_at = NULL, executed_s = executed_s
           + greatest(0, coalesce(extract(epoch FROM clock_timestamp() - claimed_at), 0))"""

_CLAIMABLE = """status = 'queued' AND NOT waiting AND graph = ANY(:graphs::text[])
       AND EXISTS (SELECT FROM runners WHERE id = :runner AND dead_at IS NULL AND NOT draining
                                         AND lease_until > clock_timestamp())"""

# `suspect`: one more death fails it, so what kills runners must not share one with the innocent
CLAIM = Statement(f"""
WITH suspect AS MATERIALIZED (
    SELECT id, sequence_reserved, redis_identity FROM runs
     WHERE {_CLAIMABLE} AND attempts > 0 AND attempts = :last_attempt
       AND NOT EXISTS (SELECT FROM runs h WHERE h.runner_id = :runner
                                            AND h.attempts = :last_attempt)
     ORDER BY queued_at LIMIT least(1, :limit::int) FOR NO KEY UPDATE SKIP LOCKED),
innocent AS MATERIALIZED (
    SELECT id, sequence_reserved, redis_identity FROM runs
     WHERE {_CLAIMABLE} AND attempts <> :last_attempt
     ORDER BY queued_at LIMIT :limit::int - (SELECT count(*) FROM suspect)
       FOR NO KEY UPDATE SKIP LOCKED),
picked AS (SELECT * FROM suspect UNION ALL SELECT * FROM innocent),
r AS (
    UPDATE runs SET status = 'running', runner_id = :runner, epoch = runs.epoch + 1,
           started_at = coalesce(runs.started_at, clock_timestamp()),
           updated_at = clock_timestamp(), claimed_at = clock_timestamp(),
           overdue_at = clock_timestamp() + make_interval(secs => :overdue_after
               + (:timeouts::jsonb ->> runs.graph)::double precision
               - least(runs.executed_s, (:timeouts::jsonb ->> runs.graph)::double precision)),
           sequence_reserved = CASE WHEN runs.epoch = 0 THEN :reserve::bigint
                                    ELSE runs.sequence_reserved END,
           redis_identity = CASE WHEN runs.epoch = 0 THEN :identity::text
                                 ELSE runs.redis_identity END
      FROM picked WHERE runs.id = picked.id
    RETURNING runs.*, picked.sequence_reserved AS previous_reserved,
              picked.redis_identity AS previous_identity)
SELECT {_COLUMNS_OF_R},
       coalesce((SELECT max(e.last_sequence) FROM run_events e WHERE e.run_id = r.id), 0),
       r.previous_reserved, r.previous_identity
  FROM r ORDER BY r.queued_at
""")

_HELD = "id = :id AND epoch = :epoch AND status = 'running'"

RESERVE = Statement(f"""
UPDATE runs SET sequence_reserved = greatest(sequence_reserved, :upto) WHERE {_HELD} RETURNING 1
""")

NOTE = Statement(f"""
UPDATE runs SET redis_identity = :identity, sequence_reserved = greatest(sequence_reserved, :upto)
 WHERE {_HELD} RETURNING 1
""")

HOLD = Statement(f"SELECT 1 FROM runs WHERE {_HELD} FOR NO KEY UPDATE")

FINISH = Statement(f"""
WITH ended AS (
    UPDATE runs SET status = :status, {LEFT}, finished_at = clock_timestamp(),
           updated_at = clock_timestamp(), last_sequence = :last, sequence_reserved = :last,
           message_id = :message, output = :output::jsonb, error = :error::jsonb,
           cancel_reason = :reason, next = '[]'
     WHERE {_HELD} AND (NOT rollback OR :status = 'cancelled')
    RETURNING id, conversation_id, followed, rollback),
closed AS (
    UPDATE interrupts SET status = 'cancelled', resolved_at = clock_timestamp(), told = true
     WHERE run_id = (SELECT id FROM ended) AND status = 'pending'),
touched AS (
    UPDATE conversations SET updated_at = clock_timestamp()
     WHERE id = (SELECT conversation_id FROM ended))
SELECT conversation_id, followed, rollback FROM ended
""")

CANCEL_UNHELD = Statement(f"""
UPDATE runs SET status = 'cancelled', waiting = false, epoch = epoch + 1, cancel_reason = :reason,
       finished_at = clock_timestamp(), updated_at = clock_timestamp(),
       last_sequence = :last, sequence_reserved = :last, next = '[]'
 WHERE id = :id AND epoch = :epoch AND status IN ('queued', 'interrupted')
RETURNING {COLUMNS}, followed
""")

PAUSE = Statement(f"""
UPDATE runs SET status = 'interrupted', {LEFT}, attempts = 0, updated_at = clock_timestamp(),
       last_sequence = :last, sequence_reserved = :last, next = :next::jsonb,
       paused_at = coalesce(:paused_at::text, paused_at)
 WHERE {_HELD} AND cancel_requested IS NULL AND NOT EXISTS (
       SELECT FROM interrupts i WHERE i.run_id = runs.id AND i.answer IS NOT NULL AND NOT i.taken
          AND i.id <> ALL(:given::text[]))
RETURNING 1
""")

REQUEUE = Statement(f"""
UPDATE runs SET status = 'queued', {LEFT}, resume_reason = :reason,
       queued_at = clock_timestamp(), updated_at = clock_timestamp(),
       last_sequence = :last, sequence_reserved = :last
 WHERE {_HELD} RETURNING 1
""")

GIVE_BACK = Statement(f"""
UPDATE runs SET status = 'queued', {LEFT}, resume_reason = 'failover',
       attempts = attempts + :charged::int,
       queued_at = clock_timestamp(), updated_at = clock_timestamp()
 WHERE {_HELD} RETURNING 1
""")

QUEUE_UNHELD = Statement(f"""
UPDATE runs SET status = 'queued', epoch = epoch + 1, resume_reason = :reason,
       queued_at = clock_timestamp(), updated_at = clock_timestamp(), next = '[]',
       last_sequence = :last, sequence_reserved = :last,
       principal = coalesce(:principal::jsonb, principal)
 WHERE id = :id AND epoch = :epoch AND status = 'interrupted'
RETURNING {COLUMNS}
""")

NOTE_PRINCIPAL = Statement("""
UPDATE runs SET principal = :principal::jsonb WHERE id = :id AND finished_at IS NULL
""")

# the first request counts its age from then on: asking again must not postpone it
REQUEST_CANCEL = Statement(f"""
UPDATE runs SET {_CANCEL_REQUESTED.format(reason=":reason", by=":by::text")},
       updated_at = CASE WHEN cancel_requested IS NULL THEN clock_timestamp() ELSE updated_at END
 WHERE id = :id AND finished_at IS NULL RETURNING {COLUMNS}
""")

ABANDON = Statement(f"""
UPDATE runs SET {_CANCEL_REQUESTED.format(reason="'disconnected'", by="NULL")},
       updated_at = clock_timestamp()
  FROM unnest(:ids::text[], :epochs::int[]) AS held (id, epoch)
 WHERE runs.id = held.id AND runs.epoch = held.epoch AND runs.status = 'running'
RETURNING runs.id
""")

OWNED = Statement("SELECT id, epoch, cancel_requested FROM runs WHERE runner_id = :runner")

TO_CANCEL = Statement(f"""
SELECT {COLUMNS} FROM runs
 WHERE cancel_requested IS NOT NULL AND status IN ('queued', 'interrupted')
   AND updated_at < clock_timestamp() - make_interval(secs => :older::double precision)
 ORDER BY updated_at LIMIT :limit
""")

DELETE_MESSAGES = Statement("DELETE FROM messages WHERE run_id = :id")

PROMOTE = Statement("""
UPDATE runs SET waiting = false, queued_at = clock_timestamp(), updated_at = clock_timestamp(),
       followed = EXISTS (SELECT FROM runs w WHERE w.conversation_id = :conversation
                                               AND w.waiting AND w.id <> runs.id)
 WHERE id = (SELECT w.id FROM runs w WHERE w.conversation_id = :conversation AND w.waiting
                                            AND w.cancel_requested IS NULL
              ORDER BY w.position LIMIT 1 FOR NO KEY UPDATE)
RETURNING id
""")
