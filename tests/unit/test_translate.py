"""The rules of translation, one by one (contract §3). Chunks are as recordings show them."""

from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.types import Command

from common.db.messages import NewMessage
from common.events import Event
from common.ids import stable_id
from common.masking import MASK, Masker
from common.page import Page
from runner.steps import START_KEY, Stepped, Steps
from runner.translate import Translator
from tests.support.record_chunks import load
from tests.support.scripted import call, say, usage
from tests.support.translated import told, translator

Fed = list[tuple[str, str | None, dict[str, Any]]]


class Stream:
    """A translator and short words for its chunks. Steps are called A, B, …"""

    def __init__(self, **options: Any) -> None:
        self.steps = Steps()
        given = {"run_id": "run_1", "mask": Masker(), "callback": self.steps, **options}
        self.translator = Translator(**given)
        self.all: Fed = []
        self.page = Page()

    def stored(self) -> list[NewMessage]:
        """What is stored of the page."""
        return list(self.page.messages("run_1").values())

    def feed(self, kind: str, data: Any, ns: tuple[str, ...] = ()) -> Fed:
        events = self.translator.feed({"type": kind, "ns": ns, "data": data})
        return self._note(events)

    def close(self) -> Fed:
        return self._note(self.translator.close())

    def start(self, step: str, ns: tuple[str, ...] = ()) -> Fed:
        self.steps.starts.setdefault(step, 1)
        data: dict[str, Any] = {"id": step, "name": f"node{step}", "input": {}, "triggers": ()}
        return self.feed("tasks", data, ns)

    def result(self, step: str, **more: Any) -> Fed:
        data: dict[str, Any] = {
            "id": step,
            "name": f"node{step}",
            "error": None,
            "result": {},
            "interrupts": [],
        }
        return self.feed("tasks", {**data, **more})

    def message(self, message: Any, step: str = "A", start: int | None = None) -> Fed:
        meta: dict[str, Any] = {"langgraph_checkpoint_ns": f"node:{step}"}
        if start is not None:
            meta[START_KEY] = start
        return self.feed("messages", (message, meta))

    def chunk(self, text: Any, step: str = "A", start: int | None = 1, **fields: Any) -> Fed:
        fields = {"id": f"native-{step}", **fields}
        return self.message(AIMessageChunk(content=text, **fields), step, start)

    def tool(self, event: str, call_id: str = "c1", ns: tuple[str, ...] = (), **more: Any) -> Fed:
        return self.feed("tools", {"event": event, "tool_call_id": call_id, **more}, ns)

    def begin(self, call_id: str = "c1", step: str = "A", start: int = 1, **more: Any) -> Fed:
        self.steps.calls.setdefault(call_id, []).append((step, start))
        return self.tool("tool-started", call_id, tool_name="look", **more)

    def custom(self, value: Any, step: str = "A", start: int = 1) -> Fed:
        return self.feed("custom", Stepped(step, start, value))

    def _note(self, events: Any) -> Fed:
        self.page.apply(events)
        fed = [(event.type, event.step_id, event.fields) for event in events]
        self.all += fed
        return fed

    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.all]


@pytest.fixture
def stream() -> Stream:
    stream = Stream()
    stream.start("A")
    stream.all.clear()
    return stream


def texts(fed: Fed) -> str:
    return "".join(fields["delta"] for kind, _, fields in fed if kind == "text_delta")


# text


def test_a_message_has_the_id_it_will_be_stored_under(stream: Stream) -> None:
    [(_, step, fields)] = stream.chunk("Hello")
    assert step == "A"
    assert fields == {"messageId": stable_id("msg", "run_1", "native-A"), "delta": "Hello"}
    stream.result("A")
    [stored] = stream.stored()
    assert (stored.id, stored.role, stored.content) == (fields["messageId"], "assistant", "Hello")


def test_a_secret_is_hidden_across_chunks_and_as_it_is_stored(stream: Stream) -> None:
    for piece in ("the key is sk", "-abcdefgh", "1234567890 ", "ok"):
        stream.chunk(piece)
    stream.result("A")
    assert texts(stream.all) == f"the key is {MASK} ok"
    [stored] = stream.stored()
    assert stored.content == f"the key is {MASK} ok"


