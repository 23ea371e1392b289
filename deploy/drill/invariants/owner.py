"""I3: once a newer epoch exists the older one changes nothing: no event, no checkpoint, no row."""

from collections import Counter

from deploy.drill.dossier import Dossier, Entry, Log
from deploy.drill.verdict import Verdict

_TAKES_OVER = frozenset({"run_started", "run_resumed", "interrupt_resolved", "cancelled", "error"})


def one_owner(dossier: Dossier) -> Verdict:
    verdict = Verdict("I3", "One owner")
    for log in dossier.logs.values():
        _epochs(verdict, log)
        _checkpoints(verdict, log)
        for effect in log.truth.effects:
            verdict.check(
                0 < effect.epoch <= log.truth.epoch,
                f"{log.truth.id} effect {effect.key}: of epoch {effect.epoch},"
                f" the run is at {log.truth.epoch}",
            )
    return verdict


def _epochs(verdict: Verdict, log: Log) -> None:
    """They never fall along the log, and a new owner says that it has taken over."""
    run, current = log.truth.id, 0
    for entry in log.entries:
        place, epoch = f"{run} #{entry.sequence}", _epoch(entry)
        verdict.check(epoch >= current, f"{place}: of epoch {epoch} after epoch {current}")
        verdict.check(epoch == entry.epoch, f"{place}: epoch {epoch} in a batch of {entry.epoch}")
        if epoch > current:
            told = entry.type in _TAKES_OVER
            verdict.check(told, f"{place}: epoch {epoch} begins with {entry.type}")
        current = max(current, epoch)
    verdict.check(
        current <= log.truth.epoch,
        f"{run}: events of epoch {current}, the run is at {log.truth.epoch}",
    )


def _epoch(entry: Entry) -> int:
    epoch = entry.event.get("epoch")
    return epoch if isinstance(epoch, int) else -1


def _checkpoints(verdict: Verdict, log: Log) -> None:
    """One line from the first to the last: a second child of one checkpoint has a second owner."""
    saved = log.truth.checkpoints
    children = Counter(checkpoint.parent for checkpoint in saved)
    known = {checkpoint.id for checkpoint in saved}
    for checkpoint in saved:
        place, parent = f"{log.truth.id} checkpoint {checkpoint.id}", checkpoint.parent
        verdict.check(children[parent] == 1, f"{place}: {parent} has {children[parent]} children")
        verdict.check(parent is None or parent in known, f"{place}: {parent} does not exist")
        verdict.check(checkpoint.run_id == log.truth.id, f"{place}: by {checkpoint.run_id}")
