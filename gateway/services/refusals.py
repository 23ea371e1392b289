"""Why a decision is not taken, and what its sender is told then (contract §5). Pure."""

from collections.abc import Sequence
from typing import Any

from common.db.interrupts import Interrupt
from common.db.runs import Run
from common.errors import Refused
from gateway.schemas import InterruptOut


def wire(row: Interrupt) -> dict[str, Any]:
    return InterruptOut.of(row).model_dump(mode="json", by_alias=True)


def not_found() -> Refused:
    return Refused("NOT_FOUND", "there is no such run or interrupt")


def expired(row: Interrupt) -> Refused:
    return Refused("INTERRUPT_EXPIRED", "the time for this decision is over", interruptId=row.id)


def decided_before(row: Interrupt) -> Refused:
    """Who decided and how; an expired one is always 410."""
    if row.status in ("expired", "pending"):
        return expired(row)  # pending: the update saw that its time is over
    shown = wire(row)
    told = {name: shown[name] for name in ("decision", "resolvedBy", "resolvedAt")}
    return Refused(
        "INTERRUPT_NOT_PENDING",
        "this was decided before",
        interruptId=row.id,
        interruptStatus=row.status,
        **told,
    )


def not_resumable(run: Run, pending: Sequence[Interrupt]) -> Refused:
    return Refused(
        "RUN_NOT_RESUMABLE",
        "interrupts are pending: decide them" if pending else f"the run is {run.status}",
        runStatus=run.status,
        pendingInterrupts=[row.id for row in pending],
    )
