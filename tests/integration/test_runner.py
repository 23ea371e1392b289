"""A whole runner in this process: claims, executes, stores, and what stops it in between."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from common.bus.client import Bus
from common.bus.log import LogConnection
from common.bus.signals import Signals
from common.db import archive, interrupts, messages, runners, runs
from common.db.engine import Database
from common.db.interrupts import Interrupt
from common.db.runs import Run
from common.errors import LeaseLost
from common.ownership import OwnerActs
from common.settings import RunnerSettings
from runner import graphstate, thread
from runner.app import serve
from runner.outlet import Outlet
from runner.streaming import Streaming
from runner.sweeper import Sweeper
from tests.acceptance.conftest import GRAPHS
from tests.support import rows
from tests.support.until import until
from tests.support.whole import quick_runner

Json = dict[str, Any]


@dataclass
class World:
    db: Database
    settings: RunnerSettings

    @classmethod
    def at(cls, database_url: str, redis_url: str, redis_prefix: str) -> "World":
        settings = quick_runner(database_url, redis_url, redis_prefix, GRAPHS)
        return cls(Database(database_url, application_name="test", pool_size=3), settings)

    async def start(self, graph: str, content: str = "{}", **fields: Any) -> str:
        given = {"content": content, **fields}
        async with self.db.begin() as conn:
            run = await rows.queued_run(conn, graph=graph, input=given, content=content)
        return run.id

    async def find(self, run_id: str) -> Run:
        async with self.db.connect() as conn:
            run = await runs.find(conn, run_id)
        assert run is not None
        return run

    async def until_status(self, run_id: str, *statuses: str) -> Run:
        async def reached() -> bool:
            return (await self.find(run_id)).status in statuses

        await until(reached, within_s=30)
        return await self.find(run_id)

    async def events(self, run_id: str) -> list[Json]:
        async with self.db.connect() as conn:
            batches = await archive.read(conn, run_id, 0, 10_000)
        frames = [f for batch in batches for f in batch.frames.split(b"\n\n") if f]
        return [json.loads(f.split(b"\ndata: ")[1]) for f in frames]

    async def interrupts(self, run_id: str) -> list[Interrupt]:
        async with self.db.connect() as conn:
            return await interrupts.of_run(conn, run_id)

    async def decide(self, run_id: str, interrupt: Interrupt, value: Any) -> None:
        """What a gateway does, without telling: stored, and the run queued if it waits."""
        async with self.db.begin() as conn:
            run = await runs.lock(conn, run_id)
            assert run is not None
            assert await interrupts.decide(
                conn, interrupt.id, decision="approve", answer={"value": value}, by="ada"
            )
            if run.status == "interrupted":
                await runs.queue_unheld(
                    conn, run_id, run.epoch, "decision", run.last_sequence, None
                )


@pytest.fixture
async def world(database_url: str, redis_url: str, redis_prefix: str) -> AsyncIterator[World]:
    made = World.at(database_url, redis_url, redis_prefix)
    yield made
    await made.db.aclose()


class Serving:
    """A runner as a task; `stop` drains it."""

    def __init__(self, settings: RunnerSettings) -> None:
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(serve(settings, self._stop, hurry=self._hurry))

    def ask_to_stop(self) -> None:
        self._stop.set()

    async def stop(self) -> None:
        self._stop.set()
        await self._task

    async def stop_in_a_hurry(self) -> None:
        self._hurry.set()
        await self.stop()


@pytest.fixture
async def runner(world: World) -> AsyncIterator[Serving]:
    serving = Serving(world.settings)
    yield serving
    await serving.stop()


def types(events: list[Json]) -> list[str]:
    return [event["type"] for event in events]


async def test_a_run_is_claimed_executed_stored_and_told(world: World, runner: Serving) -> None:
    run_id = await world.start("events", '{"events": 7}')
    run = await world.until_status(run_id, "completed")
    events = await world.events(run_id)
    assert [e["data"]["n"] for e in events if e["type"] == "custom"] == list(range(7))
    assert types(events)[0] == "run_started"
    assert types(events)[-1] == "done"
    assert [e["sequence"] for e in events] == list(range(1, len(events) + 1))
    assert run.last_sequence == run.sequence_reserved == len(events)
    assert run.runner_id is None


async def test_messages_are_stored_with_the_end_of_the_run(world: World, runner: Serving) -> None:
    run_id = await world.start("agent", "weather?")
    run = await world.until_status(run_id, "completed")
    async with world.db.connect() as conn:
        stored, _ = await messages.list_page(conn, run.conversation_id, None, 50)
    assert [m.role for m in stored] == ["user", "assistant", "tool", "tool", "assistant"]
    assert run.message_id == stored[-1].id


async def test_a_question_waits_and_its_answer_continues_the_run(
    world: World, runner: Serving
) -> None:
    run_id = await world.start("ask")
    await world.until_status(run_id, "interrupted")
    [question] = await world.interrupts(run_id)
    assert types(await world.events(run_id))[-1] == "interrupt"
    await world.decide(run_id, question, {"a": False})
    run = await world.until_status(run_id, "completed")
    assert run.output["said"] == [{"one": {"a": False}}]
    [question] = await world.interrupts(run_id)
    assert question.taken
    assert question.told
    events = await world.events(run_id)
    assert types(events).count("interrupt_resolved") == 1
    resumed = next(e for e in events if e["type"] == "run_resumed")
    assert resumed["reason"] == "decision"
    assert len(resumed["discard"]) == 1


async def test_a_take_up_reads_the_thread_once_before_it_executes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else can change it meanwhile, and a big state takes its time."""
    first = Serving(world.settings)
    run_id = await world.start("ask")
    await world.until_status(run_id, "interrupted")
    await first.stop()
    [question] = await world.interrupts(run_id)
    await world.decide(run_id, question, "yes")
    read, reads = thread.read_thread, list[Any]()

    async def counted(*given: Any) -> Any:
        reads.append(given)
        return await read(*given)

    monkeypatch.setattr(graphstate, "read_thread", counted)
    second = Serving(world.settings)
    await world.until_status(run_id, "completed")
    await second.stop()
    assert len(reads) == 2  # and once after it


