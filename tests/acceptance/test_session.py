"""The session facade and its example client, through the whole system: the demo of a client that is
quit while the agent runs, while it waits for a person, and after it was resumed."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.process import hear_the_keyboard
from deploy.signing import sign
from tests.support.cluster import ROOT, Cluster
from tests.support.graphs.session import GATES

GRAPHS = ROOT / "tests" / "support" / "graphs" / "session.json"
CLIENT = ROOT / "deploy" / "examples" / "session_client.py"


class System:
    """Two gateways, two runners, nginx and the servers; the agent waits at its gates."""

    def __init__(self, cluster: Cluster, gates: Path) -> None:
        self.cluster, self._gates = cluster, gates

    def open(self, gate: str, query: str) -> None:
        (self._gates / f"{query}.{gate}").touch()

    def token(self, user: str) -> str:
        return sign(self.cluster.topology.jwt_secret, user, [], ttl_s=3600)

    def http(self, user: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.token(user)}"}
        return httpx.Client(base_url=self.cluster.url, headers=headers, timeout=60)

    def urls(self) -> list[str]:
        return [p.url for p in self.cluster.topology.processes if p.role == "gateway" and p.url]

    def status(self, user: str) -> str:
        with self.http(user) as http:
            return str(http.get(f"/agent/session/{user}").json()["status"])

    def has_session(self, user: str) -> bool:
        with self.http(user) as http:
            return http.get(f"/agent/session/{user}").status_code == 200


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    with tempfile.TemporaryDirectory(prefix="steadyrun-") as name:
        Path(name).chmod(0o755)
        (gates := Path(name) / "gates").mkdir()
        cluster = Cluster(Path(name) / "state", environment={GATES: str(gates)})
        with cluster.running("--graphs", str(GRAPHS)) as running:
            yield System(running, gates)


class Terminal:
    """The example client as a person has it. `quit` is sudden."""

    def __init__(self, system: System, user: str) -> None:
        environment = os.environ | {
            "STEADYRUN_TOKEN": system.token(user),
            "STEADYRUN_URL": system.cluster.url,
        }
        self.page = ""
        self._process = subprocess.Popen(
            [sys.executable, str(CLIENT), "--user", user],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            preexec_fn=hear_the_keyboard,
        )
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def type(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def sees(self, text: str) -> "Terminal":
        with self._changed:
            assert self._changed.wait_for(lambda: text in self.page, 60), self.page
        return self

    def quit(self, sign: signal.Signals = signal.SIGKILL) -> int:
        self._process.send_signal(sign)
        status = self._process.wait(30)
        self._reader.join(30)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        return status

    def _read(self) -> None:
        assert self._process.stdout is not None
        while chunk := os.read(self._process.stdout.fileno(), 4096):
            with self._changed:
                self.page += chunk.decode()
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()


def ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def terminal(system: System, user: str) -> Iterator[Terminal]:
    shown = Terminal(system, user)
    try:
        yield shown
    finally:
        if shown._process.poll() is None:
            shown.quit()


def nothing_more(system: System) -> None:
    """The client's end is all that happens."""


def every_process_is_killed(system: System) -> None:
    """kill -9 of both gateways and both runners at once."""
    killed = [
        (p.name, p.pid)
        for p in system.cluster.topology.processes
        if p.role in ("gateway", "runner")
    ]
    for _, pid in killed:
        os.kill(pid, signal.SIGKILL)
    for name, pid in killed:
        system.cluster.until_replaced(name, pid)
    system.cluster.until(lambda: all(ready(url) for url in system.urls()))


def everything_is_restarted(system: System) -> None:
    system.cluster.stop()
    system.cluster.start("--graphs", str(GRAPHS))
    system.cluster.until_ready()


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "meanwhile", [nothing_more, every_process_is_killed, everything_is_restarted]
)
def test_the_client_is_quit_while_running_while_interrupted_and_after_resuming(
    system: System, meanwhile: Callable[[System], None]
) -> None:
    user, query = f"u-{uuid.uuid4().hex[:6]}", f"q-{uuid.uuid4().hex[:6]}"
    with terminal(system, user) as first:
        first.sees("you >").type(query)
        first.sees("(running)").quit()
    meanwhile(system)
    with terminal(system, user) as second:
        second.sees("(running)")
        system.open("found", query)
        second.sees("May I search?").sees("accept | edit | response | reject >").quit()
    meanwhile(system)
    with terminal(system, user) as third:
        third.sees("May I search?").sees(query).type("accept")
        third.sees("(running)").quit()
    meanwhile(system)
    with terminal(system, user) as fourth:
        fourth.sees("(running)")
        system.open("done", query)
        fourth.sees(f"[completed] {query}: answered with {{'type': 'accept'}}")
        fourth.sees("you >").quit()
    meanwhile(system)
    with terminal(system, user) as last:
        last.sees(f"[completed] {query}: answered with {{'type': 'accept'}}").sees("you >")


