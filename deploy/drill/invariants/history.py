"""I1: each client has every event of its run once, in order, with the same bytes as all others."""

from collections.abc import Sequence

from deploy.drill.dossier import Dossier, Entry, Log, may_jump, where
from deploy.drill.frames import body
from deploy.drill.record import Frame, Seen
from deploy.drill.verdict import Verdict


def exact_history(dossier: Dossier) -> Verdict:
    verdict = Verdict("I1", "Exact history")
    for log in dossier.logs.values():
        _chain(verdict, log)
        _numbers(verdict, log)
    voids: Voids | None = {} if dossier.may_lose_a_tail else None
    for seen, log in dossier.watched():
        _follow(verdict, seen, log, voids)
    return verdict


def _chain(verdict: Verdict, log: Log) -> None:
    """Each row of the archive follows the one before it, and holds what it says it holds."""
    run, top = log.truth.id, 0
    for batch in log.truth.batches:
        verdict.check(
            batch.after == top and batch.after < batch.first,
            f"{run} archive #{batch.first}: follows {batch.after}, the one before ended at {top}",
        )
        top = batch.last
    numbered = sum(batch.last - batch.first + 1 for batch in log.truth.batches)
    verdict.check(
        numbered == len(log.entries),
        f"{run} archive: {len(log.entries)} events under {numbered} numbers",
    )


def _numbers(verdict: Verdict, log: Log) -> None:
    """Consecutive, but for a jump at a failover; and each event says of itself what its frame does.

    The clients' frames are compared with these bytes, so what holds here holds for them.
    """
    run, before = log.truth.id, 0
    for entry in log.entries:
        event, place = entry.event, f"{run} archive #{entry.sequence}"
        follows = entry.sequence == before + 1 or (entry.sequence > before and may_jump(entry))
        verdict.check(follows, f"{place}: comes after #{before}")
        said = (event.get("runId"), event.get("sequence"), event.get("type"))
        verdict.check(said == (run, entry.sequence, entry.type), f"{place}: says {said}")
        before = entry.sequence


Voids = dict[tuple[str, int], bytes]
"""What clients have seen of a lost tail, by run and number."""


def _follow(verdict: Verdict, seen: Seen, log: Log, voids: Voids | None) -> None:
    """Compare one client's frames with the log, one by one; after a fault go on behind it."""
    expected = log.after(seen.start)
    position, before = 0, seen.start
    for frame in seen.frames:
        if voids is not None and _is_void(frame, log):
            _compare_void(verdict, seen, frame, before, voids)
        else:
            position = _compare(verdict, seen, frame, log, expected, position)
        before = frame.sequence
    if seen.finished:
        missing = expected[position:]
        verdict.check(not missing, f"{where(seen)}: lost the end, {_range(missing)}")


def _is_void(frame: Frame, log: Log) -> bool:
    """Shown by a runner that died together with the only place that had it: the next owner has
    jumped over its number, and told by `discard` what to drop of it."""
    resumed = log.jump_over(frame.sequence)
    is_logged = frame.sequence in log.place
    return not is_logged and resumed is not None and body(frame.raw).get("epoch", 0) < resumed.epoch


def _compare_void(verdict: Verdict, seen: Seen, frame: Frame, before: int, voids: Voids) -> None:
    """No log has it any more; the clients that have seen it have seen the same, without a hole."""
    place = where(seen, frame)
    first = voids.setdefault((seen.run, frame.sequence), frame.raw)
    verdict.check(first == frame.raw, f"{place}: other bytes than another client's")
    verdict.check(frame.sequence == before + 1, f"{place}: came after #{before}")


def _compare(
    verdict: Verdict, seen: Seen, frame: Frame, log: Log, expected: Sequence[Entry], position: int
) -> int:
    """The position behind this frame."""
    place = where(seen, frame)
    found = log.place.get(frame.sequence)
    if not verdict.check(found is not None, f"{place}: is in no log"):
        return position
    index = (found or 0) - (len(log.entries) - len(expected))
    if not verdict.check(index >= position, f"{place}: came again, or out of order"):
        return position
    lost = expected[position:index]
    verdict.check(not lost, f"{place}: lost {_range(lost)} before it")
    verdict.check(frame.raw == expected[index].frame.raw, f"{place}: other bytes than the log's")
    return index + 1


def _range(entries: Sequence[Entry]) -> str:
    return f"#{entries[0].sequence}…#{entries[-1].sequence}" if entries else "nothing"
