"""Whether a history keeps the invariants of Steadyrun: pure, so that it can itself be tested.

`record` is what clients saw and what was acknowledged, `truth` what Postgres and the world outside
say in the end. Each invariant counts what it compared: one that compared nothing was not checked.
"""

from deploy.drill.dossier import Dossier
from deploy.drill.invariants.effects import effects_once
from deploy.drill.invariants.folding import folded_history
from deploy.drill.invariants.gapless import no_silent_gap
from deploy.drill.invariants.history import exact_history
from deploy.drill.invariants.leaks import no_leak
from deploy.drill.invariants.memory import memory_bounded
from deploy.drill.invariants.owner import one_owner
from deploy.drill.invariants.progress import nothing_stuck
from deploy.drill.invariants.telling import persist_then_tell
from deploy.drill.invariants.winner import one_winner
from deploy.drill.record import Record
from deploy.drill.truth import Truth
from deploy.drill.verdict import Verdict, summed

__all__ = ["Verdict", "check", "summed"]


def check(record: Record, truth: Truth) -> list[Verdict]:
    """One verdict for each invariant, in their order; `I1f` is I1 as a page shows it."""
    dossier = Dossier.of(record, truth)
    return [
        exact_history(dossier),
        folded_history(dossier),
        persist_then_tell(dossier),
        one_owner(dossier),
        one_winner(dossier),
        effects_once(dossier),
        nothing_stuck(dossier),
        no_silent_gap(dossier),
        memory_bounded(record.weights),
        no_leak(dossier),
    ]
