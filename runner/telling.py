"""The events that tell of interrupts (contract §3), made from their rows."""

from common.db.interrupts import Interrupt, NewInterrupt
from common.events import Event, utc_text
from common.runs import InterruptStatus


def interrupt_event(row: NewInterrupt) -> Event:
    fields = {
        "interruptId": row.id,
        "interruptType": row.type,
        "payload": row.payload,
    }
    if row.expires_at is not None:
        fields["expiresAt"] = utc_text(row.expires_at)
    if row.required_permission is not None:
        fields["requiredPermission"] = row.required_permission
    return Event("interrupt", fields)


def resolved_event(row: Interrupt, status: InterruptStatus | None = None) -> Event:
    """`status` where the row will get it in the transaction that this event is archived in."""
    fields = {"interruptId": row.id, "status": status or row.status}
    if row.decision is not None:
        fields["decision"] = row.decision
    if row.resolved_by is not None:
        fields["resolvedBy"] = row.resolved_by
    return Event("interrupt_resolved", fields)