@pytest.mark.parametrize(
    "later",
    [
        lambda s: s.begin(),
        lambda s: s.message(ToolMessage("x", tool_call_id="c9", id="t"), "A"),
        lambda s: s.result("A"),
        lambda s: s.chunk("", chunk_position="last"),
        lambda s: s.close(),
    ],
)
def test_held_back_text_comes_before_what_is_later_in_its_step(stream: Stream, later: Any) -> None:
    stream.chunk("say ey")
    assert texts(stream.all) == "say "
    fed = later(stream)
    assert fed[0][0] == "text_delta"
    assert texts(stream.all) == "say ey"


def test_progress_waits_behind_text_that_is_held_back(stream: Stream) -> None:
    stream.chunk("say ey")
    assert stream.custom("progress") == []
    fed = stream.chunk("e to eye")
    assert [kind for kind, _, _ in fed] == ["text_delta", "custom"]
    stream.chunk(" ey")
    stream.custom("last")
    assert stream.kinds()[-1] == "text_delta"
    stream.result("A")
    assert stream.kinds()[-3:] == ["text_delta", "custom", "step_finished"]


def test_text_that_is_held_back_does_not_hold_other_steps(stream: Stream) -> None:
    stream.start("B")
    stream.chunk("say ey")
    assert [kind for kind, _, _ in stream.custom("x", "B")] == ["custom"]
    assert texts(stream.chunk("free", "B")) == "free"


def test_two_models_in_one_step_are_two_messages(stream: Stream) -> None:
    stream.chunk("one", id="n1")
    stream.chunk("two", id="n2")
    stream.chunk(" more", id="n1")
    stream.result("A")
    assert [m.content for m in stream.stored()] == ["one more", "two"]


def test_an_empty_last_chunk_under_another_id_ends_the_message_and_is_none(stream: Stream) -> None:
    stream.chunk("say ey", id="provider-1")
    fed = stream.chunk("", id="lc_run--1", chunk_position="last")
    assert texts(fed) == "ey"
    stream.result("A")
    assert len(stream.stored()) == 1


@pytest.mark.parametrize(
    "message",
    [
        HumanMessage("secret prompt", id="h"),
        SystemMessage("secret prompt", id="s"),
        RemoveMessage(id="r"),
        {"event": "message-start"},
        AIMessage("", id="empty-0"),
    ],
)
def test_what_is_no_answer_of_a_model_is_not_shown(stream: Stream, message: Any) -> None:
    assert stream.message(message) == []
    assert stream.stored() == []


def test_known_messages_are_not_told_again() -> None:
    stream = Stream(seen={"old"})
    stream.start("A")
    assert stream.message(AIMessage("old text", id="old")) == []
    assert stream.message(ToolMessage("x", tool_call_id="c1", id="old")) == []
    assert texts(stream.message(AIMessage("new text", id="new-0"))) == "new text"
    assert stream.message(AIMessage("new text", id="new-0")) == []


def test_a_streamed_message_that_a_node_returns_again_is_told_once(stream: Stream) -> None:
    stream.chunk("Hello", id="n1")
    stream.result("A")
    stream.start("B")
    assert stream.message(AIMessage("Hello", id="n1"), "B") == []


def test_reasoning_is_told_apart_from_text(stream: Stream) -> None:
    blocks = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "first"}]},
        {"type": "thinking", "thinking": " then"},
        {"type": "text", "text": "So"},
        {"type": "image", "url": "x"},
    ]
    stream.chunk(blocks)
    stream.chunk("", additional_kwargs={"reasoning_content": " hm"})
    told_ = [(kind, fields["delta"]) for kind, _, fields in stream.all]
    assert told_ == [
        ("reasoning_delta", "first"),
        ("reasoning_delta", " then"),
        ("text_delta", "So"),
        ("reasoning_delta", " hm"),
    ]
    stream.result("A")
    assert [m.content for m in stream.stored()] == ["So"]


def test_a_tool_call_of_a_model_is_no_text(stream: Stream) -> None:
    for chunk in call("look", "c1"):
        assert stream.message(chunk.model_copy(update={"id": "n"}), "A", 1) == []


# usage