@pytest.mark.timeout(120)
def test_ctrl_c_leaves_in_peace_and_a_client_goes_on_over_several_turns(system: System) -> None:
    user, query = f"u-{uuid.uuid4().hex[:6]}", f"q-{uuid.uuid4().hex[:6]}"
    with terminal(system, user) as shown:
        shown.sees("you >").type(query)
        system.open("found", query)
        shown.sees("May I search?").type("maybe")
        shown.type("edit")
        shown.type('{"query": "better"}')
        system.open("done", query)
        shown.sees("'args': {'query': 'better'}").sees("history ['human'].")
        shown.sees("you >").type(f"{query}-2")
        system.open("found", f"{query}-2")
        shown.sees(f'{query}-2"').type("reject")
        system.open("done", f"{query}-2")
        shown.sees(f"{query}-2: answered with {{'type': 'reject'}}")
        shown.sees("history ['human', 'ai', 'human'].")
        shown.type("/new")
        shown.type(f"{query}-3")
        system.cluster.until(lambda: system.status(user) == "running")
        assert shown.quit(signal.SIGINT) == 0
        assert "left; the session goes on" in shown.page
        assert "Traceback" not in shown.page
    assert system.status(user) == "running"
    with system.http(user) as http:
        assert http.delete(f"/agent/session/{user}").status_code == 204


@pytest.mark.timeout(120)
def test_a_call_whose_gateway_is_killed_gets_its_answer_by_its_key(system: System) -> None:
    user, query = f"u-{uuid.uuid4().hex[:6]}", f"q-{uuid.uuid4().hex[:6]}"
    body = {"query": query, "system_message": "Be brief."}
    keyed = {"Idempotency-Key": query}

    def call() -> Any:
        with system.http(user) as http:
            return http.post("/agent/invoke", json=body, headers=keyed)

    with ThreadPoolExecutor() as pool:
        cut = pool.submit(call)
        system.cluster.until(lambda: system.has_session(user))
        every_process_is_killed(system)
        assert cut.result().status_code == 503
        again = pool.submit(call)
        system.open("found", query)
        answer = again.result().json()
    assert answer["status"] == "interrupted", answer
    assert answer["interrupt_data"]["payload"]["args"] == {"query": query}
    system.open("done", query)
    with system.http(user) as http:
        done = http.post(
            "/agent/resume",
            json={
                "session_id": answer["session_id"],
                "response_type": "response",
                "args": [1, None],
            },
        ).json()
    assert (done["status"], done["task_id"]) == ("completed", answer["task_id"])
    last = done["result"]["messages"][-1]["content"]
    assert "history ['system', 'human']" in last
    assert done["result"]["answered"] == {"type": "response", "args": [1, None]}


@pytest.mark.timeout(120)
def test_a_system_message_that_comes_late_stands_at_the_front(system: System) -> None:
    user, query = f"u-{uuid.uuid4().hex[:6]}", f"q-{uuid.uuid4().hex[:6]}"
    with system.http(user) as http:
        for turn, system_message in enumerate((None, "Be brief.", "Be kind.")):
            query = f"{query}-{turn}"
            for gate in ("found", "done"):
                system.open(gate, query)
            body = {"query": query, "system_message": system_message}
            asked = http.post("/agent/invoke", json=body).json()
            reply = {"session_id": asked["session_id"], "response_type": "accept"}
            done = http.post("/agent/resume", json=reply).json()
            last = done["result"]["messages"][-1]["content"]
            kinds = ["human"] + ["ai", "human"] * turn
            assert f"history {['system'] * (turn > 0) + kinds}." in last
            assert [m["role"] for m in done["result"]["messages"]] == ["user", "assistant"]


@pytest.mark.timeout(120)
def test_of_many_invokes_of_one_user_through_both_gateways_one_begins(system: System) -> None:
    user, query = f"u-{uuid.uuid4().hex[:6]}", f"q-{uuid.uuid4().hex[:6]}"
    headers = {"Authorization": f"Bearer {system.token(user)}"}
    body = {"query": query, "mode": "async"}

    def call(url: str) -> int:
        return httpx.post(f"{url}/agent/invoke", json=body, headers=headers).status_code

    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(call, system.urls() * 4))
    assert sorted(statuses) == [202, *[409] * 7]
    with system.http(user) as http:
        assert http.delete(f"/agent/session/{user}").status_code == 204
        assert http.get(f"/agent/session/{user}").status_code == 404
