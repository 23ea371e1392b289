"""I5: an effect happens at most once; what nobody knows is asked or verified, never guessed."""

from deploy.drill.dossier import Dossier, Log
from deploy.drill.record import Ordered
from deploy.drill.verdict import Verdict

AGAIN, DONE = {"select": "again"}, {"select": "done"}
"""What a person says of an effect of which nobody knows whether it happened."""


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
    said = [question.decision for question in log.truth.questions]
    may = 1 + said.count(AGAIN)
    verdict.check(
        times <= may, f"{place}: performed {times} times, {lines}, and people said {said}"
    )
    verdict.check(allowed or not times, f"{place}: performed, and nobody has approved it")
    if log.truth.status == "completed" and allowed:
        known = times >= 1 or DONE in said
        verdict.check(known, f"{place}: the run says that it is done, and it is not")
        _noted(verdict, log, place, ordered.order.key)


def _noted(verdict: Verdict, log: Log, place: str, key: str) -> None:
    """The ledger knows what was performed."""
    known = [effect for effect in log.truth.effects if effect.key == key]
    verdict.check(
        len(known) == 1 and known[0].finished, f"{place}: performed, and the ledger has {known}"
    )