def counted(stream: Stream, *pairs: tuple[int, int]) -> list[tuple[int, int, int]]:
    stream.chunk("text")
    for one in (chunk for pair in pairs for chunk in usage(*pair)):
        stream.message(one.model_copy(update={"id": "native-A"}), "A", 1)
    stream.result("A")
    told_ = [fields for kind, _, fields in stream.all if kind == "usage"]
    return [(f["inputTokens"], f["outputTokens"], f["totalTokens"]) for f in told_]


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], []),
        ([(5, 6)], [(5, 6, 11)]),
        ([(5, 0), (0, 6)], [(5, 6, 11)]),
        ([(5, 1), (0, 3), (0, 3)], [(5, 7, 12)]),
        ([(5, 1), (5, 3), (5, 6)], [(5, 6, 11)]),
        ([(0, 0)], []),
    ],
)
def test_usage_is_told_once_a_model_call_whatever_the_provider_sends(
    stream: Stream, pairs: list[tuple[int, int]], expected: list[tuple[int, int, int]]
) -> None:
    assert counted(stream, *pairs) == expected


def test_usage_that_comes_under_another_id_belongs_to_the_open_message(stream: Stream) -> None:
    [(_, _, said)] = stream.chunk("text", id="provider-1")
    stream.message(usage(1, 2)[0].model_copy(update={"id": "lc_run--x"}), "A", 1)
    stream.result("A")
    [told_] = [fields for kind, _, fields in stream.all if kind == "usage"]
    assert told_["messageId"] == said["messageId"]


# tools


def test_a_tool_is_told_with_masked_bounded_input_and_summary(stream: Stream) -> None:
    [(_, step, fields)] = stream.begin(input={"api_key": "k", "text": "y" * 10_000})
    assert (step, fields["callId"], fields["tool"]) == ("A", "c1", "look")
    assert fields["input"]["api_key"] == MASK
    assert len(fields["input"]["text"]) < 4_096
    output = ToolMessage("password=hunter2 " + "z" * 10_000, tool_call_id="c1")
    [(kind, step, fields)] = stream.tool("tool-finished", output=output)
    assert (kind, step, fields["status"]) == ("tool_finished", "A", "success")
    assert fields["summary"].startswith(f"password={MASK} zzz")
    assert len(fields["summary"].encode()) <= 4_096


@pytest.mark.parametrize(
    ("output", "status", "summary"),
    [
        ("plain", "success", "plain"),
        ({"rows": 3}, "success", '{"rows": 3}'),
        (None, "success", "null"),
        (object(), "success", '"<object>"'),
        (ToolMessage("no", tool_call_id="c1", status="error"), "error", "no"),
        (ToolMessage([{"type": "text", "text": "ab"}], tool_call_id="c1"), "success", "ab"),
        (
            Command(update={"messages": [ToolMessage("in", tool_call_id="c1")], "n": 1}),
            "success",
            "in",
        ),
        (
            [Command(update={"messages": [ToolMessage("x", tool_call_id="c1", status="error")]})],
            "error",
            "x",
        ),
        (Command(goto="elsewhere"), "success", ""),
    ],
)
def test_what_a_tool_returns_becomes_status_and_summary(
    stream: Stream, output: Any, status: str, summary: str
) -> None:
    stream.begin()
    [(_, _, fields)] = stream.tool("tool-finished", output=output)
    assert (fields["status"], fields["summary"]) == (status, summary)


def test_what_a_tool_raises_is_not_shown(stream: Stream) -> None:
    stream.begin()
    [(_, _, fields)] = stream.tool("tool-error", message="postgresql://u:secret@db")
    assert fields == {"callId": "c1", "tool": "look", "status": "error"}


def finishes(stream: Stream) -> int:
    return stream.kinds().count("tool_finished")


def test_a_tool_finishes_once_though_its_message_follows(stream: Stream) -> None:
    stream.begin()
    stream.tool("tool-finished", output="x")
    stream.message(ToolMessage("x", tool_call_id="c1", id="t1"))
    stream.result("A")
    stream.close()
    assert finishes(stream) == 1


def test_a_call_that_never_began_has_a_finish_only(stream: Stream) -> None:
    refused = ToolMessage("rejected", tool_call_id="c1", name="look", status="error", id="t1")
    [(kind, _, fields)] = stream.message(refused)
    assert (kind, fields["status"], fields["summary"]) == ("tool_finished", "error", "rejected")


