"""Why a decision is not taken, and what its sender is told then (contract §5). Pure."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import orjson

from common.db.conversations import Conversation
from common.db.interrupts import Interrupt
from common.db.runs import Run
from common.errors import Refused
from gateway.schemas import InterruptOut


def wire(row: Interrupt) -> dict[str, Any]:
    return InterruptOut.of(row).model_dump(mode="json", by_alias=True)


def refuse_changed(
    owner: bool,
    rows: Sequence[Interrupt],
    conversation: Conversation,
    current: dict[str, Any],
    shown: dict[str, Any],
    confirmed: str | None,
) -> None:
    """409 with the current values and the `confirmVersion` that accepts exactly these.

    `current`: the resources now, by interrupt id; `shown`: the same, masked.
    """
    resources = any(current[row.id] != row.resource for row in rows if row.id in current)
    facts = any(row.facts_version != conversation.facts_version for row in rows)
    version = _version(conversation.facts_version, current)
    if not (resources or facts) or confirmed == version:
        return
    extra: dict[str, Any] = {"confirmVersion": version, "factsVersion": conversation.facts_version}
    if owner:
        extra["facts"] = conversation.facts
    if shown:
        extra["resources"] = shown
        extra["resource"] = next(iter(shown.values()))
    if resources:
        raise Refused("RESOURCE_CHANGED", "what this is about has changed meanwhile", **extra)
    raise Refused("VERSION_CONFLICT", "the facts have changed meanwhile", **extra)


def _version(facts_version: int, current: dict[str, Any]) -> str:
    seen = orjson.dumps([facts_version, current], option=orjson.OPT_SORT_KEYS)
    return blake2b(seen, digest_size=12).hexdigest()


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
