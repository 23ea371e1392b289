"""The server under the gateway: aborts, drains, limits, health, start and end."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import rows
from tests.support.edge import SECRET, Edge, Reading, bearer, serving, settings
from tests.support.fake_runner import FakeRunner
from tests.support.until import until
from tests.support.valkey import private_valkey


async def test_a_drain_cuts_every_stream_and_none_is_ended(
    edge: Edge, runner: FakeRunner, caplog: pytest.LogCaptureFixture
) -> None:
    made = await edge.create()
    run = await runner.start()
    readings = [await edge.read(run.id).__aenter__() for _ in range(10)]
    for reading in readings:
        await reading.count(1)
    edge.server.should_exit = True
    for reading in readings:
        await reading.over()
    assert [(r.cut, r.ended) for r in readings] == [(True, False)] * 10
    assert all(r.sequences == [1] for r in readings)
    await until(lambda: edge.gateway.slots.open == 0)
    assert edge.metric("drain_aborts_total") == 10
    assert [r for r in caplog.records if r.levelname == "ERROR"] == []
    assert made["run"]["id"] == run.id


async def test_a_stalled_client_is_dropped_and_the_quick_ones_see_nothing_of_it(
    database_url: str, redis_url: str, redis_prefix: str, runner: FakeRunner
) -> None:
    options = settings(
        database_url,
        redis_url,
        redis_prefix,
        heartbeat_interval_s=0.05,
        send_timeout_s=0.2,
        ring_bytes_max=1 << 16,
    )
    async with serving(options) as edge:
        made = await edge.create()
        run = await runner.start()
        _, writer = await asyncio.open_connection(*address(edge), limit=1 << 10)
        head = f"GET {made['streamUrl']} HTTP/1.1\r\nHost: x\r\n\r\n"
        writer.write(head.encode())
        await until(lambda: edge.gateway.slots.open == 1)
        async with edge.read(run.id) as quick:
            for _ in range(400):
                await run.say("x" * 30_000)
                assert edge.metric("ring_bytes") <= 1 << 17
                if edge.metric("slow_disconnects_total"):
                    break
            await until(lambda: edge.metric("slow_disconnects_total") == 1)
            await until(lambda: edge.gateway.slots.open == 1)
            await run.finish()
            await quick.over()
        assert quick.frames == b"".join(batch.frames for batch in run.told)
        writer.close()


def address(edge: Edge) -> tuple[str, int]:
    host, _, port = edge.url.removeprefix("http://").partition(":")
    return host, int(port)


async def raw(edge: Edge, *pieces: bytes) -> bytes:
    """What comes back for these bytes, until the gateway closes."""
    reader, writer = await asyncio.open_connection(*address(edge))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_a_pipelining_client_that_leaves_frees_its_stream(
    edge: Edge, runner: FakeRunner, caplog: pytest.LogCaptureFixture
) -> None:
    """The request that is answered is not the one that was parsed last."""
    made = await edge.create()
    run = await runner.start()
    await run.say("a")
    reader, writer = await asyncio.open_connection(*address(edge))
    writer.write(f"GET {made['streamUrl']} HTTP/1.1\r\nHost: x\r\n\r\n".encode() * 3)
    await reader.readuntil(b"\n\n")
    assert edge.gateway.slots.open == 1
    writer.transport.abort()
    await until(lambda: edge.gateway.slots.open == 0, within_s=3)
    assert [r for r in caplog.records if r.levelname == "ERROR"] == []


async def has_session(edge: Edge) -> bool:
    return (await edge.client.get(f"/agent/session/{rows.USER}")).status_code == 200


async def test_a_half_request_is_answered_408_and_cuts_no_stream_nor_a_call_that_waits(
    database_url: str,
    redis_url: str,
    redis_prefix: str,
    runner: FakeRunner,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = settings(database_url, redis_url, redis_prefix, receive_timeout_s=0.1)
    async with serving(options) as edge:
        call = asyncio.create_task(edge.client.post("/agent/invoke", json={"query": "go"}))
        await until(lambda: has_session(edge))
        run = await runner.start()
        halves = [
            f"GET {path} HTTP/1.1\r\nHost: x\r\n" for path in ("/healthz", f"/api/runs/{run.id}")
        ]
        halves.append(
            "POST /api/chat HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Authorization: {bearer()['Authorization']}\r\nContent-Length: 99\r\n\r\n{{"
        )
        async with edge.read(run.id) as reading:
            await reading.count(1)
            for half in halves:
                answer = await raw(edge, half.encode())
                assert answer.startswith(b"HTTP/1.1 408 "), answer
                assert answer.count(b"HTTP/1.1") == 1
            assert await raw(edge) == b""
            await run.finish(said=["Done."])
            await reading.over()
            assert reading.ended
        assert (await call).json()["status"] == "completed"
    assert [r for r in caplog.records if r.levelname == "ERROR"] == []


async def test_a_head_of_any_size_is_not_collected(edge: Edge) -> None:
    answer = await raw(edge, b"GET / HTTP/1.1\r\nX: ", *[b"x" * 8192] * 10)
    assert answer.startswith((b"HTTP/1.1 400", b""))
    assert b"HTTP/1.1 400" in answer or answer == b""


async def test_what_is_no_http_is_refused(edge: Edge) -> None:
    assert (await raw(edge, b"\x16\x03\x01 hello\r\n\r\n")).startswith(b"HTTP/1.1 400")


async def test_large_bodies_are_413_by_their_head_and_by_what_comes(
    database_url: str, redis_url: str, redis_prefix: str
) -> None:
    options = settings(database_url, redis_url, redis_prefix, body_bytes_max=2048)
    async with serving(options) as edge:

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(10):
                yield b" " * 1000

        for content in (b" " * 3000, chunks()):
            headers = {"Content-Type": "application/json"}
            response = await edge.client.post("/api/chat", content=content, headers=headers)
            assert response.status_code == 413
            assert response.headers["content-type"] == "application/problem+json"
            assert response.json()["code"] == "PAYLOAD_TOO_LARGE"


async def test_large_contents_are_413(database_url: str, redis_url: str, redis_prefix: str) -> None:
    options = settings(database_url, redis_url, redis_prefix, content_bytes_max=10)
    async with serving(options) as edge:
        body = {"message": {"content": "zwölf Boxer"}}
        assert (await edge.client.post("/api/chat", json=body)).status_code == 413


async def test_health_readiness_and_metrics(edge: Edge) -> None:
    async with httpx.AsyncClient(base_url=edge.url) as anyone:
        assert (await anyone.get("/healthz")).json() == {"status": "ok"}
        ready = await anyone.get("/readyz")
        assert ready.status_code == 200
        assert set(ready.json()["checks"].values()) == {"ok"}
        metrics = (await anyone.get("/metrics")).text
    assert "steadyrun_gateway_streams_open 0.0" in metrics
    assert "steadyrun_gateway_pubsub_healthy" in metrics


async def test_a_draining_gateway_is_not_ready_and_opens_no_stream(edge: Edge) -> None:
    made = await edge.create()
    edge.gateway.drain.leaving = edge.gateway.drain.draining = True
    ready = await edge.client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["checks"]["gateway"] == "unavailable"
    response = await edge.client.get(f"/api/runs/{made['run']['id']}/events")
    assert response.status_code == 503
    assert response.headers["retry-after"]


async def test_a_gateway_is_unready_for_the_delay_before_it_refuses_anything(
    database_url: str, redis_url: str, redis_prefix: str, runner: FakeRunner
) -> None:
    """A load balancer that asks must hear of it first; connections are not kept meanwhile. A
    second signal ends the delay."""
    options = settings(database_url, redis_url, redis_prefix, drain_delay_s=60)
    async with serving(options) as edge:
        await edge.create()
        run = await runner.start()
        async with edge.read(run.id) as reading:
            await reading.count(1)
            edge.server.handle_exit(signal.SIGTERM, None)
            await until(lambda: edge.gateway.drain.leaving)
            assert (await edge.client.get("/readyz")).status_code == 503
            served = await edge.client.get("/api/conversations")
            assert (served.status_code, served.headers["connection"]) == (200, "close")
            async with edge.read(run.id) as another:
                await another.count(1)
                await run.say("still here")
                for reader in (reading, another):
                    await reader.count(2)
                edge.server.handle_exit(signal.SIGTERM, None)
                for reader in (reading, another):
                    await reader.over()
                    assert reader.cut
    async with httpx.AsyncClient() as anyone:
        with pytest.raises(httpx.ConnectError):
            await anyone.get(f"{edge.url}/healthz")


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_second_signal_aborts_all_streams_at_once(
    database_url: str, redis_url: str, redis_prefix: str, runner: FakeRunner, at_once: bool
) -> None:
    """Also where it comes before the drain has begun."""
    options = settings(database_url, redis_url, redis_prefix, drain_window_s=600)
    async with serving(options) as edge:
        await edge.create()
        run = await runner.start()
        readings = [await edge.read(run.id).__aenter__() for _ in range(5)]
        for reading in readings:
            await reading.count(1)
        for _ in range(2):
            edge.server.handle_exit(signal.SIGINT, None)
            if not at_once:
                await until(lambda: edge.gateway.drain.draining)
        for reading in readings:
            await reading.over()
        assert all(reading.cut for reading in readings)


async def test_a_request_that_a_drain_gives_up_is_told_to_try_again(
    edge: Edge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """uvicorn cancels what is left when the time is over."""
    from common.db import conversations

    async def cancelled(*_: Any) -> Any:
        raise asyncio.CancelledError

    monkeypatch.setattr(conversations, "list_page", cancelled)
    response = await edge.client.get("/api/conversations")
    assert (response.status_code, response.json()["code"]) == (503, "UNAVAILABLE")
    assert response.headers["retry-after"]
    assert [r for r in caplog.records if r.levelname == "ERROR"] == []


async def test_without_redis_a_gateway_says_so_and_stays_ready(
    database_url: str, redis_prefix: str
) -> None:
    """It serves from the archive; were it not ready, all gateways would be taken away at once."""
    with private_valkey() as valkey:
        async with serving(settings(database_url, valkey.url, redis_prefix)) as edge:
            valkey.kill()
            ready = await edge.client.get("/readyz")
            assert ready.status_code == 200
            assert ready.json() == {
                "status": "degraded",
                "checks": {"postgres": "ok", "redis": "unavailable", "gateway": "ok"},
            }
            listed = await edge.client.get("/api/conversations")
            assert listed.status_code == 200
            assert (await edge.create())["run"]["status"] == "queued"


async def test_cors_lets_the_named_origins_in(
    database_url: str, redis_url: str, redis_prefix: str
) -> None:
    options = settings(database_url, redis_url, redis_prefix, cors_origins="https://a.example")
    async with serving(options) as edge:
        asked = {
            "Origin": "https://a.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,idempotency-key,last-event-id",
        }
        preflight = await edge.client.options("/api/chat", headers=asked)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://a.example"
        answer = await edge.client.get("/api/runs/x", headers={"Origin": "https://a.example"})
        assert answer.status_code == 404
        assert "Location" in answer.headers["access-control-expose-headers"]
        stranger = await edge.client.get("/healthz", headers={"Origin": "https://b.example"})
        assert "access-control-allow-origin" not in stranger.headers


async def test_a_mistake_of_ours_is_500_without_details(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    from common.db import conversations

    async def broken(*_: Any) -> Any:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr(conversations, "list_page", broken)
    response = await edge.client.get("/api/conversations")
    assert response.status_code == 500
    assert response.json()["code"] == "INTERNAL"
    assert "hunter2" not in response.text


async def test_log_lines_hold_paths_and_no_tickets(
    edge: Edge, runner: FakeRunner, capfd: pytest.CaptureFixture[str]
) -> None:
    made = await edge.create()
    await (await runner.start()).finish()
    async with httpx.AsyncClient(base_url=edge.url) as stranger:
        await stranger.get(made["streamUrl"])
    await until(lambda: edge.gateway.slots.open == 0)
    written = "".join(capfd.readouterr())
    assert made["run"]["id"] in written
    assert "ticket=" not in written
    assert made["streamUrl"].split("ticket=")[1] not in written


async def test_demo_tokens_are_only_there_for_the_demo(
    edge: Edge, database_url: str, redis_url: str, redis_prefix: str
) -> None:
    async with httpx.AsyncClient(base_url=edge.url) as anyone:
        assert (await anyone.post("/api/demo-token")).status_code == 404
    async with (
        serving(settings(database_url, redis_url, redis_prefix, demo=True)) as demo,
        httpx.AsyncClient(base_url=demo.url) as anyone,
    ):
        given = (await anyone.post("/api/demo-token")).json()
        headers = {"Authorization": f"Bearer {given['token']}"}
        assert (await anyone.get("/api/conversations", headers=headers)).status_code == 200


class Process:
    """`python -m gateway` as a child."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.environment = {**clean_environment(), **environment}
        self.folder = folder
        self.child: asyncio.subprocess.Process | None = None

    async def start(self) -> asyncio.subprocess.Process:
        self.child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gateway",
            env=self.environment,
            cwd=self.folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        return self.child

    async def stop(self) -> None:
        if self.child is not None and self.child.returncode is None:
            self.child.kill()
            await self.child.communicate()

    async def fails(self, status: int = 1) -> list[str]:
        child = await self.start()
        _, errors = await asyncio.wait_for(child.communicate(), 30)
        assert child.returncode == status
        return errors.decode().splitlines()


