"""nginx before stand-in gateways: what is passed on, what is repeated, what is logged."""

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from common.settings import GatewaySettings
from deploy import check_nginx, nginx
from deploy.binaries import find_nginx
from deploy.process import Command, spawn
from deploy.state import free_port

ROOT = Path(__file__).parents[2]


class Front:
    """nginx and its gateways in a folder."""

    def __init__(self, folder: Path, gateways: int) -> None:
        self.folder = folder
        self.port = free_port()
        self.ports = [free_port(avoid=[self.port]) for _ in range(gateways)]
        self.deaths = folder / "deaths"
        self.deaths.touch()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def access_log(self) -> str:
        return (self.folder / "logs" / "nginx-access.log").read_text()

    def error_log(self) -> str:
        return (self.folder / "logs" / "nginx.log").read_text()

    def gateway(self, port: int) -> subprocess.Popen[bytes]:
        environment = os.environ | {
            "STEADYRUN_GATEWAY_PORT": str(port),
            "STANDIN_DEATHS": str(self.deaths),
        }
        argv = [sys.executable, "-m", "tests.support.standin", "gateway"]
        return spawn(Command(argv, self.folder / "gateway.log", env=environment, cwd=ROOT))

    def nginx(self, template: str, **more: str) -> subprocess.Popen[bytes]:
        prefix = self.folder / "nginx"
        for place in (prefix / "temp", self.folder / "logs"):
            place.mkdir(parents=True)
        check_nginx.write_certificate(prefix)
        values = nginx.values_for(
            listen=f"127.0.0.1:{self.port}",
            gateways=[f"127.0.0.1:{port}" for port in self.ports],
            workers=1,
            connections=512,
        )
        (prefix / "nginx.conf").write_text(nginx.render(template, values | more))
        argv = [str(find_nginx()), "-p", f"{prefix}/", "-c", "nginx.conf", "-g", "daemon off;"]
        argv += ["-e", "../logs/nginx.log"]
        log = self.folder / "logs" / "nginx.log"
        return spawn(Command(argv, log, death_signal=signal.SIGTERM))


@contextlib.contextmanager
def running(
    front: Front, gateways: int, template: str = nginx.PLAIN, **more: str
) -> Iterator[Front]:
    processes = [front.gateway(port) for port in front.ports[:gateways]]
    processes.append(front.nginx(template, **more))
    try:
        for port in [*front.ports[:gateways], front.port]:
            until_listening(port)
        yield front
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
            process.wait()


def until_listening(port: int, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert time.monotonic() < deadline, f"nobody listens on {port}"
        time.sleep(0.02)


@pytest.mark.parametrize("name", [nginx.PLAIN, nginx.TLS])
def test_nginx_accepts_every_template_without_a_warning(name: str) -> None:
    assert check_nginx.check(name) is None


@pytest.mark.parametrize("name", [nginx.PLAIN, nginx.TLS])
def test_a_call_that_waits_gets_its_answer_before_nginx_gives_up(name: str) -> None:
    template = (ROOT / "nginx" / name).read_text()
    [patience_s] = re.findall(r"location /agent/ {[^}]*proxy_read_timeout (\d+)s", template)
    assert int(patience_s) > GatewaySettings.model_fields["sync_wait_s"].default


def test_the_session_facade_is_passed_on_like_everything_else(folder: Path) -> None:
    with running(Front(folder, gateways=2), gateways=1) as front:
        answers = [httpx.post(f"{front.url}/agent/invoke", content=b"{}") for _ in range(6)]
    assert [a.status_code for a in answers] == [200] * 6


def test_without_a_gateway_the_answer_is_a_problem_that_says_when_to_come_back(
    folder: Path,
) -> None:
    with running(Front(folder, gateways=2), gateways=0) as front:
        answer = httpx.get(f"{front.url}/api/conversations")
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) > 0
    assert json.loads(answer.text)["code"] == "UNAVAILABLE"


def test_a_request_that_reached_nobody_goes_to_the_other_gateway(folder: Path) -> None:
    with running(Front(folder, gateways=2), gateways=1) as front:
        answers = [httpx.post(f"{front.url}/api/chat", content=b"{}") for _ in range(6)]
    assert [a.status_code for a in answers] == [200] * 6


def test_a_post_whose_gateway_died_over_it_is_not_repeated(folder: Path) -> None:
    with running(Front(folder, gateways=2), gateways=2) as front:
        answer = httpx.post(f"{front.url}/die", content=b"{}")
    assert answer.status_code == 503
    assert front.deaths.read_text() == "x"


def test_a_body_far_beyond_the_limit_is_refused_as_a_problem(folder: Path) -> None:
    with running(Front(folder, gateways=1), gateways=1) as front:
        small = httpx.post(f"{front.url}/x", content=b"x" * (2 << 20))
        large = httpx.post(f"{front.url}/x", content=b"x" * (9 << 20))
    assert small.status_code == 200, "the gateway answers 413 itself, in its own words"
    assert large.status_code == 413
    assert large.json()["code"] == "PAYLOAD_TOO_LARGE"


def test_a_part_of_the_console_comes_from_the_gateway_that_has_its_version(folder: Path) -> None:
    with running(Front(folder, gateways=3), gateways=3) as front:
        for pid in [httpx.get(f"http://127.0.0.1:{port}").text for port in front.ports]:
            for _ in range(5):
                assert httpx.get(f"{front.url}/console/{pid}/app.js").text == pid


def test_no_ticket_gets_into_a_log(folder: Path) -> None:
    with running(Front(folder, gateways=2), gateways=1) as front:
        httpx.get(f"{front.url}/api/runs/run_1/events?ticket=hush")
        httpx.post(f"{front.url}/die?ticket=hush", content=b"{}")
    assert "/api/runs/run_1/events" in front.access_log()
    assert "hush" not in front.access_log() + front.error_log()


@pytest.mark.parametrize("path", ["/metrics", "/metrics?x=1", "/%6detrics", "/x/../metrics"])
@pytest.mark.parametrize("name", [nginx.PLAIN, nginx.TLS])
def test_metrics_are_not_shown_to_the_world(folder: Path, name: str, path: str) -> None:
    scheme, more = ("https", tls_values()) if name == nginx.TLS else ("http", {})
    with (
        running(Front(folder, gateways=1), 1, name, **more) as front,
        httpx.Client(base_url=f"{scheme}://127.0.0.1:{front.port}", verify=False) as client,
    ):
        assert client.get("/metricsx").status_code == 200, "the gateway answers everything"
        answers = [client.get(path), client.post(path, content=b"{}")]
    assert [(a.status_code, a.json()["code"]) for a in answers] == [(404, "NOT_FOUND")] * 2
    assert answers[0].headers["content-type"] == "application/problem+json"


def tls_values() -> dict[str, str]:
    return {
        "LISTEN_PLAIN": f"127.0.0.1:{free_port()}",
        "CERTIFICATE": "certificate.pem",
        "CERTIFICATE_KEY": "key.pem",
    }


def test_browsers_get_http2_over_tls(folder: Path) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        running(Front(folder, gateways=1), 1, nginx.TLS, **tls_values()) as front,
        socket.create_connection(("127.0.0.1", front.port), 5) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        assert secure.selected_alpn_protocol() == "h2"
