"""I6: every run ends, with one last event; every client reads to it; every act is answered."""

from collections import defaultdict

from deploy.drill.dossier import Dossier, Log, where
from deploy.drill.record import Ordered
from deploy.drill.verdict import Verdict

_ENDED = frozenset({"completed", "failed", "cancelled"})


def nothing_stuck(dossier: Dossier) -> Verdict:
    verdict = Verdict("I6", "Nothing is stuck")
    for ordered, log in dossier.ordered():
        _ended(verdict, ordered, log)
    for seen, log in dossier.watched():
        at = f"at #{seen.cursor} of #{log.last_sequence}"
        verdict.check(seen.finished, f"{where(seen)}: has not come to the end, {at}")
    _answered(verdict, dossier)
    return verdict


def _ended(verdict: Verdict, ordered: Ordered, log: Log) -> None:
    truth, run = log.truth, ordered.run
    verdict.check(truth.status in _ENDED, f"{run}: is {truth.status} at epoch {truth.epoch}")
    ends = [f"#{entry.sequence} {entry.type}" for entry in log.ends]
    verdict.check(len(ends) == 1 and log.is_closed, f"{run}: last events {ends}, one at the end")
    if truth.status == "failed":
        reason = truth.error_code
        # not by deaths of runners either: a drill allows each run more of them than it causes
        verdict.check(False, f"{run}: failed with {reason}, by no fault of its own")


def _answered(verdict: Verdict, dossier: Dossier) -> None:
    """However often it has to be sent: in the end there is an answer, and not a failure. An attempt
    to start a run that was not answered does not know the run that the next one is told."""
    statuses = defaultdict(list)
    runs: dict[str, str] = {}
    for act in dossier.record.acts:
        statuses[act.what, act.key].append(act.status)
        runs[act.key] = act.run or runs.get(act.key, "a start")
    for (what, key), found in statuses.items():
        good = any(status is not None and status < 500 and status != 429 for status in found)
        verdict.check(good, f"{runs[key]}: {what} {key} was answered {found[-3:]} only")
        wrong = [s for s in found if s in (400, 401, 403, 404, 405, 413, 422, 500)]
        verdict.check(not wrong, f"{runs[key]}: {what} {key} was answered {wrong}")
