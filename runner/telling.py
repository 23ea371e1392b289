"""The event that tells of a question (contract §3), made from the row that is stored with it."""

from typing import Any

from common.db.interrupts import NewInterrupt
from common.events import Event, utc_text


def interrupt_event(row: NewInterrupt) -> Event:
    fields: dict[str, Any] = {
        "interruptId": row.id,
        "interruptType": row.type,
        "payload": row.payload,
    }
    if row.expires_at is not None:
        fields["expiresAt"] = utc_text(row.expires_at)
    if row.required_permission is not None:
        fields["requiredPermission"] = row.required_permission
    return Event("interrupt", fields)
