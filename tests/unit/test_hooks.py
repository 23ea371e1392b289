"""A graph author's code at the edge: what is loaded, and what a call can come to."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from common.errors import Misconfigured, Refused
from common.graphfile import GraphFile, GraphSpec, parse
from common.hitl import plain
from common.loading import Reference
from gateway.auth import Principal
from gateway.services.calling import AuthorCode
from gateway.services.hooks import Hooks

ADA = Principal("ada", frozenset())


def hooks(folder: Path, code: str) -> Hooks:
    """With the guard called `guard` in a file of this code."""
    file = folder / "guard.py"
    file.write_text(code)
    spec = GraphSpec("g", Reference(Path("graph.py"), "graph"), guard=Reference(file, "guard"))
    return Hooks(GraphFile(Path("langgraph.json"), {"g": spec}, "g"), timeout_s=5)


@pytest.mark.parametrize(
    "code",
    [
        "class guard:\n    def autorize(self, principal, interrupt): ...",
        "class guard:\n    authorize = True",
        "class guard:\n    def resource(self, action, interrupt): ...",
        "class guard:\n    def __init__(self, url): ...\n    def reload(self, resource): ...",
        "def guard(principal, interrupt): ...",
    ],
)
def test_a_guard_that_would_guard_nothing_stops_the_start(tmp_path: Path, code: str) -> None:
    with pytest.raises(Misconfigured, match=r"graph 'g': .*guard"):
        hooks(tmp_path, code)


def test_a_guard_in_the_file_of_a_graph_is_refused(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("raise RuntimeError('loaded')")
    document = """{"graphs": {"a": "./agent.py:graph"},
                   "steadyrun": {"graphs": {"a": {"guard": "./agent.py:guard"}}}}"""
    (tmp_path / "langgraph.json").write_text(document)
    with pytest.raises(Misconfigured, match="holds a graph"):
        parse(tmp_path / "langgraph.json")


@pytest.mark.parametrize("found", ["None", "True", "1", "'yes'"])
async def test_a_guard_that_does_not_object_permits(tmp_path: Path, found: str) -> None:
    guard = hooks(tmp_path, f"class guard:\n    def authorize(self, p, i): return {found}")
    await guard.authorize("g", ADA, {})
    assert await guard.reload("g", {"id": 1}) == {"id": 1}


@pytest.mark.parametrize("found", ["False", "0", "''", "[]"])
async def test_a_guard_that_gives_nothing_true_forbids(tmp_path: Path, found: str) -> None:
    guard = hooks(tmp_path, f"class guard:\n    async def authorize(self, p, i): return {found}")
    with pytest.raises(Refused, match="PERMISSION_REVOKED"):
        await guard.authorize("g", ADA, {})


async def test_whether_an_unknown_graph_has_a_guard_is_unknown_so_nothing_is_let_through(
    tmp_path: Path,
) -> None:
    guard = hooks(tmp_path, "class guard:\n    def authorize(self, p, i): ...")
    with pytest.raises(Refused, match="UNAVAILABLE"):
        await guard.authorize("other", ADA, {})


async def test_any_subset_of_a_guard_will_do(tmp_path: Path) -> None:
    guard = hooks(tmp_path, "class guard:\n    def authorize(self, p, i): ...")
    assert await guard.reload("g", {"id": 1}) == {"id": 1}
    await guard.revalidate("g", {"id": 1}, ADA)


async def test_what_reload_gives_is_written_as_the_noted_resource_was(tmp_path: Path) -> None:
    code = """
from dataclasses import dataclass
from datetime import datetime

@dataclass
class Pump:
    id: str
    since: datetime
    pressure: float

class guard:
    def reload(self, resource):
        return Pump("p7\\0", datetime(2026, 1, 2), float("nan"))
"""
    found = await hooks(tmp_path, code).reload("g", {})
    assert found == {"id": "p7\ufffd", "since": "2026-01-02 00:00:00", "pressure": None}
    assert plain({"since": found["since"]}) == {"since": found["since"]}


async def test_a_resource_that_cannot_be_written_is_the_guards_failure(tmp_path: Path) -> None:
    code = "ring = []; ring.append(ring)\nclass guard:\n    def reload(self, resource): return ring"
    with pytest.raises(Refused, match="guard's reload failed"):
        await hooks(tmp_path, code).reload("g", {})


async def test_code_that_never_returns_takes_only_its_own_threads() -> None:
    code, gate = AuthorCode(0.05, threads_max=2), threading.Event()
    for _ in range(4):
        with pytest.raises(Refused, match="did not answer within"):
            await code.call("it", gate.wait)
    assert await asyncio.to_thread(lambda: "free") == "free"
    stuck = [thread for thread in threading.enumerate() if thread.name == "author"]
    assert len(stuck) == 2
    assert all(thread.daemon for thread in stuck)
    gate.set()
    for thread in stuck:
        thread.join()
    assert await code.call("it", lambda: "again") == "again"


async def test_code_that_raises_a_cancellation_has_failed() -> None:
    async def cancels() -> None:
        raise asyncio.CancelledError

    with pytest.raises(Refused, match="it failed"):
        await AuthorCode(5).call("it", cancels)


async def test_only_an_expected_error_comes_through() -> None:
    def lacks() -> None:
        raise PermissionError

    code = AuthorCode(5)
    with pytest.raises(PermissionError):
        await code.call("it", lacks, expects=(PermissionError,))
    with pytest.raises(Refused, match="UNAVAILABLE"):
        await code.call("it", lacks, expects=(ValueError,))


async def test_a_caller_that_leaves_takes_its_call_along() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def waits() -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    caller = asyncio.create_task(AuthorCode(5).call("it", waits))
    await begun.wait()
    caller.cancel()
    async with asyncio.timeout(5):
        await ended.wait()
