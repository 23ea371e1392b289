"""What LangGraph's stream says, and what we make of it.

Each recording of tests/support/record_chunks is translated twice: as it was stored, and as the
LangGraph that is installed tells it now. One that says something else is seen here.
"""

import re
from textwrap import dedent
from typing import Any

import pytest

from tests.support.record_chunks import RECORDINGS, Recording, load
from tests.support.translated import told

EVENTS = {
    "text": """
        step_started model#1
        text_delta model#1 m1 Hel
        text_delta model#1 m1 lo
        text_delta model#1 m1 " there"
        step_finished model#1 success
    """,
    "provider_ids": """
        step_started model#1
        text_delta model#1 m1 Hel
        text_delta model#1 m1 lo
        usage model#1 m1 3 4 7
        step_finished model#1 success
    """,
    "second_turn": """
        step_started model#1
        text_delta model#1 m1 second
        step_finished model#1 success
    """,
    "parallel_tools": """
        step_started model#1
        text_delta model#1 m1 "Let me look"
        usage model#1 m1 5 6 11
        step_finished model#1 success
        step_started tools#1
        step_started tools#2
        step_started tools#3
        tool_started tools#1 c1 look {"name": "a"}
        tool_started tools#2 c2 look {"name": "b"}
        tool_finished tools#1 c1 look success "seen a"
        tool_finished tools#2 c2 look success "seen b"
        tool_finished tools#3 c3 unheard error "Error: unheard is n…
        step_finished tools#3 success
        step_finished tools#1 success
        step_finished tools#2 success
        step_started model#2
        text_delta model#2 m2 Done
        step_finished model#2 success
    """,
    "failing_tool": """
        step_started model#1
        step_finished model#1 success
        step_started tools#1
        tool_started tools#1 c1 burn {"name": "a"}
        tool_finished tools#1 c1 burn error
        step_finished tools#1 error
    """,
    "refusing_tool": """
        step_started model#1
        step_finished model#1 success
        step_started tools#1
        tool_started tools#1 c1 refuse {"name": "a"}
        tool_finished tools#1 c1 refuse error "not allowed"
        step_finished tools#1 success
        step_started model#2
        text_delta model#2 m1 Hm
        step_finished model#2 success
    """,
    "wrong_arguments": """
        step_started model#1
        step_finished model#1 success
        step_started tools#1
        tool_started tools#1 c1 look {"nome": "a"}
        tool_finished tools#1 c1 look error
        step_finished tools#1 success
        step_started model#2
        text_delta model#2 m1 Hm
        step_finished model#2 success
    """,
    "command_tool": """
        step_started model#1
        step_finished model#1 success
        step_started tools#1
        tool_started tools#1 c1 note {"text": "x"}
        tool_finished tools#1 c1 note success "noted x"
        step_finished tools#1 success
        step_started model#2
        text_delta model#2 m1 Ok
        step_finished model#2 success
    """,
    "hidden": """
        step_started before#1
        step_finished before#1 success
        step_started agent#1
        step_started model#1
        step_finished model#1 success
        step_started tools#1
        step_finished tools#1 success
        step_started model#2
        text_delta model#2 m1 Shown
        step_finished model#2 success
        step_finished agent#1 success
    """,
    "subgraph": """
        step_started beside#1
        step_started child#1
        text_delta beside#1 m1 Beside
        step_started model#1
        step_finished beside#1 success
        step_finished model#1 success
        step_started tools#1
        tool_started tools#1 c1 look {"name": "a"}
        tool_finished tools#1 c1 look success "seen a"
        step_finished tools#1 success
        step_started model#2
        text_delta model#2 m2 In
        text_delta model#2 m2 side
        step_finished model#2 success
        step_finished child#1 success
        step_started after#1
        text_delta after#1 m3 After
        step_finished after#1 success
    """,
    "fan_out": """
        step_started split#1
        step_finished split#1 success
        step_started work#1
        step_started work#2
        step_started work#3
        custom work#1 {"item": "x"}
        custom work#2 {"item": "y"}
        custom work#3 {"item": "z"}
        step_started model#1
        step_started model#2
        step_started model#3
        step_finished model#1 success
        step_finished model#2 success
        step_finished model#3 success
        step_started tools#1
        step_started tools#2
        step_started tools#3
        tool_started tools#1 c1 look {"name": "x"}
        tool_started tools#2 c1 look {"name": "y"}
        tool_started tools#3 c1 look {"name": "z"}
        tool_finished tools#1 c1 look success "seen x"
        tool_finished tools#2 c1 look success "seen y"
        tool_finished tools#3 c1 look success "seen z"
        step_finished tools#1 success
        step_finished tools#2 success
        step_finished tools#3 success
        step_started model#4
        step_started model#5
        step_started model#6
        text_delta model#4 m1 "did "
        text_delta model#4 m1 x
        text_delta model#5 m2 "did "
        text_delta model#5 m2 y
        text_delta model#6 m3 "did z"
        step_finished model#4 success
        step_finished model#5 success
        step_finished model#6 success
        step_finished work#1 success
        step_finished work#2 success
        step_finished work#3 success
    """,
    "retry": """
        step_started speak#1
        custom speak#1 begins
        text_delta speak#1 m1 "Half a"
        step_retried speak#1 2
        custom speak#1 begins
        text_delta speak#1 m2 Whole
        step_finished speak#1 success
    """,
    "silent_retry": """
        step_started work#1
        custom work#1 shown
        step_retried work#1 2
        step_finished work#1 success
    """,
    "not_streamed": """
        step_started model#1
        text_delta model#1 m1 "All at once"
        usage model#1 m1 1 2 3
        step_finished model#1 success
        step_started made#1
        text_delta made#1 m2 "Made by a node"
        step_finished made#1 success
        step_started again#1
        step_finished again#1 success
    """,
    "reasoning": """
        step_started model#1
        reasoning_delta model#1 m1 Hmm
        text_delta model#1 m1 So
        text_delta model#1 m1 So
        step_finished model#1 success
    """,
    "failing_node": """
        step_started fail#1
        step_started speak#1
        text_delta speak#1 m1 Said
        step_finished fail#1 error
        step_finished speak#1 error
    """,
    "approval_asked": """
        step_started model#1
        text_delta model#1 m1 "May I?"
        step_finished model#1 success
        step_started HumanInTheLoopMiddleware.after_model#1
        step_finished HumanInTheLoopMiddleware.after_model#1 interrupted
    """,
    "approved": """
        step_started HumanInTheLoopMiddleware.after_model#1
        step_finished HumanInTheLoopMiddleware.after_model#1 success
        step_started tools#1
        step_started tools#2
        tool_started tools#1 c1 look {"name": "a"}
        tool_started tools#2 c2 look {"name": "b"}
        tool_finished tools#1 c1 look success "seen a"
        tool_finished tools#2 c2 look success "seen b"
        step_finished tools#1 success
        step_finished tools#2 success
        step_started model#1
        text_delta model#1 m1 Done
        step_finished model#1 success
        step_started HumanInTheLoopMiddleware.after_model#2
        step_finished HumanInTheLoopMiddleware.after_model#2 success
    """,
    "rejected_and_edited": """
        step_started HumanInTheLoopMiddleware.after_model#1
        tool_finished HumanInTheLoopMiddleware.after_model#1 c1 look error "User rejected the t…
        step_finished HumanInTheLoopMiddleware.after_model#1 success
        step_started tools#1
        tool_started tools#1 c2 look {"name": "z"}
        tool_finished tools#1 c2 look success "seen z"
        step_finished tools#1 success
        step_started model#1
        text_delta model#1 m1 Done
        step_finished model#1 success
        step_started HumanInTheLoopMiddleware.after_model#2
        step_finished HumanInTheLoopMiddleware.after_model#2 success
    """,
    "responded": """
        step_started HumanInTheLoopMiddleware.after_model#1
        tool_finished HumanInTheLoopMiddleware.after_model#1 c1 look success "by hand"
        step_finished HumanInTheLoopMiddleware.after_model#1 success
        step_started tools#1
        tool_started tools#1 c2 look {"name": "b"}
        tool_finished tools#1 c2 look success "seen b"
        step_finished tools#1 success
        step_started model#1
        text_delta model#1 m1 Done
        step_finished model#1 success
        step_started HumanInTheLoopMiddleware.after_model#2
        step_finished HumanInTheLoopMiddleware.after_model#2 success
    """,
    "asking_tool": """
        step_started model#1
        step_finished model#1 success
        step_started tools#1
        tool_started tools#1 c1 ask {"name": "a"}
        step_finished tools#1 interrupted
    """,
    "one_of_two_answered": """
        step_started a#1
        step_started b#1
        custom a#1 "a begins"
        custom b#1 "b begins"
        step_finished a#1 success
        step_finished b#1 interrupted
    """,
    "the_other_answered": """
        step_started a#1
        step_started b#1
        custom b#1 "b begins"
        step_finished b#1 success
        step_finished a#1 interrupted
    """,
}


