"""The statements of common.db.interrupts, in the order of their functions.

`COLUMNS` are the fields of `interrupts.Interrupt`, in its order: rows become objects by position.
"""

from common.db.statement import Statement

_FIELDS = [
    "id",
    "run_id",
    "conversation_id",
    "user_id",
    "native_id",
    "asked",
    "type",
    "format",
    "status",
    "payload",
    "allowed_decisions",
    "actions",
    "required_permission",
    "expires_at",
    "on_reject",
    "on_expire",
    "resource",
    "answer_schema",
    "facts_version",
    "decision",
    "answer",
    "resolved_by",
    "resolved_at",
    "told",
    "taken",
    "position",
    "created_at",
]
COLUMNS = ", ".join(_FIELDS)

INSERT = Statement(f"""
WITH held AS (
    SELECT id, conversation_id, user_id FROM runs
     WHERE id = :run AND epoch = :epoch AND status = 'running' FOR SHARE)
INSERT INTO interrupts (
       id, run_id, conversation_id, user_id, native_id, asked, type, format, payload,
       allowed_decisions, actions, on_reject, on_expire, required_permission, expires_at,
       resource, answer_schema, facts_version)
SELECT n ->> 'id', held.id, held.conversation_id, held.user_id, n ->> 'native_id',
       (n ->> 'asked')::int, n ->> 'type', n ->> 'format', n -> 'payload',
       n -> 'allowed_decisions', n -> 'actions', n ->> 'on_reject', n ->> 'on_expire',
       n ->> 'required_permission',
       (n ->> 'expires_at')::timestamptz,
       nullif(n -> 'resource', 'null'), nullif(n -> 'answer_schema', 'null'),
       (SELECT facts_version FROM conversations WHERE id = held.conversation_id)
  FROM held, jsonb_array_elements(:new::jsonb) WITH ORDINALITY AS e(n, place)
 ORDER BY place
ON CONFLICT (run_id, native_id, asked) DO UPDATE SET native_id = EXCLUDED.native_id
RETURNING {COLUMNS}
""")

OF_RUN = Statement(f"""
SELECT {COLUMNS} FROM interrupts
 WHERE run_id = :run AND (:status::text IS NULL OR status = :status::text) ORDER BY position
""")

PENDING_OF = Statement(f"""
SELECT {COLUMNS} FROM interrupts
 WHERE run_id = ANY(:runs::text[]) AND status = 'pending' ORDER BY position
""")

UNTAKEN = Statement(f"""
SELECT {COLUMNS} FROM interrupts
 WHERE run_id = :run AND answer IS NOT NULL AND NOT taken ORDER BY position
""")

UNTOLD = Statement(f"""
SELECT {COLUMNS} FROM interrupts
 WHERE run_id = :run AND status <> 'pending' AND NOT told ORDER BY resolved_at, position
""")

NOW = Statement("SELECT clock_timestamp()")

FIND = Statement(f"SELECT {COLUMNS} FROM interrupts WHERE id = :id")

INBOX = Statement(f"""
SELECT {COLUMNS} FROM interrupts
 WHERE status = :status AND (:position::bigint IS NULL OR position < :position::bigint)
   AND (required_permission = ANY(:permissions::text[])
        OR (required_permission IS NULL AND user_id = :user))
 ORDER BY position DESC LIMIT :limit
""")

DECIDE = Statement(f"""
UPDATE interrupts SET status = :status, decision = :decision::jsonb, answer = :answer::jsonb,
       resolved_by = :by, resolved_at = clock_timestamp()
 WHERE id = :id AND status = 'pending'
   AND (:status::text <> 'resolved' OR expires_at IS NULL OR expires_at > clock_timestamp())
   AND (:facts_version::int IS NULL OR :facts_version::int = (
        SELECT facts_version FROM conversations WHERE conversations.id = conversation_id))
RETURNING {COLUMNS}
""")

CANCEL_PENDING = Statement(f"""
UPDATE interrupts SET status = 'cancelled', resolved_at = clock_timestamp()
 WHERE run_id = :run AND status = 'pending' RETURNING {COLUMNS}
""")

_IS_OVERDUE = "status = 'pending' AND expires_at <= clock_timestamp()"

EXPIRE_OVERDUE = Statement(f"""
UPDATE interrupts SET status = 'expired', resolved_at = clock_timestamp()
 WHERE run_id = :run AND {_IS_OVERDUE} RETURNING {COLUMNS}
""")

OVERDUE_OF = Statement(f"""
SELECT {COLUMNS} FROM interrupts WHERE run_id = :run AND {_IS_OVERDUE} ORDER BY position
""")

OVERDUE_RUNS = Statement(f"""
SELECT DISTINCT run_id FROM (
    SELECT run_id FROM interrupts WHERE {_IS_OVERDUE} AND run_id <> ALL(:but::text[])
     ORDER BY expires_at LIMIT :limit) AS first
""")

MARK_TOLD_UNHELD = Statement("""
UPDATE interrupts SET told = true
 WHERE run_id = :run AND id = ANY(:ids::text[]) AND status <> 'pending'
""")

_HELD = """
WITH held AS (SELECT id FROM runs
               WHERE id = :run AND epoch = :epoch AND status = 'running' FOR SHARE),
"""

MARK_TOLD = Statement(f"""{_HELD}
marked AS (UPDATE interrupts SET told = true FROM held
            WHERE run_id = held.id AND interrupts.id = ANY(:ids::text[]) AND status <> 'pending')
SELECT 1 FROM held
""")

MARK_TAKEN = Statement(f"""{_HELD}
marked AS (UPDATE interrupts SET taken = true FROM held
            WHERE run_id = held.id AND interrupts.id = ANY(:ids::text[]) AND answer IS NOT NULL)
SELECT 1 FROM held
""")
