"""A step's result waits for what the step has shown."""

import asyncio

import pytest

from common.bus.log import LogConnection
from common.db.engine import Database
from common.events import Event
from runner import gate as gates
from runner.gate import Gate
from runner.outlet import NEVER, Outlet
from runner.publisher import Publisher, PublisherLimits
from runner.steps import Steps
from runner.writer import RunWriter


@pytest.fixture
def outlet() -> Outlet:
    """Of a publisher that does not run: nothing is sent or archived but by the test."""
    limits = PublisherLimits(0.01, 1.0, 0.1, 1000, 5.0)
    database = Database("postgresql://127.0.0.1:1/none", application_name="test", pool_size=1)
    publisher = Publisher(database, LogConnection("redis://127.0.0.1:1"), limits)
    writer = RunWriter(
        "run_1", 1, top=0, archived=0, next_sequence=1, reserved=50, block=50, batch_bytes_max=4000
    )
    return publisher.outlet(writer, generation=NEVER, on_lost=lambda: None)


async def test_a_result_waits_as_long_as_the_stream_is_held_up(
    outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither Redis nor Postgres takes anything: the announcement stands in the stream's queue."""
    monkeypatch.setattr(gates, "PATIENCE_S", 0.01)
    steps, gate = Steps(), Gate()
    steps.starts["step"] = 1
    gate.open(steps, outlet)
    outlet.emit([Event("custom", {"data": "x" * 2000})])
    result = asyncio.create_task(gate.before_result("", "step", ["messages"]))
    await asyncio.wait({result}, timeout=0.2)
    assert not result.done()
    outlet.emit([Event("custom", {"data": "the rest of what it has shown"})])
    gate.note({"type": "tasks", "data": {"id": "step"}})
    assert b"the rest" in (await result)[-1].frames


async def test_a_result_that_is_never_announced_waits_for_a_moment_only(
    outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "PATIENCE_S", 0.01)
    steps, gate = Steps(), Gate()
    steps.starts["step"] = 1
    gate.open(steps, outlet)
    assert await gate.before_result("", "step", ["messages"]) == []
