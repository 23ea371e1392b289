"""The state machine of a run (contract §2), as one table.

The CHECK constraints' test, the guards of the SQL statements and the README's diagram come from it.

    queued ──► running ──► completed | failed | cancelled
      ▲  │        │  ▲
      │  │        │  └────────── (claim)
      │  ▼        ▼
      │ cancelled interrupted ──► cancelled
      └───────────┘  (a decision, `continue`, a hand-over or a dead runner queues it again)

A run's *epoch* is the number of its owners so far, and the fencing token of whatever they write. It
begins at 0 and rises by one whenever another owner has it:

* a runner that claims it: at its start, and each time it is taken up again;
* whoever acts on it while no runner holds it, for one transaction (common/ownership): a decision or
  `continue` that queues it, a cancellation, a reject or an expiry that ends it. The events of that
  act (`interrupt_resolved`, `cancelled`) carry this epoch.

So a decision on a run that waits raises it by two: by the gateway that stores it and by the runner
that goes on; a second decision, while the run is queued or running, by none. A reader may rely on
this alone: a larger epoch is a later owner, and events of a run never fall back to a smaller one.
"""

from collections.abc import Mapping
from typing import Literal, get_args

Status = Literal["queued", "running", "interrupted", "completed", "failed", "cancelled"]
STATUSES: tuple[Status, ...] = get_args(Status)

TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    "queued": frozenset({"running", "cancelled"}),
    "running": frozenset({"completed", "failed", "cancelled", "interrupted", "queued"}),
    "interrupted": frozenset({"queued", "cancelled"}),
    "completed": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}

TERMINAL_STATUSES: frozenset[Status] = frozenset(s for s in STATUSES if not TRANSITIONS[s])
ACTIVE_STATUSES: frozenset[Status] = frozenset(STATUSES) - TERMINAL_STATUSES

ResumeReason = Literal["decision", "continue", "failover", "handover"]
CancelReason = Literal["user", "rejected", "expired", "disconnected", "superseded"]
FailureCode = Literal["GRAPH_ERROR", "RUN_TIMEOUT", "RUNNER_LOST"]
OnConflict = Literal["reject", "enqueue", "interrupt", "rollback"]
OnDisconnect = Literal["continue", "cancel"]

InterruptType = Literal["confirm_action", "select_option", "provide_input"]
InterruptStatus = Literal["pending", "resolved", "expired", "cancelled"]
INTERRUPT_STATUSES: tuple[InterruptStatus, ...] = get_args(InterruptStatus)


def can_become(old: Status, new: Status) -> bool:
    return new in TRANSITIONS[old]
