"""One trace from the request over the claim to tools and effects, as an exporter sees it."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from common.db import runs
from common.db.engine import Database
from common.graphfile import parse
from common.settings import RunnerSettings
from common.tracing import Tracing
from runner.app import serve
from tests.acceptance.conftest import GRAPHS
from tests.support.edge import Edge, serving, settings
from tests.support.until import until

TRACE, CALLER = "ab" * 16, "cd" * 8
HEADERS = {"traceparent": f"00-{TRACE}-{CALLER}-01", "Accept": "application/json"}


class Exported:
    """What all processes of a test have recorded."""

    def __init__(self) -> None:
        self._exporter, self._provider = InMemorySpanExporter(), TracerProvider()
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(self._provider.get_tracer("test"))

    def close(self) -> None:
        self._provider.shutdown()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


@dataclass
class Traced:
    edge: Edge
    db: Database
    exported: Exported

    async def ran(self, graph: str, content: str) -> str:
        """The id of a run that was asked for under the caller's trace and has ended."""
        body = {"graph": graph, "message": {"content": content}}
        answer = await self.edge.client.post("/api/chat", json=body, headers=HEADERS)
        assert answer.status_code == 202, answer.text
        run_id: str = answer.json()["run"]["id"]
        await until(lambda: self._has_ended(run_id), within_s=30)
        return run_id

    async def _has_ended(self, run_id: str) -> bool:
        async with self.db.connect() as connection:
            run = await runs.find(connection, run_id)
        return run is not None and run.finished_at is not None


@pytest.fixture
def exported() -> Iterator[Exported]:
    made = Exported()
    yield made
    made.close()


@pytest.fixture
async def traced(
    database: Database, database_url: str, redis_url: str, redis_prefix: str, exported: Exported
) -> AsyncIterator[Traced]:
    options = settings(database_url, redis_url, redis_prefix)
    for_runner = RunnerSettings(
        DATABASE_URL=database_url, REDIS_URL=redis_url, redis_prefix=redis_prefix, graphs=GRAPHS
    )
    stop = asyncio.Event()
    running = asyncio.create_task(serve(for_runner, stop, tracing=exported.tracing))
    async with serving(options, parse(GRAPHS), exported.tracing) as edge:
        yield Traced(edge, database, exported)
    stop.set()
    await running


def trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


def is_child(child: ReadableSpan, parent: ReadableSpan) -> bool:
    assert parent.context is not None
    return child.parent is not None and child.parent.span_id == parent.context.span_id


async def test_an_effect_is_in_the_trace_of_the_request_that_led_to_it(
    traced: Traced, folder: Path
) -> None:
    run_id = await traced.ran("effects", json.dumps({"file": str(folder / "outside")}))
    await until(lambda: bool(traced.exported.named("run")))
    (request,) = traced.exported.named("POST /api/chat")
    (run,) = traced.exported.named("run")
    (effect,) = traced.exported.named("effect")
    assert {trace_of(span) for span in (request, run, effect)} == {TRACE}
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == CALLER
    assert is_child(run, request)
    assert is_child(effect, run)
    assert run.attributes is not None
    assert run.attributes["steadyrun.run_id"] == run_id
    assert run.attributes["steadyrun.epoch"] == 1
    assert request.attributes is not None
    assert request.attributes["http.route"] == "/api/chat"
    assert request.attributes["http.response.status_code"] == 202


async def test_tools_are_in_the_trace(traced: Traced) -> None:
    await traced.ran("agent", "weather?")
    await until(lambda: bool(traced.exported.named("run")))
    (run,) = traced.exported.named("run")
    tools = traced.exported.named("execute_tool weather")
    assert len(tools) == 2
    assert all(is_child(tool, run) for tool in tools)


async def test_a_trace_is_handed_on_where_nothing_records(edge: Edge, database: Database) -> None:
    answer = await edge.client.post(
        "/api/chat", json={"message": {"content": "hello"}}, headers=HEADERS
    )
    async with database.connect() as connection:
        run = await runs.find(connection, answer.json()["run"]["id"])
    assert run is not None
    assert run.traceparent == HEADERS["traceparent"]


async def test_a_malformed_trace_harms_nobody(edge: Edge, database: Database) -> None:
    headers = {b"traceparent": b"00-zz-\xff-01", b"Accept": b"application/json"}
    body = {"message": {"content": "hello"}}
    answer = await edge.client.post("/api/chat", json=body, headers=headers)
    assert answer.status_code == 202
    async with database.connect() as connection:
        run = await runs.find(connection, answer.json()["run"]["id"])
    assert run is not None
    assert run.traceparent is None
