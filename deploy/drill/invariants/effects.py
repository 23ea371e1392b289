"""I5: an effect happens at most once; what nobody knows is asked or verified, never guessed."""

from deploy.drill.dossier import Dossier, Log
from deploy.drill.record import Ordered
from deploy.drill.verdict import Verdict

UNKNOWN = "EFFECT_UNKNOWN"
"""Why a run fails whose effect has an unknown outcome and no `verify`: for now this is asking."""


def effects_once(dossier: Dossier) -> Verdict:
    verdict = Verdict("I5", "Effects at most once")
    for ordered, log in dossier.ordered():
        if ordered.order.effect != "none":
            lines = dossier.truth.performed.get(ordered.order.key)
            _count(verdict, ordered, log, lines, dossier.allowed(ordered, log))
    return verdict


def _count(
    verdict: Verdict, ordered: Ordered, log: Log, lines: list[str] | None, allowed: bool
) -> None:
    place = f"{ordered.run} effect {ordered.order.key}"
    if not verdict.check(lines is not None, f"{place}: nobody has looked whether it happened"):
        return
    times = len(lines or ())
    verdict.check(times <= 1, f"{place}: performed {times} times, {lines}")
    verdict.check(allowed or not times, f"{place}: performed, and nobody has approved it")
    if log.truth.status == "completed" and allowed:
        verdict.check(times == 1, f"{place}: the run says that it is done, and it is not")
        _noted(verdict, log, place, ordered.order.key)


def _noted(verdict: Verdict, log: Log, place: str, key: str) -> None:
    """The ledger knows what was performed."""
    known = [effect for effect in log.truth.effects if effect.key == key]
    verdict.check(
        len(known) == 1 and known[0].finished, f"{place}: performed, and the ledger has {known}"
    )
