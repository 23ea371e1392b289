"""What the compose file runs, run without containers: its nginx and its Valkey."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import redis

from deploy import nginx
from deploy.binaries import find_nginx, find_redis
from deploy.process import Command, spawn
from deploy.state import free_port
from tests.support import manifests
from tests.support.names import Names, answering


class Answer(BaseHTTPRequestHandler):
    """Its own address, for every path."""

    def do_GET(self) -> None:
        host = self.connection.getsockname()[0]
        self.send_response(200)
        self.send_header("Content-Length", str(len(host)))
        self.end_headers()
        self.wfile.write(host.encode())

    def log_message(self, format: str, *args: object) -> None:
        return None


@contextmanager
def gateway(host: str, port: int) -> Iterator[str]:
    server = ThreadingHTTPServer((host, port), Answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield host
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def edge(folder: Path, names: Names, port: int) -> Iterator[str]:
    """nginx as the compose file runs it, less what belongs to a container: addresses and paths."""
    listen = free_port(avoid=[port])
    values = dict(manifests.compose()["nginx"]["environment"])
    servers = values["GATEWAY_SERVERS"]
    assert "127.0.0.11 valid=2s" in servers, "Docker's name server, asked again"
    servers = servers.replace("127.0.0.11 valid=2s", f"127.0.0.1:{names.port} valid=1s")
    own = {
        "GATEWAY_SERVERS": servers.replace("gateway:8000", f"gateway.test:{port}"),
        "LISTEN": f"127.0.0.1:{listen}",
        "PID_FILE": str(folder / "nginx.pid"),
        "TEMP_FOLDER": str(folder),
        "ACCESS_LOG": str(folder / "access.log"),
        "WORKER_PROCESSES": "1",
        "WORKER_CONNECTIONS": "512",
    }
    (folder / "nginx.conf").write_text(nginx.render(nginx.PLAIN, values | own))
    argv = [str(find_nginx()), "-p", f"{folder}/", "-c", "nginx.conf", "-g", "daemon off;"]
    process = spawn(
        Command([*argv, "-e", "stderr"], folder / "nginx.log", death_signal=signal.SIGTERM)
    )
    try:
        yield f"http://127.0.0.1:{listen}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def until_answered_by(url: str, wanted: set[str], timeout_s: float = 30.0) -> None:
    """Every one of them answers, and nobody else."""
    deadline = time.monotonic() + timeout_s
    seen: set[str] = set()
    while seen != wanted:
        assert time.monotonic() < deadline, f"{seen} instead of {wanted}"
        seen = {_answer(url) for _ in range(12)}


def _answer(url: str) -> str:
    try:
        got = httpx.get(url)
    except httpx.TransportError:
        return "nobody"
    return got.text if got.status_code == 200 else str(got.status_code)


@pytest.mark.skipif(sys.platform == "darwin", reason="only 127.0.0.1 is up there")
def test_nginx_of_the_compose_file_follows_replicas_that_come_and_go(folder: Path) -> None:
    first, second, third = "127.0.0.1", "127.0.0.2", "127.0.0.3"
    port = free_port()
    with ExitStack() as gateways, answering([]) as names, edge(folder, names, port) as url:
        until_answered_by(url, {"503"})
        for host in (first, second):
            gateways.enter_context(gateway(host, port))
        names.addresses = [first, second]
        until_answered_by(url, {first, second})
        gateways.enter_context(gateway(third, port))
        names.addresses = [first, second, third]
        until_answered_by(url, {first, second, third})
        assert httpx.get(f"{url}/metrics").status_code == 404, "Prometheus asks from inside"
        names.addresses = [third]
        until_answered_by(url, {third})


def test_valkey_of_the_compose_file_starts_with_its_settings(tmp_path: Path) -> None:
    shell, option, script = manifests.compose()["valkey"]["command"]
    assert (shell, option) == ("sh", "-c")
    port = free_port()
    script = script.replace("$$", "$").replace("valkey-server -", f"{find_redis()} -")
    script = script.replace("dir /tmp", f'dir "{tmp_path}"\nport {port}\nbind 127.0.0.1')
    password = "pass-of-the-test"
    environment = os.environ | {"VALKEY_PASSWORD": password}
    with subprocess.Popen(["sh", "-c", script], env=environment, stdout=subprocess.DEVNULL) as run:
        try:
            client = until_open(port, password)
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert client.config_get("save") == {"save": ""}
            with pytest.raises(redis.AuthenticationError):
                redis.Redis(port=port).ping()
        finally:
            run.terminate()
    assert run.returncode == 0, "the server itself got the signal, not a shell before it"


def until_open(port: int, password: str, timeout_s: float = 20.0) -> "redis.Redis":
    client = redis.Redis(port=port, password=password, decode_responses=True)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            client.ping()
            return client
        except redis.ConnectionError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
