"""Deciding over HTTP in tests: a run that asks, and a graph author's guard that does as told."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.db import interrupts
from common.db.engine import Database
from common.db.interrupts import Interrupt
from common.graphfile import GraphFile
from common.loading import Reference
from tests.support import rows
from tests.support.edge import Edge, graph_file, serving, settings
from tests.support.fake_runner import FakeRun, FakeRunner

HOOKS = '''
"""A guard and a validator as an author writes them; the test changes what they find."""
import asyncio

now = {"version": 1}
permitted = {"authorize": True, "revalidate": True}
calls = []
gates = {}
waiting = []


def slow(act):
    """Until the test lets it go; sync code waits in its own thread."""
    if act in gates:
        waiting.append(act)
        gates[act].wait()


class Guard:
    def authorize(self, principal, interrupt):
        calls.append("authorize")
        slow("authorize")
        found = permitted["authorize"]
        return found(principal, interrupt) if callable(found) else found

    def resource(self, action, interrupt):
        calls.append("resource")
        pump = action["args"].get("pump")
        return None if pump is None else {"type": "pump", "id": pump, "version": 1}

    async def reload(self, resource):
        calls.append("reload")
        if "error" in now:
            raise RuntimeError("the fleet's password is hunter2")
        if "exit" in now:
            raise SystemExit(3)
        while "stubborn" in now:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                waiting.append("stubborn")
        return None if "gone" in now else {**resource, **now}

    def revalidate(self, resource, principal):
        calls.append("revalidate")
        slow("revalidate")
        if not permitted["revalidate"]:
            raise PermissionError("no")


def validate(values, interrupts, principal):
    calls.append("validate")
    for value in values.values():
        if value == "bad" or (isinstance(value, dict) and value.get("args") == {"bad": True}):
            raise ValueError("that will not do: password=hunter2")
'''
PUMP = {"type": "pump", "id": "p7", "version": 1}


@pytest.fixture
def graphs(tmp_path: Path) -> GraphFile:
    file = tmp_path / "hooks.py"
    file.write_text(HOOKS)
    return graph_file(
        guard=Reference(file, "Guard"),
        resume_validator=Reference(file, "validate"),
        fact_permissions={"salary": "hr.view"},
    )


def author_of(edge: Edge) -> Any:
    """The author's module, as the gateway has loaded it."""
    guard = edge.gateway.graphs.graphs[rows.GRAPH].guard
    assert guard is not None
    return next(m for m in sys.modules.values() if getattr(m, "__file__", "") == str(guard.file))


@pytest.fixture
def hooks(edge: Edge) -> Any:
    return author_of(edge)


@pytest.fixture
async def edge(
    database_url: str, redis_url: str, redis_prefix: str, graphs: GraphFile
) -> AsyncIterator[Edge]:
    async with serving(settings(database_url, redis_url, redis_prefix), graphs) as running:
        yield running


class Asked:
    """A paused run with its questions."""

    def __init__(self, edge: Edge, run: FakeRun, questions: list[Interrupt]) -> None:
        self.edge, self.run, self.questions = edge, run, questions

    @property
    def id(self) -> str:
        return self.questions[0].id

    async def send(self, body: dict[str, Any], **headers: str) -> httpx.Response:
        url = f"/api/runs/{self.run.id}/resume"
        return await self.edge.client.post(url, json=body, headers=headers)

    async def decide(self, decision: Any = "approve", **others: Any) -> httpx.Response:
        headers = others.pop("headers", {})
        body = {"interruptId": self.id, "decision": decision, **others}
        return await self.send(body, **headers)

    async def status(self) -> str:
        found: str = (await self.edge.client.get(f"/api/runs/{self.run.id}")).json()["status"]
        return found

    async def stored(self, database: Database) -> list[Interrupt]:
        async with database.connect() as connection:
            return await interrupts.of_run(connection, self.run.id)


async def ask(edge: Edge, runner: FakeRunner, *questions: dict[str, Any]) -> Asked:
    await edge.create()
    run = await runner.start()
    new = [rows.question(f"n{n}", **q) for n, q in enumerate(questions or ({},))]
    return Asked(edge, run, await run.ask(*new))


def code(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json", response.text
    return response.status_code, response.json()["code"]


async def expire(database: Database, asked: Asked) -> None:
    async with database.connect() as connection:
        past = "clock_timestamp() - interval '1 s'"
        await connection.rows(
            f"UPDATE interrupts SET expires_at = {past} WHERE run_id = $1", asked.run.id
        )
