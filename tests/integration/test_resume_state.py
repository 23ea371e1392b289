"""A fresh browser has what one has that watched from the start, at each stage (contract §4).

It knows the conversation's id only; it asks over HTTP and goes on with `Last-Event-ID`.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from common import graphfile
from common.db import runs
from common.db.engine import Database
from common.settings import RunnerSettings
from tests.acceptance.conftest import GRAPHS
from tests.integration.test_runner import Serving
from tests.support.edge import Edge, Reading, serving, settings
from tests.support.graphs.staged import TEXTS, WAITS_BEFORE
from tests.support.page_view import View, Watched, fresh
from tests.support.until import until
from tests.support.whole import quick_runner

Json = dict[str, Any]


class Stage:
    """One run, watched from its beginning by one client and looked at by fresh ones."""

    def __init__(self, edge: Edge, options: RunnerSettings, db: Database, gates: Path) -> None:
        self.edge, self.options, self.db, self.gates = edge, options, db, gates
        self.watched = Watched()
        self.conversation = ""
        self.id = ""
        self.reading: Reading
        self._seen = 0
        self._stack = AsyncExitStack()
        self._serving: Serving | None = None

    async def post(self) -> None:
        content = json.dumps({"gates": str(self.gates)})
        body = {"message": {"content": content}, "graph": "staged"}
        if self.conversation:
            body["conversationId"] = self.conversation
        answer = await self.edge.client.post(
            "/api/chat", json=body, headers={"Accept": "application/json"}
        )
        assert answer.status_code == 202, answer.text
        run = answer.json()["run"]
        self.id, self.conversation, self._seen = run["id"], run["conversationId"], 0
        self.watched.begin(run, content)
        self.reading = await self._stack.enter_async_context(self.edge.read(self.id, after=0))

    async def serve(self) -> None:
        self._serving = Serving(self.options)

    async def aclose(self) -> None:
        for gate in TEXTS:
            self.open(gate)
        if self._serving is not None:
            await self._serving.stop()
        await self._stack.aclose()

    def open(self, gate: str) -> None:
        (self.gates / gate).touch()

    async def until_said(self, name: str, times: int = 1) -> None:
        """The text has come as far as its gate, so often."""
        part = "".join(TEXTS[name][:WAITS_BEFORE])

        def heard(reading: Reading) -> bool:
            deltas = [e["delta"] for e in reading.json() if e["type"] == "text_delta"]
            return "".join(deltas).count(part) >= times

        await self.reading.until(heard, within_s=30)

    async def until_type(self, kind: str) -> None:
        await self.reading.until(lambda r: kind in r.types, within_s=30)

    async def compare(self, status: str) -> View:
        """The two views are equal, and of this status."""
        view, state = await fresh(self.edge.client, self.conversation)
        last = state["lastSequence"]
        await self.reading.until(lambda r: not last or last in r.sequences)
        told = [event for event in self.reading.json() if event["sequence"] <= last]
        new, self._seen = told[self._seen :], len(told)
        assert view == self.watched.view(new)
        assert view.status == status
        return view

    async def end_is_the_same_from(self, after: int) -> None:
        """Who goes on with Last-Event-ID gets exactly the rest."""
        headers = {"Last-Event-ID": str(after)}
        path = f"/api/runs/{self.id}/events"
        async with Reading(self.edge.client, "GET", path, headers=headers) as rest:
            await rest.over()
        assert rest.sequences == [n for n in self.reading.sequences if n > after]

    async def last_sequence(self) -> int:
        url = f"/api/conversations/{self.conversation}/resume-state"
        return int((await self.edge.client.get(url)).json()["lastSequence"])


@pytest.fixture
async def stage(
    database_url: str, redis_url: str, redis_prefix: str, tmp_path: Path
) -> AsyncIterator[Stage]:
    options = quick_runner(database_url, redis_url, redis_prefix, GRAPHS)
    given = settings(database_url, redis_url, redis_prefix)
    db = Database(database_url, application_name="test", pool_size=2)
    async with serving(given, graphfile.parse(GRAPHS)) as edge:
        made = Stage(edge, options, db, tmp_path)
        yield made
        await made.aclose()
    await db.aclose()


@pytest.mark.timeout(120)
async def test_at_each_stage_a_fresh_client_has_the_view_of_one_that_watched_from_the_start(
    stage: Stage,
) -> None:
    """Queued, running in the middle of a text, failed over, interrupted, resumed, completed; then a
    further run in the same conversation that is cancelled."""
    cursors = [0]
    await stage.post()
    queued = await stage.compare("queued")
    assert [role for _, role, _ in queued.history] == ["user"]

    await stage.serve()
    await stage.until_said("first")
    running = await stage.compare("running")
    assert running.history[-1][2] == "".join(TEXTS["first"][:WAITS_BEFORE])
    cursors.append(await stage.last_sequence())

    await lose_runner(stage)
    await stage.until_said("first", times=2)
    over = await stage.compare("running")
    assert said(over) == said(running)  # nothing is drawn twice
    cursors.append(await stage.last_sequence())

    stage.open("first")
    await stage.until_type("interrupt")
    interrupted = await stage.compare("interrupted")
    [(interrupt_id, kind, payload)] = interrupted.cards
    assert (kind, payload["args"]) == ("confirm_action", {"instance": "a-1"})
    assert interrupted.resumable
    cursors.append(await stage.last_sequence())

    body = {"interruptId": interrupt_id, "decision": "approve"}
    answer = await stage.edge.client.post(f"/api/runs/{stage.id}/resume", json=body)
    assert answer.status_code == 202, answer.text
    await stage.until_said("second")
    resumed = await stage.compare("running")
    assert not resumed.cards
    assert [status for _, _, status in resumed.progress] == ["success"]
    cursors.append(await stage.last_sequence())

    stage.open("second")
    await stage.until_type("done")
    completed = await stage.compare("completed")
    assert [text for _, _, text in completed.history[1:]] == [
        "".join(TEXTS["first"]), "".join(TEXTS["second"]),
    ]  # fmt: skip
    for cursor in cursors:
        await stage.end_is_the_same_from(cursor)

    for gate in TEXTS:
        (stage.gates / gate).unlink()
    await stage.post()
    await stage.until_said("first")
    await stage.compare("running")
    await stage.edge.client.post(f"/api/runs/{stage.id}/cancel")
    await stage.until_type("cancelled")
    cancelled = await stage.compare("cancelled")
    assert cancelled.history[: len(completed.history)] == completed.history
    assert not cancelled.resumable


def said(view: View) -> list[tuple[str, str]]:
    """Who and what; a text that is spoken again is another message."""
    return [(role, text) for _, role, text in view.history]


async def lose_runner(stage: Stage) -> None:
    """What the reaper does to the runs of a runner that died."""
    run = await found(stage)
    async with stage.db.connect() as connection:
        assert await runs.give_back(connection, run.id, run.epoch, charged=True)
    await until(lambda: _has_epoch(stage, run.epoch + 1), within_s=30)
    await stage.until_type("run_resumed")


async def _has_epoch(stage: Stage, epoch: int) -> bool:
    return (await found(stage)).epoch >= epoch


async def found(stage: Stage) -> runs.Run:
    async with stage.db.connect() as connection:
        run = await runs.find(connection, stage.id)
    assert run is not None
    return run


async def test_while_it_is_decided_a_fresh_page_never_shows_a_run_that_waits_for_nothing(
    stage: Stage,
) -> None:
    """Run and questions are read as of one moment."""
    await stage.serve()
    for gate in TEXTS:
        stage.open(gate)
    await stage.post()
    await stage.until_type("interrupt")
    url = f"/api/conversations/{stage.conversation}/resume-state"
    first: Json = (await stage.edge.client.get(url)).json()
    [asked] = first["pendingInterrupts"]
    body = {"interruptId": asked["id"], "decision": "approve"}
    looks = [stage.edge.client.get(url) for _ in range(15)]
    decide = stage.edge.client.post(f"/api/runs/{stage.id}/resume", json=body)
    answer, *answers = await asyncio.gather(decide, *looks)
    assert answer.status_code == 202, answer.text
    for state in (a.json() for a in answers):
        waits = state["run"]["status"] == "interrupted"
        assert (waits, waits) == (bool(state["pendingInterrupts"]), state["resumable"])
