"""I4: of all decisions on a question one takes effect; a key stands for one act, however often."""

from collections import defaultdict
from collections.abc import Sequence

from deploy.drill.dossier import Dossier, Log
from deploy.drill.record import Act, Ordered
from deploy.drill.truth import Question
from deploy.drill.verdict import Verdict


def one_winner(dossier: Dossier) -> Verdict:
    verdict = Verdict("I4", "One winner")
    _keys(verdict, dossier.record.acts)
    _unknown(verdict, dossier)
    for log in dossier.logs.values():
        for question in log.truth.questions:
            _question(verdict, question, dossier.decisions(question.id), log)
    for ordered, log in dossier.ordered():
        _followed(verdict, ordered, log)
    return verdict


def _keys(verdict: Verdict, acts: Sequence[Act]) -> None:
    """Who asks again by the same key gets the first answer again."""
    answers = defaultdict(list)
    for act in acts:
        if act.status is not None and 200 <= act.status < 300 and act.what in ("create", "decide"):
            answers[act.what, act.key].append(act)
    for (what, key), same in answers.items():
        for act in same[1:]:
            told, first = _answered(act), _answered(same[0])
            verdict.check(told == first, f"{act.run} {what} {key}: told {told}, before {first}")


def _answered(act: Act) -> object:
    """A start that streams says no more than which run it is."""
    run = act.answer.get("run") or {}
    return run.get("id") if act.what == "create" else run


def _unknown(verdict: Verdict, dossier: Dossier) -> None:
    """Nobody was acknowledged a decision on what Postgres does not know."""
    known = {row.id for log in dossier.logs.values() for row in log.truth.questions}
    for act in dossier.record.acts:
        if act.what == "decide" and act.status == 202:
            verdict.check(
                act.interrupt in known, f"{act.run} {act.interrupt}: acknowledged, not stored"
            )


def _question(verdict: Verdict, question: Question, acts: Sequence[Act], log: Log) -> None:
    place = f"{log.truth.id} {question.id}"
    accepted = [act for act in acts if act.status == 202]
    winners = {act.key: act.decision for act in accepted}
    verdict.check(len(winners) <= 1, f"{place}: {len(winners)} decisions won, {winners}")
    for decision in winners.values():
        stored = (question.status, question.decision)
        kept = stored == ("resolved", decision)
        verdict.check(kept, f"{place}: acknowledged {decision!r}, stored is {stored}")
    if question.status == "resolved":
        sent = [act.decision for act in acts]
        verdict.check(question.decision in sent, f"{place}: {question.decision!r} was never sent")
    _told_once(verdict, question, log, place)
    for act in acts:
        _loser(verdict, act, question, place)


def _told_once(verdict: Verdict, question: Question, log: Log, place: str) -> None:
    """The log of an ended run closes each card once, with the decision that won."""
    closed = [e for e in log.of("interrupt_resolved") if e.event.get("interruptId") == question.id]
    if log.is_closed:
        verdict.check(len(closed) == 1, f"{place}: told to be resolved {len(closed)} times")
    for entry in closed:
        told = entry.event.get("decision")
        verdict.check(
            told == question.decision,
            f"{place} #{entry.sequence}: told {told!r}, stored is {question.decision!r}",
        )


def _loser(verdict: Verdict, act: Act, question: Question, place: str) -> None:
    """Refused with who decided and how; what has no answer or may be tried again says nothing."""
    if act.status is None or act.status in (202, 429, 502, 503, 504):
        return
    code, told = act.answer.get("code"), act.answer.get("decision")
    right = act.status == 409 and code == "INTERRUPT_NOT_PENDING" and told == question.decision
    verdict.check(
        right,
        f"{place} key {act.key}: {act.decision!r} was answered {act.status} {code} with {told!r},"
        f" stored is {question.status} {question.decision!r}",
    )


def _followed(verdict: Verdict, ordered: Ordered, log: Log) -> None:
    """What happened then is what the winner said."""
    for question in log.truth.questions:
        if question.status != "resolved":
            continue
        ends = log.truth.status in ("completed", "failed", "cancelled")
        rejected = question.decision == "reject" and ordered.order.on_reject == "cancel"
        followed = not rejected or log.truth.status == "cancelled"
        verdict.check(
            ends and followed,
            f"{ordered.run} {question.id}: {question.decision!r}, and the run is"
            f" {log.truth.status}",
        )