def test_a_tool_that_a_failure_left_open_is_finished_with_its_step(stream: Stream) -> None:
    stream.begin()
    stream.result("A", error=ValueError("x"))
    assert stream.kinds() == ["tool_started", "tool_finished", "step_finished"]
    stream.close()
    assert finishes(stream) == 1


def test_a_stream_that_breaks_off_ends_what_was_open(stream: Stream) -> None:
    stream.begin()
    stream.chunk("say ey")
    stream.close()
    assert stream.kinds()[-3:] == ["text_delta", "tool_finished", "step_finished"]
    assert stream.all[-1][2]["status"] == "error"
    assert [m.content for m in stream.stored()] == ["say ey"]
    assert stream.close() == []


def test_a_tool_that_waits_for_a_person_has_not_finished(stream: Stream) -> None:
    stream.begin()
    stream.result("A", interrupts=[{"value": "sure?", "id": "x"}])
    stream.close()
    assert stream.kinds() == ["tool_started", "step_finished"]
    assert stream.all[-1][2]["status"] == "interrupted"


def test_the_same_call_id_in_parallel_graphs_is_two_calls(stream: Stream) -> None:
    stream.start("B")
    stream.steps.calls["c1"] = [("A", 1), ("B", 1)]
    stream.tool("tool-started", ns=("x:1",), tool_name="look")
    stream.tool("tool-started", ns=("x:2",), tool_name="look")
    stream.tool("tool-finished", ns=("x:2",), output="second")
    stream.tool("tool-finished", ns=("x:1",), output="first")
    ends = [(step, f["summary"]) for kind, step, f in stream.all if kind == "tool_finished"]
    assert ends == [("B", "second"), ("A", "first")]


def test_a_hidden_tool_shows_nothing(stream: Stream) -> None:
    stream.steps.hidden.add("c1")
    assert stream.message(ToolMessage("x", tool_call_id="c1", id="t")) == []
    assert stream.stored() == []


# attempts


def test_a_later_start_is_told_before_what_it_shows(stream: Stream) -> None:
    stream.chunk("half", start=1)
    fed = stream.chunk("whole", start=2, id="native-2")
    assert fed[0] == ("step_retried", "A", {"attempt": 2})
    assert texts(fed) == "whole"
    stream.result("A")
    assert [m.content for m in stream.stored()] == ["whole"]


def test_what_an_earlier_attempt_left_open_is_gone(stream: Stream) -> None:
    stream.begin()
    stream.chunk("say ey")
    stream.custom("waiting")
    stream.steps.starts["A"] = 2
    fed = stream.result("A")
    assert [kind for kind, _, _ in fed] == ["step_retried", "step_finished"]
    assert stream.close() == []


def test_stragglers_of_an_earlier_attempt_are_dropped(stream: Stream) -> None:
    stream.chunk("new", start=2)
    assert stream.chunk("old", start=1) == []
    assert stream.custom("old", start=1) == []
    assert stream.begin(start=1) == []


def test_messages_of_the_node_itself_count_for_the_attempt_that_returned_them(
    stream: Stream,
) -> None:
    stream.steps.starts["A"] = 2
    fed = stream.message(AIMessage("made", id="m-0"))
    assert [kind for kind, _, _ in fed] == ["step_retried", "text_delta"]


# steps, take-ups


def test_step_events_are_a_setting() -> None:
    stream = Stream(steps=False)
    stream.start("A")
    stream.chunk("x")
    stream.result("A")
    assert stream.kinds() == ["text_delta"]
    assert len(stream.stored()) == 1


def test_after_a_take_up_finished_siblings_are_not_announced_again() -> None:
    stream = Stream(finished={"A"})
    assert stream.start("A") == []
    assert [kind for kind, _, _ in stream.start("B")] == ["step_started"]
    stream.result("B")
    assert [kind for kind, _, _ in stream.start("C")] == ["step_started"]
    stream.close()
    assert [step for kind, step, _ in stream.all if kind == "step_finished"] == ["B", "C"]


def test_finished_steps_of_child_graphs_are_known_by_name() -> None:
    stream = Stream(finished={"A"})
    stream.start("P")
    assert stream.start("A", ns=("nodeP:P",)) == []
    assert stream.start("B", ns=("nodeP:P",)) != []


