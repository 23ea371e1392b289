"""Graphs with a guarded effect: it appends a line to a file. What the message asks for:

file        the file; each line is `effect_key()`
verify      whether there is a verify (it looks for the line), or what it answers
fn          "async" (default), "sync", "made" (a sync function that makes the awaitable)
pause_s     of the effect, before and after the line
fails       how often it raises after the line; "before": NotPerformed once, before the line
returns     what the effect returns; "object", "nan", "big": what cannot be kept
permission  who may say whether it has happened
catches     whether the node catches everything
executions  how often the node is executed: it raises after the effect until then
"""

import asyncio
import functools
import json
import operator
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy

from runner.authoring import (
    NOT_PERFORMED,
    UNKNOWN,
    NotPerformed,
    Performed,
    effect_key,
    guarded,
    guarded_sync,
)
from tests.support.effect_faults import come_to


class Text(TypedDict, total=False):
    input: Any
    said: Annotated[list[Any], operator.add]


class Again(Exception):
    """The node fails; its retry policy executes it again."""


def _asked(state: Text) -> dict[str, Any]:
    given = state.get("input") or {}
    return json.loads(given) if isinstance(given, str) else given


class Outside:
    """The outside world, a file."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._asked = asked
        self._file = Path(asked["file"])
        self.key = str(asked.get("key", "append"))

    def act(self) -> Any:
        self.before()
        time.sleep(self._pause_s)
        self.append()
        time.sleep(self._pause_s)
        return self.after()

    async def act_async(self) -> Any:
        self.before()
        await asyncio.sleep(self._pause_s)
        self.append()
        await asyncio.sleep(self._pause_s)
        return self.after()

    @property
    def _pause_s(self) -> float:
        return float(self._asked.get("pause_s", 0))

    def before(self) -> None:
        if self._asked.get("fails") == "before" and _first(self._file):
            raise NotPerformed("the outside world was not there")

    def append(self) -> None:
        come_to("started", self.key)
        with self._file.open("a") as file:
            file.write(f"{effect_key()}\n")
        come_to("appended", self.key)

    def after(self) -> Any:
        if self._asked.get("fails") == "after" and _first(self._file):
            raise TimeoutError("no answer")
        returns = self._asked.get("returns")
        made = _ODD.get(returns) if isinstance(returns, str) else None
        return made() if made else returns

    def look(self) -> Any:
        wanted = self._asked["verify"]
        if wanted == "unknown":
            known = self._file.with_suffix(".known").exists()
            return Performed("found late") if known else UNKNOWN
        lines = self._file.read_text().split() if self._file.exists() else []
        return Performed("found") if effect_key() in lines else NOT_PERFORMED

    async def look_async(self) -> Any:
        return self.look()

    @property
    def fn(self) -> Callable[[], Any]:
        match self._asked.get("fn"):
            case "sync":
                return self.act
            case "made":
                return lambda: self.act_async()
            case _:
                return functools.partial(self.act_async)

    @property
    def verify(self) -> Callable[[], Any] | None:
        if not self._asked.get("verify"):
            return None
        return self.look if self._asked.get("fn") == "sync" else self.look_async


_ODD: dict[str, Callable[[], Any]] = {
    "object": object,
    "nan": lambda: float("nan"),
    "big": lambda: "x" * 300_000,
    "tuple": lambda: (1, 2),
    "nul": lambda: "\x00",
}


def _first(file: Path) -> bool:
    """Whether this is the first time that something is asked about the file."""
    try:
        file.with_suffix(".once").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


async def _act(state: Text) -> Text:
    asked = _asked(state)
    outside = Outside(asked)
    write = get_stream_writer()
    write({"executing": True})
    try:
        permission = asked.get("permission")
        done = await guarded(outside.key, outside.fn, outside.verify, permission=permission)
    except BaseException:
        if not asked.get("catches"):
            raise
        done = "caught"
    executed = Path(asked["file"]).with_suffix(".executed")
    with executed.open("a") as file:
        file.write("x\n")
    if len(executed.read_text().split()) < asked.get("executions", 1):
        raise Again
    return {"said": [done]}


def _act_in_a_thread(state: Text) -> Text:
    outside = Outside(_asked(state))
    return {"said": [guarded_sync(outside.key, outside.fn, outside.verify)]}


_retried = RetryPolicy(
    initial_interval=0.01,
    jitter=False,
    max_attempts=3,
    retry_on=(Again, TimeoutError, NotPerformed),
)
effects = (
    StateGraph(Text).add_node("act", _act, retry_policy=_retried).add_edge(START, "act").compile()
)
effects_in_a_thread = (
    StateGraph(Text).add_node("act", _act_in_a_thread).add_edge(START, "act").compile()
)

_at_once = StateGraph(Text)
for _name in ("one", "two", "three"):
    _at_once.add_node(_name, _act)
    _at_once.add_edge(START, _name)
effects_at_once = _at_once.compile()
