"""The console's client, decoder and reducer in JavaScript (tests/js), and that tests/vectors hold
for our Python decoder and pages as well."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from common.page import Page
from common.sse import Decoder
from deploy.client.transcript import Piece, Transcript
from tests.support import javascript

VECTORS = Path(__file__).parents[1] / "vectors"
Json = dict[str, Any]


def vectors(name: str) -> list[Json]:
    found: list[Json] = json.loads((VECTORS / name).read_text(encoding="utf-8"))
    return found


def named(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", [pytest.param(v, id=v["name"]) for v in vectors(name)])


def test_the_javascript_client_keeps_the_rules_of_the_wire() -> None:
    engine = javascript.engine()
    if engine is None:
        pytest.skip("neither node 18 or newer nor Chromium is installed here")
    found = javascript.outcome(engine)
    assert len(found) > len(vectors("eventstream.json")) + len(vectors("reducer.json"))
    assert [one for one in found if one["failure"] is not None] == []


@named("eventstream.json")
def test_the_python_decoder_passes_the_vector(vector: Json) -> None:
    raw = bytes.fromhex(vector["hex"]) if "hex" in vector else vector["stream"].encode()
    halves = [[raw[:at], raw[at:]] for at in range(len(raw))]
    for chunks in [[raw[at : at + 1] for at in range(len(raw))], *halves]:
        decoder = Decoder()
        events = list(chain.from_iterable(map(decoder.feed, chunks)))
        assert [[e.type, e.data, e.id] for e in events] == vector["events"]
        assert decoder.last_event_id == vector.get("lastEventId", "")
        assert decoder.retry_ms == vector.get("retryMs")


@named("reducer.json")
def test_pages_in_python_keep_the_same_text(vector: Json) -> None:
    transcript, page = Transcript(), Page()
    for event in numbered(vector["events"]):
        if event["sequence"] > transcript.sequence:  # owners read a log in which each stands once
            frame = f"id: 0\ndata: {json.dumps(event)}\n\n"
            page.apply_frames(frame.encode())
        transcript.apply(event)
    assert transcript.sequence == vector["state"].get("sequence", transcript.sequence)
    assert "".join(page.texts.values()) == vector["text"]
    assert sorted(transcript.text) == sorted(vector["text"])  # in the order in which it came


@named("reducer.json")
def test_the_transcript_in_python_has_the_same_pieces(vector: Json) -> None:
    transcript = Transcript()
    for event in numbered(vector["events"]):
        transcript.apply(event)
    wanted = vector["state"].get("pieces")
    if wanted is not None:
        wanted = [one for one in wanted if one.get("kind") not in ("note", "question")]
        assert len(transcript.pieces) == len(wanted)
        assert list(map(told, transcript.pieces, wanted)) == wanted


def told(piece: Piece, names: Json) -> Json:
    """Of a piece what the vector names."""
    known = {"kind": piece.kind, "key": piece.key, "stepId": piece.step_id, "text": piece.text}
    told = {"status": "running", "input": None, "summary": None} | piece.fields | known
    return {name: told.get(name) for name in names}


def numbered(events: list[Json]) -> list[Json]:
    """As tests/vectors/README.md says."""
    whole: list[Json] = []
    last = 0
    for event in events:
        made: Json = {"runId": "run_1", "epoch": 1, "at": "…", "sequence": last + 1} | event
        last = max(last, made["sequence"])
        whole.append(made)
    return whole
