"""I7: no response hides that something is missing, and none ends as if it were the end."""

from collections.abc import Sequence

from common.events import TERMINAL
from deploy.drill.dossier import Dossier, Log, frames_of_links, where
from deploy.drill.record import Frame, Link, Seen
from deploy.drill.verdict import Verdict

_EXPECTED = frozenset({None, 200, 204, 429, 502, 503, 504})
"""Nothing has expired yet in a drill, so 410 is not among them."""


def no_silent_gap(dossier: Dossier) -> Verdict:
    verdict = Verdict("I7", "No silent gap, no false end")
    for seen, log in dossier.watched():
        for link, frames in zip(seen.links, frames_of_links(seen), strict=True):
            _link(verdict, seen, log, link, frames)
    return verdict


def _link(verdict: Verdict, seen: Seen, log: Log, link: Link, frames: Sequence[Frame]) -> None:
    cursor = frames[-1].sequence if frames else link.after
    place = f"{where(seen)} #{cursor} at {link.address}"
    verdict.check(
        link.status in _EXPECTED, f"{place}: {link.way} was answered {link.status} {link.detail}"
    )
    if link.status == 204 or link.complete:
        told = "204" if link.status == 204 else "complete"
        at_end = log.is_closed and cursor >= log.last_sequence
        verdict.check(at_end, f"{place}: told {told}, and the log goes on to #{log.last_sequence}")
    elif link.status == 200 and link.ended == "clean" and link.way != "page":
        right = _is_end(log, link, cursor, frames)
        verdict.check(right, f"{place}: {link.way} until={link.until} ended as if it were the end")


def _is_end(log: Log, link: Link, cursor: int, frames: Sequence[Frame]) -> bool:
    if frames and frames[-1].type in TERMINAL:
        return True
    if log.is_closed and cursor >= log.last_sequence:
        return True
    return link.until == "interrupt" and bool(frames) and log.is_end_of_pause(cursor)