def clean_environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("STEADYRUN_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture
async def process(
    database_url: str, redis_url: str, redis_prefix: str, tmp_path: Path
) -> AsyncIterator[Process]:
    (tmp_path / "graph.py").write_text("graph = None\n")
    graphs = tmp_path / "langgraph.json"
    graphs.write_text(json.dumps({"graphs": {rows.GRAPH: "./graph.py:graph"}}))
    environment = {
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "STEADYRUN_REDIS_PREFIX": redis_prefix,
        "STEADYRUN_JWT_SECRET": SECRET,
        "STEADYRUN_GRAPHS": str(graphs),
        "STEADYRUN_GATEWAY_PORT": str(free_port()),
        "STEADYRUN_DRAIN_WINDOW_S": "0.2",
    }
    made = Process(environment, tmp_path)
    yield made
    await made.stop()


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_cuts_streams_and_ends_with_status_0(
    process: Process, runner: FakeRunner, sign: signal.Signals
) -> None:
    child = await process.start()
    url = f"http://127.0.0.1:{process.environment['STEADYRUN_GATEWAY_PORT']}"
    async with httpx.AsyncClient(base_url=url, headers=bearer()) as client:
        await until(lambda: answers(client), within_s=30)
        made = (
            await client.post(
                "/api/chat",
                json={"message": {"content": "x"}},
                headers={"Accept": "application/json"},
            )
        ).json()
        await runner.start()
        path = f"/api/runs/{made['run']['id']}/events"
        async with Reading(client, "GET", path) as reading:
            await reading.count(1)
            child.send_signal(sign)
            await reading.over()
        assert reading.cut
    _, errors = await asyncio.wait_for(child.communicate(), 15)
    assert child.returncode == 0
    assert b"Traceback" not in errors
    assert b"ticket=" not in errors


async def answers(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/readyz")).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(
    ("changed", "names", "status"),
    [
        ({"STEADYRUN_JWT_SECRET": "short"}, "STEADYRUN_JWT_SECRET", 2),
        ({"STEADYRUN_JWT_SECRET": ""}, "STEADYRUN_JWT_SECRET", 2),
        ({"STEADYRUN_GRAPHS": "missing.json"}, "missing.json", 1),
        ({"STEADYRUN_JWKS_URL": "ftp://x"}, "STEADYRUN_JWKS_URL", 2),
        ({"REDIS_URL": "redis://127.0.0.1:1/0"}, "Redis", 1),
        ({"DATABASE_URL": "postgresql://a:b@127.0.0.1:1/x"}, "Postgres", 1),
    ],
)
async def test_what_cannot_start_says_why_in_one_line(
    process: Process, changed: dict[str, str], names: str, status: int
) -> None:
    process.environment |= changed
    [line] = await process.fails(status)
    assert line.startswith("steadyrun gateway: ")
    assert names in line


async def test_a_taken_port_is_one_line(process: Process) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        process.environment["STEADYRUN_GATEWAY_PORT"] = str(taken.getsockname()[1])
        [line] = await process.fails()
    assert "cannot listen on" in line