def unordered(lines: list[str]) -> list[str]:
    """Parallel steps may come in any order: without their numbers, sorted."""
    return sorted(re.sub(r"#\d+|\bm\d+\b", "", line) for line in lines)


def shape(recording: Recording) -> set[tuple[str, ...]]:
    """The kinds of chunks and the fields they have."""
    return {(chunk["type"], *_fields(chunk["type"], chunk["data"])) for chunk in recording.chunks}


def _fields(kind: str, data: Any) -> tuple[str, ...]:
    if kind == "messages":
        return (type(data[0]).__name__,)
    return tuple(sorted(data)) if isinstance(data, dict) else (type(data).__name__,)


def test_every_recording_has_its_events() -> None:
    assert EVENTS.keys() == RECORDINGS.keys()


@pytest.mark.parametrize("name", RECORDINGS)
def test_stored_chunks_become_these_events(name: str) -> None:
    assert told(load(name)) == dedent(EVENTS[name]).split("\n")[1:-1]


@pytest.mark.parametrize("name", RECORDINGS)
async def test_langgraph_still_says_the_same(name: str) -> None:
    made = await RECORDINGS[name]()
    assert shape(made) == shape(load(name))
    assert unordered(told(made)) == unordered(dedent(EVENTS[name]).split("\n")[1:-1])
