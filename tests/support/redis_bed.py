"""Gateways and runners in this process with a Redis of their own, to be harmed, and who watches.

async with bed(database_url) as system:
    watched = await system.watch(50, events=40, pause_s=0.1)
    system.valkey.command("FLUSHALL")
    await system.must_be_exact(watched)
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from common import graphfile
from common.db import archive, runs
from common.db.engine import Database
from common.db.runs import Run
from common.events import TERMINAL
from common.settings import RunnerSettings
from runner.app import serve
from tests.acceptance.conftest import GRAPHS
from tests.support.api import Api, History, body, split_frames
from tests.support.edge import SECRET, Edge, serving, settings
from tests.support.redis_line import RedisLine
from tests.support.valkey import Valkey, private_valkey


@dataclass
class Watched(History):
    """What a client saw, and how long after the event was made it saw it."""

    run_id: str = ""
    lags: list[tuple[float, float]] = field(default_factory=list)  # (when made, seconds)

    def take(self, raw: bytes) -> None:
        now = time.time()
        super().take(raw)
        for frame in split_frames(raw):
            made = datetime.fromisoformat(body(frame)["at"]).timestamp()
            self.lags.append((made, now - made))

    def lag_since(self, moment: float) -> float:
        """The longest of events made after `moment` (time.time())."""
        return max((lag for made, lag in self.lags if made >= moment), default=0.0)


class Bed:
    """`lines`: to Redis, of the gateways and of the runner."""

    def __init__(
        self,
        db: Database,
        valkey: Valkey,
        edge_line: RedisLine,
        runner_line: RedisLine,
        edges: list[Edge],
    ) -> None:
        self.db, self.valkey = db, valkey
        self.edge_line, self.runner_line, self.edges = edge_line, runner_line, edges
        self.clients = [Api(edge.url, SECRET) for edge in edges]
        self.rng = random.Random()

    @property
    def lines(self) -> tuple[RedisLine, RedisLine]:
        return self.edge_line, self.runner_line

    @property
    def api(self) -> Api:
        return self.rng.choice(self.clients)

    async def start(self, count: int, *, graph: str = "events", **asked: Any) -> list[str]:
        """A few at a time: a burst of requests is refused with 503 where the machine is slow."""
        content, places = json.dumps(asked), asyncio.Semaphore(6)

        async def one() -> str:
            async with places:
                return str((await self.api.start(content, graph=graph))["id"])

        return await asyncio.gather(*(one() for _ in range(count)))

    def watch(self, run_ids: list[str]) -> list[asyncio.Task[Watched]]:
        return [asyncio.create_task(self.watched(run_id)) for run_id in run_ids]

    async def watched(self, run_id: str, until: str = "end") -> Watched:
        history = Watched(run_id=run_id)
        api = self.api
        while not history.ended:
            done = await api.connect(run_id, history, until=until)
            if done and until != "end":
                return history
        return history

    async def row(self, run_id: str) -> Run:
        async with self.db.connect() as connection:
            run = await runs.find(connection, run_id)
        assert run is not None
        return run

    async def archived(self, run_id: str) -> dict[int, bytes]:
        """The truth, by sequence."""
        async with self.db.connect() as connection:
            batches = await archive.read(connection, run_id, 0, 100_000)
        frames = [frame for batch in batches for frame in split_frames(batch.frames)]
        return {int(frame.split(b"\n")[0].removeprefix(b"id: ")): frame for frame in frames}

    async def must_be_exact(self, histories: list[Watched], *, jumps: bool = False) -> None:
        """Each is the archive, byte for byte, in order, with one terminal event, at its end."""
        for history in histories:
            truth = await self.archived(history.run_id)
            assert history.order == sorted(truth), history.run_id
            assert history.frames == truth, history.run_id
            if not jumps:
                assert history.order == list(range(1, len(truth) + 1))
            ends = [event["type"] for event in history.events if event["type"] in TERMINAL]
            assert ends == [history.events[-1]["type"]]
            assert (await self.row(history.run_id)).last_sequence == history.order[-1]


@asynccontextmanager
async def bed(
    database_url: str,
    *,
    gateways: int = 2,
    durable: bool = False,
    runner: bool = True,
    concurrency: int = 64,
    **given: Any,
) -> AsyncIterator[Bed]:
    """`given`: settings of the gateways. The runner executes in this process too."""
    async with AsyncExitStack() as stack:
        valkey = stack.enter_context(private_valkey(durable=durable))
        db = Database(database_url, application_name="test", pool_size=4)
        stack.push_async_callback(db.aclose)
        edge_line = await stack.enter_async_context(RedisLine(valkey.url))
        runner_line = await stack.enter_async_context(RedisLine(valkey.url))
        graphs = graphfile.parse(GRAPHS)
        options = settings(database_url, edge_line.url, "", **given)
        edges = [await stack.enter_async_context(serving(options, graphs)) for _ in range(gateways)]
        system = Bed(db, valkey, edge_line, runner_line, edges)
        for client in system.clients:
            stack.push_async_callback(client.http.aclose)
        if runner:
            await stack.enter_async_context(running(database_url, runner_line.url, concurrency))
        yield system


@asynccontextmanager
async def running(database_url: str, redis_url: str, concurrency: int) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(serve(runner_settings(database_url, redis_url, concurrency), stop))
    try:
        yield
    finally:
        stop.set()
        await task


def runner_settings(database_url: str, redis_url: str, concurrency: int) -> RunnerSettings:
    return RunnerSettings(
        DATABASE_URL=database_url,
        REDIS_URL=redis_url,
        graphs=GRAPHS,
        runner_concurrency=concurrency,
        drain_timeout_s=3,
    )
