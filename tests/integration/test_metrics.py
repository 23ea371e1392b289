"""What gateways and runners show to Prometheus while runs wait, ask, go on and are taken over."""

import asyncio
import math
import socket
import urllib.request
from collections.abc import AsyncIterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from common.db import interrupts, runners, runs
from common.db.engine import Database
from common.errors import Misconfigured
from common.settings import RunnerSettings
from deploy.state import free_port
from runner.app import serve
from runner.metrics import Metrics, served
from tests.acceptance.conftest import GRAPHS
from tests.support import rows
from tests.support.edge import Edge, serving, settings
from tests.support.until import until


class Samples(dict[str, float]):
    """The lines of a scrape by name and labels, e.g. `steadyrun_runs{status="queued"}`."""

    @classmethod
    def of(cls, text: str) -> "Samples":
        families = text_string_to_metric_families(text)
        lines = [sample for family in families for sample in family.samples]
        return cls({_written(s.name, s.labels): s.value for s in lines})


def _written(name: str, labels: dict[str, str]) -> str:
    inner = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return f"{name}{{{inner}}}" if inner else name


async def scraped(edge: Edge) -> Samples:
    return Samples.of((await edge.client.get("/metrics")).text)


async def scraped_runner(port: int) -> Samples:
    def get() -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return bytes(answer.read())

    return Samples.of((await asyncio.to_thread(get)).decode())


async def test_every_gateway_shows_the_queue_of_the_whole_system(
    edge: Edge, database: Database
) -> None:
    made = await edge.create()
    async with database.begin() as connection:
        await rows.runner(connection)
    await rows_age(database, made["run"]["id"], 90)
    found = await scraped(edge)
    assert found['steadyrun_runs{status="queued"}'] == 1
    assert found['steadyrun_runs{status="running"}'] == 0
    assert 89 < found["steadyrun_queue_oldest_seconds"] < 120
    assert found['steadyrun_runners{state="serving"}'] == 1
    assert found["steadyrun_places"] == 16
    assert found['steadyrun_gateway_server_up{server="postgres"}'] == 1
    assert found['steadyrun_gateway_server_up{server="redis"}'] == 1


async def rows_age(database: Database, run_id: str, seconds: float) -> None:
    """As if the run had been queued so long ago."""
    sql = "UPDATE runs SET queued_at = queued_at - make_interval(secs => $2) WHERE id = $1"
    async with database.connect() as connection:
        await connection.rows(sql + " RETURNING 1", run_id, seconds)


async def test_questions_overdue_runs_and_dead_runners_are_counted(
    edge: Edge, database: Database
) -> None:
    async with database.begin() as connection:
        waiting = await rows.running_run(connection)
        assert await interrupts.insert(connection, waiting.id, waiting.epoch, [rows.question()])
        late = await rows.running_run(connection)
        overdue = "UPDATE runs SET overdue_at = now() - interval '1 hour' WHERE id = $1"
        await connection.rows(overdue + " RETURNING 1", late.id)
        gone = await rows.runner(connection)
        await runners.release(connection, gone)
    found = await scraped(edge)
    assert found['steadyrun_runs{status="running"}'] == 2
    assert found["steadyrun_runs_overdue"] == 1
    assert found["steadyrun_interrupts_pending"] == 1
    assert 0 <= found["steadyrun_interrupts_oldest_pending_seconds"] < 60


async def test_numbers_of_a_postgres_that_is_away_are_not_shown_as_present_ones(
    database_url: str, redis_url: str, redis_prefix: str
) -> None:
    async with serving(settings(database_url, redis_url, redis_prefix)) as edge:
        await edge.gateway.db.aclose()
        found = await scraped(edge)
        assert math.isnan(found["steadyrun_queue_oldest_seconds"])
        assert math.isnan(found['steadyrun_runs{status="queued"}'])
        assert found['steadyrun_gateway_server_up{server="postgres"}'] == 0
        assert found['steadyrun_gateway_server_up{server="redis"}'] == 1


async def test_requests_are_counted_by_route_and_never_by_path(edge: Edge) -> None:
    made = await edge.create()
    await edge.client.get(f"/api/runs/{made['run']['id']}")
    await edge.client.get("/api/runs/run_of_nobody")
    text = (await edge.client.get("/metrics")).text
    found = Samples.of(text)
    name = "steadyrun_gateway_request_seconds_count"
    route = 'route="/api/runs/{run_id}"'
    assert found[f'{name}{{method="GET",{route},status="200"}}'] == 1
    assert found[f'{name}{{method="GET",{route},status="404"}}'] == 1
    assert made["run"]["id"] not in text
    assert rows.USER not in text


@pytest.fixture
async def port(database_url: str, redis_url: str, redis_prefix: str) -> AsyncIterator[int]:
    """Of the metrics of a runner in this loop."""
    port, stop = free_port(), asyncio.Event()
    options = RunnerSettings(
        DATABASE_URL=database_url,
        REDIS_URL=redis_url,
        redis_prefix=redis_prefix,
        graphs=GRAPHS,
        claim_poll_s=0.05,
        archive_interval_s=0.1,
        metrics_port=port,
    )
    running = asyncio.create_task(serve(options, stop))
    yield port
    stop.set()
    await running


async def test_a_runner_counts_what_it_takes_up_and_how_it_ended(
    port: int, database: Database
) -> None:
    for graph, content in (("events", '{"events": 7}'), ("raises", "{}")):
        async with database.begin() as connection:
            given = {"content": content}
            run = await rows.queued_run(connection, graph=graph, input=given, content=content)
        await until(lambda id=run.id: _ended(database, id), within_s=30)  # type: ignore[misc]
    found = await scraped_runner(port)
    assert found['steadyrun_runner_claims_total{reason="start"}'] == 2
    assert found['steadyrun_runner_claims_total{reason="failover"}'] == 0
    assert found['steadyrun_runner_outcomes_total{outcome="completed"}'] == 1
    assert found['steadyrun_runner_outcomes_total{outcome="failed"}'] == 1
    assert found['steadyrun_runner_failures_total{code="GRAPH_ERROR"}'] == 1
    assert found["steadyrun_runner_queue_seconds_count"] == 2
    assert found["steadyrun_runner_events_sent_total"] >= 10
    assert found["steadyrun_runner_batches_sent_total"] >= 2
    assert found["steadyrun_runner_append_seconds_count"] >= 2
    assert found["steadyrun_runner_publisher_lag_seconds"] < 5
    assert found["steadyrun_runner_leases_lost_total"] == 0
    assert found["process_resident_memory_bytes"] > 1 << 20


async def _ended(database: Database, run_id: str) -> bool:
    async with database.connect() as connection:
        run = await runs.find(connection, run_id)
    return run is not None and run.finished_at is not None


def test_a_port_that_is_taken_is_named_and_nothing_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(Misconfigured, match=f"STEADYRUN_METRICS_PORT: 127.0.0.1:{port}"),
            served(Metrics(), "127.0.0.1", port),
        ):
            raise AssertionError("it was served")
