"""I1, seen from the page: whoever keeps the reading rules ends with exactly what is stored.

The history of each client is folded by the transcript that our own terminal client uses: what
`run_resumed` and `step_retried` declare void is taken off. What is left must be the messages in
Postgres and, for a run that completed, what its order says.
"""

from collections import Counter

from deploy.client.transcript import Transcript
from deploy.drill.dossier import Dossier, Log, where
from deploy.drill.frames import body
from deploy.drill.record import Json, Ordered, Seen
from deploy.drill.verdict import Verdict
from runner.graphs.drill.order import expected_customs, expected_texts


def folded_history(dossier: Dossier) -> Verdict:
    verdict = Verdict("I1f", "Folded history is the result")
    for ordered, log in dossier.ordered():
        performed = ordered.order.effect != "none" and dossier.allowed(ordered, log)
        _stored(verdict, ordered, log, performed=performed)
    for seen, log in dossier.watched():
        if seen.start == 0 and seen.finished:
            _page(verdict, dossier.record.ordered[seen.run], seen, log)
    return verdict


def _stored(verdict: Verdict, ordered: Ordered, log: Log, *, performed: bool) -> None:
    """The messages of a completed run are those that its order leads to."""
    if log.truth.status != "completed":
        return
    said = [m.content for m in log.truth.messages if m.role == "assistant"]
    wanted = expected_texts(ordered.order, performed=performed)
    verdict.check(
        Counter(said) == Counter(wanted), f"{ordered.run}: stored {said}, ordered {wanted}"
    )


def _page(verdict: Verdict, ordered: Ordered, seen: Seen, log: Log) -> None:
    transcript, calls = Transcript(), _Calls()
    for frame in seen.frames:
        try:
            event = body(frame.raw)
            transcript.apply(event)
            calls.apply(event)
        except (KeyError, TypeError, AttributeError) as error:  # whatever a damaged event lacks
            verdict.check(False, f"{where(seen, frame)}: cannot be read ({error!r})")
    _texts(verdict, transcript, seen, log)
    if log.truth.status == "completed":
        _customs(verdict, transcript, ordered, seen)
        verdict.check(calls.are_even, f"{where(seen)}: tool calls without their end {calls.counts}")


def _texts(verdict: Verdict, transcript: Transcript, seen: Seen, log: Log) -> None:
    """Of a run that did not complete, the page may hold more than was worth storing."""
    shown: dict[str, str] = {}
    for piece in transcript.pieces:
        if piece.kind == "text":
            shown[piece.key] = shown.get(piece.key, "") + piece.text
    stored = {m.id: m.content for m in log.truth.messages if m.role == "assistant"}
    for message, content in stored.items():
        told = shown.get(message)
        verdict.check(
            told == content, f"{where(seen)}: {message} shows {told!r}, stored is {content!r}"
        )
    if log.truth.status == "completed":
        more = sorted(shown.keys() - stored.keys())
        verdict.check(not more, f"{where(seen)}: shows {more}, which is not stored")


def _customs(verdict: Verdict, transcript: Transcript, ordered: Ordered, seen: Seen) -> None:
    found: dict[str, list[object]] = {}
    for piece in transcript.pieces:
        shown = piece.fields.get("data")
        if piece.kind == "custom" and isinstance(shown, dict):
            found.setdefault(str(shown.get("stream")), []).append(shown.get("number"))
    wanted = expected_customs(ordered.order)
    verdict.check(found == wanted, f"{where(seen)}: custom events {found}, ordered {wanted}")


class _Calls:
    """Tool calls that were not discarded: one end for each beginning (contract §3)."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str | None, str], list[int]] = {}

    def apply(self, event: Json) -> None:
        if event["type"] in ("tool_started", "tool_finished"):
            place = (event.get("stepId"), event["callId"])
            self.counts.setdefault(place, [0, 0])[event["type"] == "tool_finished"] += 1
        elif event["type"] == "run_resumed":
            self._drop(set(event["discard"]))
        elif event["type"] == "step_retried":
            self._drop({event["stepId"]})

    @property
    def are_even(self) -> bool:
        return bool(self.counts) and all(pair == [1, 1] for pair in self.counts.values())

    def _drop(self, steps: set[str]) -> None:
        self.counts = {place: n for place, n in self.counts.items() if place[0] not in steps}
