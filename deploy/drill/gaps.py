"""How long clients had to wait for the next event of a run after a fault: pure."""

from dataclasses import dataclass

from deploy.drill.record import Record


@dataclass(frozen=True, slots=True)
class Gap:
    """A run that streamed when the fault began. `seconds`: the silence that followed, till its next
    event; None: it never had one. `taken_over`: that event came from a new owner."""

    fault: str
    target: str
    run: str
    seconds: float | None
    taken_over: bool


def gaps(record: Record) -> list[Gap]:
    """One for each fault and each run that streamed at that moment."""
    raise NotImplementedError
