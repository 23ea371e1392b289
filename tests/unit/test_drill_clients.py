"""The pure parts of a drill's clients: frames, plans, gaps, and the graph that they watch."""

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from common.events import Event, encode_frame
from deploy.drill.case import Case
from deploy.drill.frames import UNREADABLE, Cut, Splitter, body, cut, framed
from deploy.drill.gaps import Gap, gaps
from deploy.drill.record import FaultNote, Frame, Ordered, Record, Seen
from deploy.drill.story import Sizes, plot
from runner.authoring import rehearsal
from runner.graphs.drill.effect import FOLDER_VARIABLE
from runner.graphs.drill.graph import graph
from runner.graphs.drill.order import MASK, Order, expected_customs, expected_texts

FRAMES = [
    encode_frame(
        Event("custom", {"data": {"n": n, "text": "数"}}, "s"),
        run_id="run_a",
        sequence=n,
        epoch=1,
        at="2026-01-01T00:00:00.000Z",
    )
    for n in range(1, 9)
]
STREAM = b": keep-alive\nretry: 1500\n" + b": keep-alive\n".join(FRAMES) + b": drain\nid: 9\nev"


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
@settings(deadline=None)
def test_frames_are_the_same_wherever_the_stream_is_cut(places: list[int]) -> None:
    splitter = Splitter()
    chunks = [STREAM[a:b] for a, b in pairwise([0, *sorted(places), len(STREAM)])]
    found = [frame for chunk in chunks for frame in splitter.feed(chunk)]
    assert [frame.raw for frame in found] == FRAMES
    assert [frame.sequence for frame in found] == list(range(1, 9))
    assert {frame.type for frame in found} == {"custom"}


def test_what_is_no_event_of_ours_is_kept_as_unreadable() -> None:
    assert cut(b"data: {}").sequence == UNREADABLE
    assert cut(b"id: x1\nevent: done\ndata: {}").sequence == UNREADABLE
    assert body(b"id: 1\nevent: done\ndata: {\n\n") == {}


def test_an_event_of_a_page_has_the_bytes_of_its_frame() -> None:
    for raw in FRAMES:
        assert framed(body(raw)) == cut(raw[:-2])
        assert framed(body(raw)).raw == raw


def test_a_seed_repeats_its_plan() -> None:
    sizes = Sizes(3, (2, 5), (5, 30))
    first, second = random.Random(5), random.Random(5)
    assert [plot(first, sizes) for _ in range(20)] == [plot(second, sizes) for _ in range(20)]
    assert plot(random.Random(6), sizes) != plot(random.Random(5), sizes)


def test_a_plan_has_runs_of_all_kinds() -> None:
    rng = random.Random(1)
    plots = [plot(rng, Sizes(4, (2, 5), (5, 30))) for _ in range(100)]
    assert {p.begins for p in plots} == {"plainly", "twice", "streaming"}
    assert {p.order.effect for p in plots} == {"none", "verified", "bare"}
    assert {p.order.question for p in plots} == {True, False}
    assert len({p.order.tag for p in plots}) == 100
    names = {habit.name for p in plots for habit in p.habits}
    assert names == {
        "steady", "restless", "pages", "library", "late", "slow", "pauses", "newcomer",
    }  # fmt: skip


async def test_a_question_is_put_once_whoever_sees_it() -> None:
    case = Case("run_a", "ada")
    asked = Cut(3, "interrupt", b'id: 3\nevent: interrupt\ndata: {"interruptId":"int_a"}\n\n')
    for frame in (Cut(1, "run_started", b""), asked, asked):
        case.see(frame)
    assert phase_of(case) == "waiting"
    assert case.questions.get_nowait() == ("int_a", "confirm")
    assert case.questions.empty()
    case.see(Cut(4, "run_resumed", b""))
    case.see(asked)  # by a client that is behind
    assert phase_of(case) == "streaming"
    assert not case.ended.is_set()
    case.see(Cut(5, "done", b""))
    assert phase_of(case) == "ended"
    assert case.ended.is_set()


def phase_of(case: Case) -> str:
    return case.phase


# gaps


def arriving(*events: tuple[int, str, float, int]) -> Record:
    """A record of one run: (sequence, type, moment, epoch)."""
    record = Record(ordered={"run_a": Ordered("run_a", "ada", Order("a"), 0.0)})
    frames = [
        Frame(n, type_, b'id: 1\nevent: x\ndata: {"epoch":%d}\n\n' % epoch, at, 0)
        for n, type_, at, epoch in events
    ]
    record.clients.append(Seen("steady", "run_a", frames=frames))
    record.faults.append(FaultNote("runner-kill", "runner-1", 10.0))
    return record


def test_the_gap_is_the_silence_after_what_was_still_under_way() -> None:
    record = arriving((1, "custom", 9.9, 1), (2, "custom", 10.01, 1), (3, "run_resumed", 10.8, 2))
    (gap,) = gaps(record)
    assert (gap.fault, gap.target, gap.run) == ("runner-kill", "runner-1", "run_a")
    assert gap.seconds == pytest.approx(0.79)
    assert gap.taken_over


def test_the_first_client_to_have_an_event_counts() -> None:
    record = arriving((1, "custom", 9.9, 1), (2, "custom", 13.0, 1), (3, "custom", 13.0, 1))
    other = Seen("late", "run_a", frames=[replace(record.clients[0].frames[2], at=10.5)])
    record.clients.append(other)
    assert gaps(record) == [Gap("runner-kill", "runner-1", "run_a", 0.5, False)]


def test_a_run_that_did_not_stream_has_no_gap() -> None:
    assert gaps(arriving((1, "custom", 9.0, 1), (2, "interrupt", 9.5, 1))) == []
    assert gaps(arriving((1, "custom", 9.0, 1), (2, "done", 9.5, 1))) == []
    assert gaps(arriving((1, "run_started", 11.0, 1))) == []


def test_a_run_that_never_went_on_has_a_gap_without_end() -> None:
    (gap,) = gaps(arriving((1, "custom", 9.9, 1)))
    assert gap.seconds is None


def test_a_pause_for_a_person_is_no_gap() -> None:
    record = arriving((1, "custom", 9.9, 1), (2, "interrupt", 10.1, 1), (3, "custom", 60.0, 2))
    (gap,) = gaps(record)
    assert gap.seconds == pytest.approx(0.1)


# the graph


@pytest.mark.parametrize("approve", [True, False])
async def test_the_graph_says_what_its_order_leads_to(
    approve: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    order = Order(
        "t", words=3, pace_ms=0, question=True, on_reject="continue", effect="bare", secret="sk-12"
    )
    compiled = cast(Any, graph).compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "t"}}
    customs: dict[str, list[int]] = {}
    given: Any = {"messages": [("user", order.content())]}
    with rehearsal():
        decided: Any = Command(resume={"type": "approve" if approve else "reject"})
        for step in (given, decided):
            async for _, part in compiled.astream(
                step, config, stream_mode="custom", subgraphs=True
            ):
                customs.setdefault(part["stream"], []).append(part["number"])
    state = await compiled.aget_state(config)
    texts = [m.text for m in state.values["messages"] if m.type == "ai" and m.text]
    masked = [text.replace(order.secret, MASK) for text in texts]
    assert Counter(masked) == Counter(expected_texts(order, performed=approve))
    assert customs == expected_customs(order)
    assert lines_in(tmp_path) == ([1] if approve else [])


def lines_in(folder: Path) -> list[int]:
    return [len(file.read_text().splitlines()) for file in folder.iterdir()]
