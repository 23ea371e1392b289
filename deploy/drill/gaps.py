"""How long clients had to wait for the next event of a run after a fault: pure.

The events that were under way when a runner died still arrive, a moment later. So what counts is
the longest silence that begins with the fault or soon after it, among all that clients of the run
received, taken together: its first client to have an event has it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from common.events import TERMINAL
from deploy.drill.frames import body
from deploy.drill.record import FaultNote, Frame, Record

SOON_S = 0.5
_SILENT = TERMINAL | {"interrupt", "run_paused"}
"""After these a run owes nobody an event."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A run that streamed when the fault began. `seconds`: the longest silence that followed;
    None: it never had another event. `taken_over`: the next event came from a new owner."""

    fault: str
    target: str
    run: str
    seconds: float | None
    taken_over: bool


def gaps(record: Record) -> list[Gap]:
    """One for each fault and each run that streamed at that moment."""
    runs = {run: _arrivals(record, run) for run in record.ordered}
    found = [_gap(fault, run, seen) for fault in record.faults for run, seen in runs.items()]
    return [gap for gap in found if gap is not None]


def _arrivals(record: Record, run: str) -> list[Frame]:
    """Each event when the first client had it, in order of sequence.

    A later event seen earlier (by a client that joined elsewhere) takes the ones before it along.
    """
    first: dict[int, Frame] = {}
    for seen in record.of(run):
        for frame in seen.frames:
            known = first.get(frame.sequence)
            if known is None or frame.at < known.at:
                first[frame.sequence] = frame
    found: list[Frame] = []
    for sequence in sorted(first, reverse=True):
        frame = first[sequence]
        found.append(replace(frame, at=min(frame.at, found[-1].at)) if found else frame)
    return found[::-1]


def _gap(fault: FaultNote, run: str, arrivals: Sequence[Frame]) -> Gap | None:
    before = [frame for frame in arrivals if frame.at <= fault.began_at]
    if not before or before[-1].type in _SILENT:
        return None
    following = arrivals[len(before) :]
    silences = [
        (max(later.at - max(earlier.at, fault.began_at), 0.0), earlier, later)
        for earlier, later in pairwise([before[-1], *following])
        if earlier.at <= fault.began_at + SOON_S and earlier.type not in _SILENT
    ]
    if not silences:
        return Gap(fault.name, fault.target, run, None, False)
    seconds, earlier, later = max(silences, key=lambda silence: silence[0])
    taken_over = _epoch(later) > _epoch(earlier)
    return Gap(fault.name, fault.target, run, seconds, taken_over)


def _epoch(frame: Frame) -> int:
    epoch = body(frame.raw).get("epoch")
    return epoch if isinstance(epoch, int) else 0