async def test_a_stream_that_is_left_in_its_middle_is_closed_by_whoever_leaves_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python would close it some time later in a task of its own: the nodes of a run that is lost
    would go on until then, and what they raise would be "never retrieved"."""
    chunks, tasks = Streaming._chunks, list[Any]()

    async def watched(streaming: Streaming, *given: Any) -> AsyncIterator[Any]:
        tasks.append(asyncio.current_task())
        try:
            async for chunk in chunks(streaming, *given):
                yield chunk
        finally:
            tasks.append(asyncio.current_task())

    async def lost(outlet: Outlet) -> None:
        monkeypatch.undo()
        raise LeaseLost(outlet.writer.run_id, outlet.writer.epoch)

    monkeypatch.setattr(Streaming, "_chunks", watched)
    monkeypatch.setattr(Outlet, "room", lost)
    serving = Serving(world.settings)
    await world.start("agent", "weather?")
    await until(lambda: len(tasks) == 2, within_s=20)
    await serving.stop()
    assert tasks[0] is tasks[1]


async def test_an_answer_that_a_stopped_node_had_is_not_taken_for_its_next_question(
    world: World, folder: Path
) -> None:
    """A drain cancels the node between its two questions; the next runner gives the answer again,
    and LangGraph must not have kept it as well."""
    first = Serving(world.settings.model_copy(update={"drain_timeout_s": 0.2}))
    run_id = await world.start("asking_slow_between", json.dumps({"file": str(folder)}))
    await world.until_status(run_id, "interrupted")
    [question] = await world.interrupts(run_id)
    await world.decide(run_id, question, "one")
    await until(lambda: _exists(folder / "answered"), within_s=20)
    await first.stop()
    second = Serving(world.settings)
    await until(lambda: _asks(world, run_id, 2), within_s=20)
    await world.decide(run_id, (await world.interrupts(run_id))[1], "two")
    run = await world.until_status(run_id, "completed", "failed")
    await second.stop()
    assert run.output["said"] == ["one", "two"]


async def _exists(file: Path) -> bool:
    return await asyncio.to_thread(file.exists)


async def _asks(world: World, run_id: str, number: int) -> bool:
    waits = (await world.find(run_id)).status in ("interrupted", "completed")
    return waits and len(await world.interrupts(run_id)) == number


@pytest.mark.parametrize("first", [0, 1])
async def test_two_questions_answered_one_after_the_other(
    world: World, runner: Serving, first: int
) -> None:
    run_id = await world.start("ask_both")
    await world.until_status(run_id, "interrupted")
    both = await world.interrupts(run_id)
    await world.decide(run_id, both[first], "first")

    async def taken() -> bool:
        row = (await world.interrupts(run_id))[first]
        return row.taken and (await world.find(run_id)).status == "interrupted"

    await until(taken, within_s=20)
    events = await world.events(run_id)
    assert types(events).count("interrupt") == 2
    assert types(events)[-1] == "run_paused"
    await world.decide(run_id, both[1 - first], "second")
    run = await world.until_status(run_id, "completed")
    said = {name: value for entry in run.output["said"] for name, value in entry.items()}
    assert sorted(said.values()) == ["first", "second"]


async def test_a_breakpoint_pauses_and_none_continues(world: World, runner: Serving) -> None:
    run_id = await world.start("breakpoints", "go", interruptBefore=["second"])
    run = await world.until_status(run_id, "interrupted")
    assert run.next == ["second"]
    async with world.db.begin() as conn:
        locked = await runs.lock(conn, run_id)
        assert locked is not None
        await runs.queue_unheld(conn, run_id, locked.epoch, "continue", locked.last_sequence, None)
    run = await world.until_status(run_id, "completed")


async def test_a_cancel_request_stops_a_running_graph(world: World, runner: Serving) -> None:
    run_id = await world.start("events", '{"events": 10000, "pause_s": 0.01}')
    await until(lambda: _has_events(world, run_id), within_s=20)
    async with world.db.connect() as conn:
        await runs.request_cancel(conn, run_id, "user")
    run = await world.until_status(run_id, "cancelled")
    events = await world.events(run_id)
    assert events[-1]["type"] == "cancelled"
    assert run.last_sequence == len(events)


async def test_a_graph_that_raises_fails_with_a_message_for_people(
    world: World, runner: Serving
) -> None:
    run_id = await world.start("raises")
    run = await world.until_status(run_id, "failed")
    assert run.error == {"code": "GRAPH_ERROR", "message": "The agent failed (RuntimeError)."}
    assert (await world.events(run_id))[-1]["type"] == "error"


async def test_a_drain_hands_runs_over_and_another_runner_ends_them(world: World) -> None:
    first = Serving(world.settings)
    run_id = await world.start("nested", '{"events": 60, "pause_s": 0.02}')
    await until(lambda: _has_events(world, run_id), within_s=20)
    await first.stop()
    run = await world.find(run_id)
    assert run.status in ("queued", "completed")
    assert run.attempts == 0
    second = Serving(world.settings)
    await world.until_status(run_id, "completed")
    await second.stop()
    events = await world.events(run_id)
    assert [e["sequence"] for e in events] == list(range(1, len(events) + 1))
    assert folded(events) == list(range(60))


async def test_a_drain_in_a_hurry_waits_for_no_step_boundary(world: World, tmp_path: Path) -> None:
    """Nothing is lost or charged by it."""
    patient = world.settings.model_copy(update={"drain_timeout_s": 600})
    first, done = Serving(patient), tmp_path / "done"
    run_id = await world.start("work", json.dumps({"until": str(done)}))
    await until(lambda: is_at_work(world, run_id), within_s=20)
    first.ask_to_stop()
    await until(lambda: _drains(world), within_s=20)
    assert (await world.find(run_id)).status == "running"
    await asyncio.wait_for(first.stop_in_a_hurry(), 60)
    run = await world.find(run_id)
    assert (run.status, run.attempts, run.runner_id) == ("queued", 0, None)
    done.touch()
    second = Serving(world.settings)
    await world.until_status(run_id, "completed")
    await second.stop()
    events = await world.events(run_id)
    assert [e["sequence"] for e in events] == list(range(1, len(events) + 1))
    assert [e["reason"] for e in events if e["type"] == "run_resumed"] == ["handover"]


async def is_at_work(world: World, run_id: str) -> bool:
    return "custom" in types(await world.events(run_id))


async def _drains(world: World) -> bool:
    async with world.db.connect() as conn:
        return any(runner.draining for runner in await runners.list_all(conn))


async def test_an_answer_that_died_with_its_runner_is_sent_again_by_the_next(
    world: World, tmp_path: Path
) -> None:
    """It was sent and used, but the step that used it did not come to its end."""
    hurried = world.settings.model_copy(update={"drain_timeout_s": 0.1})
    first, done = Serving(hurried), tmp_path / "done"
    run_id = await world.start("ask_and_work", json.dumps({"until": str(done)}))
    await world.until_status(run_id, "interrupted")
    [question] = await world.interrupts(run_id)
    await world.decide(run_id, question, "so be it")
    await until(lambda: is_at_work(world, run_id), within_s=20)
    await first.stop()
    assert (await world.find(run_id)).status == "queued"
    done.touch()
    second = Serving(world.settings)
    run = await world.until_status(run_id, "completed", "interrupted", "failed")
    await second.stop()
    assert (run.status, (run.output or {}).get("said")) == ("completed", ["so be it"])


async def test_a_lost_claim_is_given_back_and_executed(world: World) -> None:
    """The answer to a claim was lost: the run is held, but by nobody who executes it."""
    serving = Serving(world.settings)
    await until(lambda: _has_runner(world), within_s=20)
    async with world.db.connect() as conn:
        [alive] = await runners.list_all(conn)
    async with world.db.begin() as conn:
        run = await rows.queued_run(conn, graph="events", input={"content": "{}"})
        await runs.claim(conn, alive.id, ["events"], 1, 100, None)
    await world.until_status(run.id, "completed")
    await serving.stop()
    assert (await world.find(run.id)).epoch == 2


async def test_a_run_that_killed_its_runners_too_often_fails(world: World) -> None:
    run_id = await world.start("events")
    async with world.db.connect() as conn:
        await conn.rows("UPDATE runs SET attempts = 3 WHERE id = $1", run_id)
    serving = Serving(world.settings)
    run = await world.until_status(run_id, "failed")
    await serving.stop()
    assert run.error is not None
    assert run.error["code"] == "RUNNER_LOST"


async def test_a_run_that_takes_too_long_fails_as_timed_out(world: World) -> None:
    settings = world.settings.model_copy(update={"run_timeout_s": 0.5})
    serving = Serving(settings)
    run_id = await world.start("events", '{"events": 10000, "pause_s": 0.01}')
    run = await world.until_status(run_id, "failed")
    await serving.stop()
    assert run.error is not None
    assert run.error["code"] == "RUN_TIMEOUT"


async def _has_events(world: World, run_id: str) -> bool:
    return len(await world.events(run_id)) > 3


async def _has_runner(world: World) -> bool:
    async with world.db.connect() as conn:
        return bool(await runners.list_all(conn))


def folded(events: list[Json]) -> list[int]:
    """What a client shows that drops what `discard` lists."""
    shown: list[Json] = []
    for event in events:
        if event["type"] == "run_resumed":
            shown = [e for e in shown if e.get("stepId") not in event["discard"]]
        shown.append(event)
    return [e["data"]["n"] for e in shown if e["type"] == "custom" and "n" in e["data"]]


async def test_a_cancellation_whose_asker_died_is_finished_by_a_runner(
    world: World, redis_url: str, redis_prefix: str
) -> None:
    run_id = await world.start("no such graph is loaded here")
    async with world.db.connect() as conn:
        await runs.request_cancel(conn, run_id, "user")
    bus, log = Bus(redis_url, prefix=redis_prefix), LogConnection(redis_url, prefix=redis_prefix)
    sweeper = Sweeper(world.db, OwnerActs(world.db, log, Signals(bus)))
    await sweeper.sweep(older_s=60)
    assert (await world.find(run_id)).status == "queued"
    await sweeper.sweep(older_s=0)
    assert (await world.find(run_id)).status == "cancelled"
    assert types(await world.events(run_id)) == ["cancelled"]
    await log.aclose()
    await bus.aclose()


async def test_a_run_that_is_to_be_cancelled_is_not_executed_any_more(world: World) -> None:
    """Claimed before anybody acted on the request; its asker may have died."""
    run_id = await world.start("events", '{"events": 5000, "pause_s": 0.01}')
    async with world.db.connect() as conn:
        await runs.request_cancel(conn, run_id, "superseded")
    serving = Serving(world.settings)
    run = await world.until_status(run_id, "cancelled", "completed")
    await serving.stop()
    assert (run.status, run.cancel_reason) == ("cancelled", "superseded")
    assert "step_started" not in types(await world.events(run_id))


async def test_numbers_jump_at_run_resumed_also_where_a_decision_is_untold(world: World) -> None:
    """Redis lost its tail together with the runner, and a person decided meanwhile."""
    serving = Serving(world.settings)
    run_id = await world.start("ask")
    paused = await world.until_status(run_id, "interrupted")
    await serving.stop()
    [question] = await world.interrupts(run_id)
    async with world.db.begin() as conn:
        await interrupts.decide(
            conn, question.id, decision="approve", answer={"value": 1}, by="ada"
        )
        await conn.rows(
            "UPDATE runs SET status = 'queued', resume_reason = 'failover',"
            " sequence_reserved = last_sequence + 500, redis_identity = 'another' WHERE id = $1",
            run_id,
        )
    second = Serving(world.settings)
    await world.until_status(run_id, "completed")
    await second.stop()
    later = [e for e in await world.events(run_id) if e["sequence"] > paused.last_sequence]
    assert types(later)[:2] == ["run_resumed", "interrupt_resolved"]
    assert later[0]["reason"] == "failover"
    assert later[0]["sequence"] == paused.last_sequence + 501
    assert [e["sequence"] for e in later] == list(
        range(later[0]["sequence"], later[0]["sequence"] + len(later))
    )


async def test_a_run_whose_first_runner_told_nothing_begins_to_be_told_by_the_second(
    world: World,
) -> None:
    """What the first one may have shown is lost with its Redis, so the numbers jump first."""
    run_id = await world.start("events", '{"events": 3}')
    async with world.db.begin() as conn:
        await conn.rows(
            "UPDATE runs SET epoch = 1, resume_reason = 'failover', sequence_reserved = 500,"
            " redis_identity = 'another' WHERE id = $1",
            run_id,
        )
    serving = Serving(world.settings)
    run = await world.until_status(run_id, "completed")
    await serving.stop()
    events = await world.events(run_id)
    assert types(events)[:3] == ["run_resumed", "run_started", "step_started"]
    assert (events[0]["sequence"], events[1]["conversationId"]) == (501, run.conversation_id)


async def test_a_graph_that_cannot_be_built_fails_its_run_once(
    world: World, runner: Serving
) -> None:
    run_id = await world.start("unbuildable")
    run = await world.until_status(run_id, "failed")
    assert run.error == {"code": "GRAPH_ERROR", "message": "The agent could not be prepared."}
    assert types(await world.events(run_id)) == ["run_started", "error"]
    assert run.epoch == 1


async def test_a_mistake_of_ours_is_charged_and_ends_as_runner_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a run that cannot be stored would be taken up for ever."""

    def broken(*_: Any) -> Any:
        raise RuntimeError("a mistake")

    monkeypatch.setattr("runner.storing.Storing._output", broken)
    serving = Serving(world.settings)
    run_id = await world.start("events")
    run = await world.until_status(run_id, "failed")
    await serving.stop()
    assert run.error is not None
    assert run.error["code"] == "RUNNER_LOST"


