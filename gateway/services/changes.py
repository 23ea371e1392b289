"""What has changed since a question was asked, and who has accepted that (contract §5, step 6).

Pure. A question notes fields of its resource; of what the guard reads anew these are compared, the
others are only shown. A `confirmVersion` stands for exactly the compared values of these interrupts
and this version of the facts: if one of them changes again, the decision is refused again.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import orjson

from common.db.conversations import Conversation
from common.db.interrupts import Interrupt
from common.errors import Refused
from common.masking import Masker
from gateway.services.cases import Looked


def refuse_changed(
    rows: Sequence[Interrupt],
    conversation: Conversation,
    looked: Sequence[Looked],
    confirmed: str | None,
    masker: Masker,
    visible: Mapping[str, Any] | None,
) -> None:
    """409 with the current values, masked, and the `confirmVersion` that accepts these. `looked`:
    of those that name a resource. `visible`: the facts that the caller may see; None: the
    conversation is not theirs."""
    changed = [change for one in looked for change in _changes(one, masker)]
    learned = any(row.facts_version != conversation.facts_version for row in rows)
    version = _version(rows, conversation, looked)
    if not (changed or learned) or confirmed == version:
        return
    extra: dict[str, Any] = {"confirmVersion": version, "factsVersion": conversation.facts_version}
    if visible is not None:
        extra["facts"] = masker.value(visible)
    if looked:
        extra |= {"resources": _resources(looked, masker), "resource": masker.value(looked[0].now)}
    if changed:
        extra["changed"] = changed
        raise Refused("RESOURCE_CHANGED", "what this is about has changed meanwhile", **extra)
    raise Refused("VERSION_CONFLICT", "the facts have changed meanwhile", **extra)


def compared(noted: Any, current: Any) -> Any:
    """The part of a resource that counts: the fields that were noted, those that are left of it."""
    if not isinstance(noted, Mapping) or not isinstance(current, Mapping):
        return current
    return {name: current[name] for name in noted if name in current}


def _resources(looked: Sequence[Looked], masker: Masker) -> dict[str, Any]:
    """By interrupt: its resource, or those of its actions by their index."""
    shown: dict[str, Any] = {}
    for one in looked:
        value = masker.value(one.now)
        if one.action is None:
            shown[one.interrupt_id] = value
        else:
            shown.setdefault(one.interrupt_id, {})[str(one.action)] = value
    return shown


def _changes(one: Looked, masker: Masker) -> list[dict[str, Any]]:
    """One entry a field; `field` is missing where the whole has another shape or is gone."""
    noted, now = one.noted, compared(one.noted, one.now)
    where: dict[str, Any] = {"interruptId": one.interrupt_id}
    if one.action is not None:
        where["action"] = one.action
    if not isinstance(noted, Mapping) or not isinstance(now, Mapping):
        was_is = {"was": masker.value(noted), "is": masker.value(now)}
        return [] if now == noted else [{**where, **was_is}]
    return [
        {
            **where,
            "field": name,
            "was": _shown(name, was, masker),
            "is": _shown(name, now.get(name), masker),
        }
        for name, was in noted.items()
        if name not in now or now[name] != was
    ]


def _shown(name: str, value: Any, masker: Masker) -> Any:
    """Masked as what its name says it is: a password looks like any other text."""
    masked = masker.value({name: value})
    return next(iter(masked.values())) if isinstance(masked, Mapping) else masked


def _version(
    rows: Sequence[Interrupt], conversation: Conversation, looked: Sequence[Looked]
) -> str:
    counted = {row.id: None for row in rows} | {
        one.interrupt_id if one.action is None else f"{one.interrupt_id}/{one.action}": compared(
            one.noted, one.now
        )
        for one in looked
    }
    seen = orjson.dumps([conversation.facts_version, counted], option=orjson.OPT_SORT_KEYS)
    return blake2b(seen, digest_size=12).hexdigest()