def test_the_recording_of_a_take_up_shows_only_what_is_executed() -> None:
    recording = load("the_other_answered")
    ids = {c["data"]["name"]: c["data"]["id"] for c in recording.chunks if c["type"] == "tasks"}
    assert told(recording, translator(recording, finished={ids["a"]})) == [
        "step_started b#1",
        'custom b#1 "b begins"',
        "step_finished b#1 success",
    ]


def test_a_step_that_is_executed_again_unannounced_is_told_as_retried(stream: Stream) -> None:
    stream.result("A", interrupts=[{"value": "?", "id": "x"}])
    fed = stream.start("A")
    assert [kind for kind, _, _ in fed] == ["step_retried", "step_started"]


def test_a_finished_step_that_is_announced_again_is_not(stream: Stream) -> None:
    stream.result("A")
    assert stream.start("A") == []


@pytest.mark.parametrize("end", [{"error": ValueError("x")}, {"interrupts": [{"id": "x"}]}])
def test_what_a_step_without_a_result_has_said_stands(stream: Stream, end: Any) -> None:
    """Until it is executed again; if that never happens, clients keep it, and so does history."""
    stream.chunk("shown")
    stream.result("A", **end)
    assert [m.content for m in stream.stored()] == ["shown"]
    stream.page.apply([Event("run_resumed", {"reason": "failover", "discard": ["A"]})])
    assert stream.stored() == []


def test_a_step_that_an_earlier_take_up_has_shown_is_retried_if_it_is_executed() -> None:
    stream = Stream(shown=["A"])
    stream.steps.starts["A"] = 0
    data: dict[str, Any] = {"id": "A", "name": "nodeA", "input": {}, "triggers": ()}
    assert stream.feed("tasks", data) == []
    stream.steps.starts["A"] = 1
    assert [kind for kind, _, _ in stream.chunk("again")] == [
        "step_retried",
        "step_started",
        "text_delta",
    ]
    assert [kind for kind, _, _ in stream.result("A")] == ["step_finished"]


def test_a_step_that_an_earlier_take_up_has_shown_and_ended_is_only_announced_again() -> None:
    stream = Stream(shown=["A"])
    stream.steps.starts["A"] = 0
    assert stream.feed("tasks", {"id": "A", "name": "n", "input": {}, "triggers": ()}) == []
    assert stream.result("A") == []
    assert stream.close() == []


def test_a_step_that_was_announced_and_not_executed_waits() -> None:
    stream = Stream()
    stream.steps.starts["A"] = 0
    stream.feed("tasks", {"id": "A", "name": "n", "input": {}, "triggers": ()})
    assert [fields["status"] for _, _, fields in stream.close()] == ["interrupted"]


def test_messages_are_stored_in_the_order_in_which_they_arose(stream: Stream) -> None:
    stream.chunk("first", id="n1")
    stream.message(ToolMessage("tool", tool_call_id="c1", name="look", id="t1"))
    stream.chunk("second", id="n2")
    stream.result("A")
    stored = stream.stored()
    assert [m.content for m in stored] == ["first", "tool", "second"]
    assert (stored[1].role, stored[1].tool_call_id, stored[1].tool_name) == ("tool", "c1", "look")
    assert stored[1].id == stable_id("msg", "run_1", "tool", "c1")


# custom


def test_what_a_graph_writes_is_masked_and_bounded(stream: Stream) -> None:
    [(_, step, fields)] = stream.custom({"token": "t", "list": ["x" * 100] * 5_000})
    assert step == "A"
    assert fields["data"]["token"] == MASK
    assert len(str(fields["data"]).encode()) < 40_000


def test_a_custom_chunk_without_a_step_is_told_without_one(stream: Stream) -> None:
    assert stream.feed("custom", "plain") == [("custom", None, {"data": "plain"})]


def test_chunks_of_other_modes_are_ignored(stream: Stream) -> None:
    assert stream.feed("values", {"x": 1}) == []
    assert stream.feed("updates", {"__interrupt__": ()}) == []


def test_scripts_say_what_they_are_told() -> None:
    assert [chunk.content for chunk in say("a", "b")] == ["a", "b"]
