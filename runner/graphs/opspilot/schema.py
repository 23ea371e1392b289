"""The SQL of the sample fleet, in a schema of its own beside Steadyrun's tables.

`restarts` remembers every restart by its key. `done` is null for a moment only, inside the
transaction that noted it: the key is noted first, then the conditional update says whether the
instance was restarted.

A degraded instance writes errors once a minute. Nothing runs to write them: they are made up to now
whenever the service is looked at.
"""

from typing import Final, LiteralString

LOCK: Final = 7_311_005  # advisory lock of the setup

TABLES: Final[tuple[LiteralString, ...]] = (
    "CREATE SCHEMA IF NOT EXISTS opspilot",
    """
    CREATE TABLE IF NOT EXISTS opspilot.services (
      name text PRIMARY KEY, description text NOT NULL, sandbox bool NOT NULL DEFAULT false)
    """,
    """
    CREATE TABLE IF NOT EXISTS opspilot.instances (
      id text PRIMARY KEY, service text NOT NULL REFERENCES opspilot.services ON DELETE CASCADE,
      host text NOT NULL, state text NOT NULL CHECK (state IN ('running', 'degraded')),
      state_since timestamptz NOT NULL, version int NOT NULL DEFAULT 1,
      restarts int NOT NULL DEFAULT 0, restarted_at timestamptz, restarted_by text,
      relapses bool NOT NULL)
    """,
    "CREATE INDEX IF NOT EXISTS instances_service ON opspilot.instances (service)",
    """
    CREATE TABLE IF NOT EXISTS opspilot.errors (
      instance text NOT NULL REFERENCES opspilot.instances ON DELETE CASCADE,
      at timestamptz NOT NULL, status int NOT NULL, message text NOT NULL, count int NOT NULL,
      PRIMARY KEY (instance, at))
    """,
    """
    CREATE TABLE IF NOT EXISTS opspilot.restarts (
      key text PRIMARY KEY, instance text NOT NULL, version int NOT NULL, done bool,
      at timestamptz NOT NULL DEFAULT now())
    """,
)

SEED: Final[LiteralString] = """
WITH fleet (service, description, instances, broken) AS (VALUES
       ('order-api', 'keeps the orders', 2, 0),
       ('payment-api', 'takes the payments', 3, 2),
       ('search', 'finds products', 2, 0)),
     named AS (INSERT INTO opspilot.services (name, description)
               SELECT service, description FROM fleet ON CONFLICT DO NOTHING RETURNING name)
INSERT INTO opspilot.instances (id, service, host, state, state_since, relapses)
SELECT service || '-' || n, service, 'node-' || (length(service) + n) % 7 + 1,
       CASE WHEN n = broken THEN 'degraded' ELSE 'running' END, now() - interval '9 min', n = broken
FROM fleet JOIN named ON name = service, generate_series(1, instances) n
ON CONFLICT DO NOTHING
"""

SANDBOX: Final[LiteralString] = """
WITH named AS (INSERT INTO opspilot.services (name, description, sandbox)
               VALUES (%(service)s, 'a sandbox', true) ON CONFLICT DO NOTHING RETURNING name)
INSERT INTO opspilot.instances (id, service, host, state, state_since, relapses)
SELECT name || '-' || n, name, 'node-' || n,
       CASE WHEN n = 2 THEN 'degraded' ELSE 'running' END, now() - interval '9 min', n = 2
FROM named, generate_series(1, 3) n
ON CONFLICT DO NOTHING
"""

RESET: Final[LiteralString] = """
TRUNCATE opspilot.services, opspilot.instances, opspilot.errors, opspilot.restarts
"""

RELAPSE: Final[LiteralString] = """
UPDATE opspilot.instances SET state = 'degraded', state_since = now(), version = version + 1
WHERE service = %(service)s AND relapses AND state = 'running' AND restarted_by <> %(visitor)s
  AND restarted_at < clock_timestamp() - make_interval(secs => %(relapse_s)s)
"""

GO_WRONG: Final[LiteralString] = """
INSERT INTO opspilot.errors (instance, at, status, message, count)
SELECT i.id, greatest(i.state_since, minute), 502 + mod(n, 3),
       CASE mod(n, 3) WHEN 0 THEN 'connection pool exhausted: 50 of 50 in use'
                  ELSE 'upstream timed out after 3000 ms' END, 1 + mod(n, 3)
FROM opspilot.instances i,
     generate_series(date_trunc('minute', greatest(i.state_since, now() - interval '15 min')),
                     now(), interval '1 min') minute,
     LATERAL (SELECT extract(minute FROM minute)::int AS n) AS numbered
WHERE i.service = %(service)s AND i.state = 'degraded'
ORDER BY i.id, minute
ON CONFLICT DO NOTHING
"""

BREAK_ONE: Final[LiteralString] = """
UPDATE opspilot.instances SET state = 'degraded', state_since = now(), version = version + 1
WHERE id = (SELECT id FROM opspilot.instances WHERE service = %(service)s AND state = 'running'
            ORDER BY NOT relapses, id LIMIT 1 FOR UPDATE)
RETURNING id
"""

SERVICES: Final[LiteralString] = """
SELECT name, description, count(i.id)::int AS instances,
       count(i.id) FILTER (WHERE i.state <> 'running')::int AS abnormal
FROM opspilot.services LEFT JOIN opspilot.instances i ON i.service = name
WHERE NOT sandbox GROUP BY name, description ORDER BY name COLLATE "C"
"""

INSTANCES: Final[LiteralString] = """
SELECT id, service, state, version, restarts, host, restarted_at
FROM opspilot.instances WHERE service = %(service)s ORDER BY id COLLATE "C"
"""

INSTANCE: Final[LiteralString] = """
SELECT id, service, state, version, restarts, host, restarted_at
FROM opspilot.instances WHERE id = %(id)s
"""

ERRORS: Final[LiteralString] = """
SELECT e.at, e.instance, e.status, e.message, e.count
FROM opspilot.errors e JOIN opspilot.instances i ON i.id = e.instance
WHERE i.service = %(service)s AND e.at > now() - make_interval(mins => %(minutes)s)
ORDER BY e.at DESC, e.instance LIMIT 100
"""

NOTE_RESTART: Final[LiteralString] = """
INSERT INTO opspilot.restarts (key, instance, version) VALUES (%(key)s, %(id)s, %(version)s)
ON CONFLICT DO NOTHING
"""

RESTART: Final[LiteralString] = """
WITH restarted AS (
       UPDATE opspilot.instances SET state = 'running', state_since = clock_timestamp(),
              restarts = restarts + 1, version = version + 1, restarted_at = clock_timestamp(),
              restarted_by = %(visitor)s
       WHERE id = %(id)s AND version = %(version)s RETURNING id),
     forgotten AS (
       DELETE FROM opspilot.errors WHERE instance IN (SELECT id FROM restarted)
              AND at < now() - interval '1 hour')
UPDATE opspilot.restarts SET done = EXISTS (SELECT FROM restarted) WHERE key = %(key)s
"""

RESTARTED: Final[LiteralString] = """
SELECT done FROM opspilot.restarts WHERE key = %(key)s
"""
