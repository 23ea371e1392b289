"""Errors of the driver, translated once (common.errors). Texts of the driver never leave (I9)."""

import asyncpg

from common.errors import Misconfigured, Refused, SteadyrunError, Unavailable

POSTGRES = "Postgres"

# what a driver, the pool or the network raise; anything else is a mistake of ours and passes
FOREIGN = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # also what it makes of a session that the server ended
    OSError,
    TimeoutError,  # of the pool: all its connections are in use
)

# Postgres is away, starting, stopping, full, read-only, or gave up this statement: try again later
_AWAY = ("08", "53", "57", "58", "40", "55P03", "25006", "25P03", "28", "3D")
_UNSTORABLE = ("22021", "22P05")
_GONE = "23503"
_FACTS_BOUNDED = "conversations_facts_bounded"


def translate(error: BaseException) -> SteadyrunError | None:
    """The error of ours for a foreign one, or None if it has to surface as it is."""
    state = str(getattr(error, "sqlstate", None) or "")
    if state.startswith(_UNSTORABLE) or isinstance(error.__cause__, UnicodeEncodeError):
        return Refused("VALIDATION", "text holds a character that cannot be stored")
    if getattr(error, "constraint_name", None) == _FACTS_BOUNDED:
        return Refused("VALIDATION", "facts: they take too much room")
    if state == _GONE:
        return Refused("NOT_FOUND", "what this belongs to has been deleted")
    if is_away(state) or isinstance(error, OSError):
        return Unavailable(POSTGRES)
    # the driver's own errors without a state: its connection is closed or in an unknown condition
    return Unavailable(POSTGRES) if _lost(error) else None


def is_away(sqlstate: str) -> bool:
    """Whether Postgres says by this state that the same statement may succeed later."""
    return sqlstate.startswith(_AWAY)


def misconfigured(error: BaseException) -> Misconfigured | None:
    """At start: what trying again cannot heal, in one line for a person."""
    state = str(getattr(error, "sqlstate", None) or "")
    if state.startswith("28"):
        return Misconfigured("DATABASE_URL: Postgres refuses the user or the password")
    if state == "42704":
        return Misconfigured("DATABASE_URL: Postgres does not know an option after its `?`")
    if state == "3D000":
        return Misconfigured("DATABASE_URL: the database does not exist; create it")
    return None


def _lost(error: BaseException) -> bool:
    if isinstance(error, asyncpg.InterfaceError):
        return not isinstance(error, asyncpg.DataError)
    return isinstance(error, asyncpg.InternalClientError)
