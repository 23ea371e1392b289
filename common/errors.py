"""The one tree of errors that cross module borders. Expected outcomes are values; these are not.

    SteadyrunError
    ├── LeaseLost       a newer epoch owns the run, or it is not running any more: stop at once
    ├── Unavailable     Postgres or Redis cannot be reached now; trying again later is right
    ├── Misconfigured   settings or a graph file are wrong; one line for a person, exit status 1
    │   └── Unusable    an argument or a setting that nobody can mean; exit status 2
    └── Refused         a request that the rules do not allow, with a code of contract §4

Errors of drivers are translated once, where they arise (common/db, common/bus).
"""

from typing import Any, Literal, get_args

Code = Literal[
    "BAD_REQUEST",
    "CONVERSATION_BUSY",
    "FORBIDDEN",
    "HISTORY_EXPIRED",
    "IDEMPOTENCY_MISMATCH",
    "INTERNAL",
    "INTERRUPT_EXPIRED",
    "INTERRUPT_NOT_PENDING",
    "METHOD_NOT_ALLOWED",
    "NOT_FOUND",
    "PAYLOAD_TOO_LARGE",
    "PERMISSION_REVOKED",
    "RATE_LIMITED",
    "RESOURCE_CHANGED",
    "RUN_NOT_RESUMABLE",
    "UNAUTHENTICATED",
    "UNAVAILABLE",
    "VALIDATION",
    "VERSION_CONFLICT",
]
CODES: tuple[Code, ...] = get_args(Code)


class SteadyrunError(Exception):
    """The root."""


class LeaseLost(SteadyrunError):
    """A fenced write found no row: another owner has the run (I3)."""

    def __init__(self, run_id: str, epoch: int) -> None:
        super().__init__(f"run {run_id} is no longer held under epoch {epoch}")
        self.run_id = run_id
        self.epoch = epoch


class Unavailable(SteadyrunError):
    """`what` names the server ("Postgres", "Redis"), never its address or a driver's text (I9)."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} cannot be reached")
        self.what = what


class Misconfigured(SteadyrunError):
    """The message is one line that names the cause and what to do."""


class Unusable(Misconfigured):
    """The process ends with status 2 and this line, before it has done anything."""


def exit_status(error: SteadyrunError) -> int:
    return 2 if isinstance(error, Unusable) else 1


class Refused(SteadyrunError):
    """A business refusal. `extra` goes to the client beside code and detail: no secrets in it."""

    def __init__(self, code: Code, detail: str, **extra: Any) -> None:
        super().__init__(f"{code}: {detail}")
        self.code: Code = code
        self.detail = detail
        self.extra = extra
