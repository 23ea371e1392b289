"""A gateway and a runner with real graphs in the test's own loop, as people meet them over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from common import graphfile
from common.settings import RunnerSettings
from runner.app import serve
from tests.support.edge import Edge, serving, settings
from tests.support.until import until

Json = dict[str, Any]
PEOPLE = Path(__file__).parent / "graphs" / "people.json"
_SETTLED = ("interrupted", "completed", "failed", "cancelled")


def quick_runner(
    database_url: str, redis_url: str, prefix: str, graphs: Path = PEOPLE
) -> RunnerSettings:
    """Of a runner that lets no test wait."""
    return RunnerSettings(
        DATABASE_URL=database_url,
        REDIS_URL=redis_url,
        redis_prefix=prefix,
        graphs=graphs,
        claim_poll_s=0.05,
        archive_interval_s=0.1,
        drain_timeout_s=3,
    )


@asynccontextmanager
async def whole(
    database_url: str, redis_url: str, prefix: str, graphs: Path = PEOPLE
) -> AsyncIterator["Whole"]:
    options = quick_runner(database_url, redis_url, prefix, graphs)
    stop = asyncio.Event()
    async with serving(settings(database_url, redis_url, prefix), graphfile.parse(graphs)) as edge:
        running = asyncio.create_task(serve(options, stop))
        try:
            yield Whole(edge)
        finally:
            stop.set()
            await running


@dataclass
class Whole:
    edge: Edge

    async def start(self, graph: str, content: str = "go", **body: Any) -> "Talk":
        made = await self.edge.create(graph=graph, **{"message": {"content": content}, **body})
        return Talk(self.edge, made["run"]["id"], made["run"]["conversationId"])


@dataclass
class Talk:
    """One run and whoever answers it."""

    edge: Edge
    id: str
    conversation: str

    async def run(self) -> Json:
        found: Json = (await self.edge.client.get(f"/api/runs/{self.id}")).json()
        return found

    async def settled(self) -> Json:
        """The run when it waits for a person or has ended."""

        async def is_settled() -> bool:
            return (await self.run())["status"] in _SETTLED

        await until(is_settled, within_s=60)
        return await self.run()

    async def asked(self) -> list[Json]:
        """Its pending questions once it waits."""
        run = await self.settled()
        assert run["status"] == "interrupted", run
        questions: list[Json] = run["pendingInterrupts"]
        return questions

    async def send(self, body: Any, **headers: str) -> httpx.Response:
        url = f"/api/runs/{self.id}/resume"
        return await self.edge.client.post(url, json=body, headers=headers)

    async def decide(self, decision: Any, question: Json | None = None) -> httpx.Response:
        question = question or (await self.asked())[0]
        return await self.send({"interruptId": question["id"], "decision": decision})

    async def give(self, value: Any, question: Json | None = None) -> httpx.Response:
        """The graph's own resume value."""
        question = question or (await self.asked())[0]
        return await self.send({"resume": {question["id"]: value}})

    async def said(self) -> list[Any]:
        """What the graph was given, at the end of the run."""
        run = await self.settled()
        assert run["status"] == "completed", run
        given: list[Any] = run["output"]["said"]
        return given

    async def messages(self) -> list[Json]:
        url = f"/api/conversations/{self.conversation}/messages"
        items: list[Json] = (await self.edge.client.get(url)).json()["items"]
        return items

    async def events(self) -> list[Json]:
        answer = await self.edge.client.get(
            f"/api/runs/{self.id}/events?limit=1000", headers={"Accept": "application/json"}
        )
        page: list[Json] = answer.json()["events"]
        return page

    async def again(self, content: str = "go") -> "Talk":
        """A further run in the same conversation."""
        answer = await self.edge.client.post(
            f"/api/conversations/{self.conversation}/runs", json={"message": {"content": content}}
        )
        assert answer.status_code == 202, answer.text
        return Talk(self.edge, answer.json()["run"]["id"], self.conversation)
