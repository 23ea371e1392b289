"""I9: no secret, stack trace or address of a server, and nothing of one user for another."""

import json
from collections.abc import Iterable

from deploy.drill.dossier import Dossier, where
from deploy.drill.verdict import Verdict

_NEVER = (b"Traceback (most recent call last)", b"postgresql://", b"redis://", b'File \\"/')


def no_leak(dossier: Dossier) -> Verdict:
    verdict = Verdict("I9", "No leak")
    record = dossier.record
    needles = [*_NEVER, *(secret.encode() for secret in sorted(record.secrets))]
    for seen in record.clients:
        for frame in seen.frames:
            _clean(verdict, frame.raw, needles, where(seen, frame))
    for log in dossier.logs.values():
        for message in log.truth.messages:
            place = f"{log.truth.id} message {message.id}"
            _clean(verdict, message.content.encode(), needles, place)
    for act in record.acts:
        answer = json.dumps(act.answer).encode()
        _clean(verdict, answer, needles, f"{act.run} answer to {act.what} {act.key}")
    for look in record.looks:
        answer = json.dumps(look.found).encode()
        _clean(
            verdict, answer, needles, f"{look.run} {look.client} #{look.sequence} the run's page"
        )
    _strangers(verdict, dossier)
    return verdict


def _clean(verdict: Verdict, text: bytes, needles: Iterable[bytes], place: str) -> None:
    found = next((needle for needle in needles if needle in text), None)
    verdict.check(found is None, f"{place}: holds {found!r}")


def _strangers(verdict: Verdict, dossier: Dossier) -> None:
    """To somebody else it does not exist. While a gateway is away there is no answer to judge."""
    for knock in dossier.record.knocks:
        if knock.status not in (429, 502, 503, 504):
            verdict.check(
                knock.status == 404,
                f"{knock.run}: a stranger's {knock.path} was answered {knock.status}",
            )