async def test_questions_that_are_open_when_a_run_fails_are_closed_in_its_log(
    world: World,
) -> None:
    """One of two questions is answered, and then the run takes too long."""
    first = Serving(world.settings)
    run_id = await world.start("ask_both")
    await world.until_status(run_id, "interrupted")
    await first.stop()
    one, two = await world.interrupts(run_id)
    await world.decide(run_id, one, 1)
    second = Serving(world.settings.model_copy(update={"run_timeout_s": 0.001}))
    await world.until_status(run_id, "failed")
    await second.stop()
    resolved = {
        e["interruptId"]: e["status"]
        for e in await world.events(run_id)
        if e["type"] == "interrupt_resolved"
    }
    assert resolved == {one.id: "resolved", two.id: "cancelled"}
    assert all(row.told for row in await world.interrupts(run_id))


@pytest.mark.parametrize(
    "graph",
    [
        "exits",
        "exits_in_a_thread",
        "panics",
        "panics_in_a_group",
        "asks_too_deeply",
        "raises_the_nameless",
    ],
)
async def test_a_node_that_exits_or_panics_fails_its_run_and_no_other(
    world: World, runner: Serving, graph: str
) -> None:
    neighbour = await world.start("events", '{"events": 40, "pause_s": 0.02}')
    run_id = await world.start(graph)
    run = await world.until_status(run_id, "failed")
    assert run.error is not None
    assert run.error["code"] == "GRAPH_ERROR"
    assert (await world.until_status(neighbour, "completed")).epoch == 1


async def test_numbers_of_tokens_that_cannot_be_are_not_told(world: World, runner: Serving) -> None:
    """LangGraph's checkpoints refuse them, which is the run's own fault."""
    run_id = await world.start("impossible_numbers", "hello")
    run = await world.until_status(run_id, "failed")
    assert (run.epoch, run.error and run.error["code"]) == (1, "GRAPH_ERROR")
    (usage,) = [e for e in await world.events(run_id) if e["type"] == "usage"]
    assert (usage["inputTokens"], usage["outputTokens"], usage["totalTokens"]) == (0, 0, 7)
