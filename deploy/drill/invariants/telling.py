"""I2: what was acknowledged or told is in Postgres, and was when it was told."""

from collections.abc import Mapping
from typing import Any

from deploy.drill.dossier import Dossier, Entry, Log
from deploy.drill.record import Json, Look
from deploy.drill.truth import Question
from deploy.drill.verdict import Verdict

_STATUS: Mapping[str, str] = {"done": "completed", "cancelled": "cancelled", "error": "failed"}


def persist_then_tell(dossier: Dossier) -> Verdict:
    verdict = Verdict("I2", "Persist, then tell")
    for run in {*dossier.record.ordered, *(seen.run for seen in dossier.record.clients)}:
        verdict.check(run in dossier.logs, f"{run}: acknowledged, but Postgres does not know it")
    for log in dossier.logs.values():
        for entry in log.entries:
            _told(verdict, entry, log)
    for look in dossier.record.looks:
        if (known := dossier.logs.get(look.run)) is not None:
            _looked(verdict, look, known)
    return verdict


def _told(verdict: Verdict, entry: Entry, log: Log) -> None:
    """What the event announces is so in the end."""
    event, truth, place = entry.event, log.truth, f"{log.truth.id} #{entry.sequence}"
    if entry.type in ("interrupt", "interrupt_resolved"):
        row = _question(log, event)
        ok = row is not None and (entry.type == "interrupt" or row.status == event.get("status"))
        verdict.check(ok, f"{place}: {entry.type} {event.get('interruptId')}, stored is {row}")
    elif entry.type in _STATUS:
        said = (_STATUS[entry.type], entry.sequence, _detail(entry.type, event))
        stored = (truth.status, truth.last_sequence, _stored_detail(log))
        verdict.check(said == stored, f"{place}: told {said}, stored is {stored}")
        if "messageId" in event:
            known = any(message.id == event["messageId"] for message in truth.messages)
            verdict.check(known, f"{place}: message {event['messageId']} is not stored")


def _question(log: Log, event: Json) -> Question | None:
    ids = (row for row in log.truth.questions if row.id == event.get("interruptId"))
    return next(ids, None)


def _detail(type_: str, event: Json) -> Any:
    """What the last event says besides the status."""
    return event.get({"done": "messageId", "cancelled": "reason", "error": "code"}[type_])


def _stored_detail(log: Log) -> Any:
    truth = log.truth
    found = {"completed": truth.message_id, "cancelled": truth.cancel_reason}
    return found.get(truth.status, truth.error_code)


def _looked(verdict: Verdict, look: Look, log: Log) -> None:
    """A client that asked right after the event has seen at least what the event told."""
    place = f"{look.run} {look.client} #{look.sequence}: {look.type}"
    epoch, told = look.found.get("epoch", 0), look.event.get("epoch", 0)
    verdict.check(epoch >= told, f"{place} of epoch {told}, but the run was at {epoch}")
    if look.type != "run_started":  # archived soon, and not with the status: only Redis has it
        last = look.found.get("lastSequence", 0)
        verdict.check(last >= look.sequence, f"{place}, but the run was at #{last}")
    status = look.found.get("status")
    if look.type in _STATUS:
        verdict.check(status == _STATUS[look.type], f"{place}, but the run was {status}")
    elif look.type in ("interrupt", "interrupt_resolved"):
        _looked_at_question(verdict, look, log, place)


def _looked_at_question(verdict: Verdict, look: Look, log: Log, place: str) -> None:
    shown = [row.get("id") for row in look.found.get("pendingInterrupts", [])]
    asked, status = look.event.get("interruptId"), look.found.get("status")
    if look.type == "interrupt_resolved":
        verdict.check(asked not in shown, f"{place}, but {asked} was still pending")
        return
    row = _question(log, look.event)
    decided = row is not None and row.status != "pending" and status != "interrupted"
    verdict.check(asked in shown or decided, f"{place}, but {asked} was not pending, run {status}")
    unsettled = status == "running" and look.found.get("epoch") == look.event.get("epoch")
    verdict.check(not unsettled, f"{place}, but its own epoch was still running")
