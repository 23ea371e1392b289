"""How `steadyrun up` keeps processes: real servers and nginx, stand-ins for the rest."""

import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
import redis

from deploy.process import Command as Execution
from deploy.process import command_line, group_members, spawn
from deploy.topology import Topology
from deploy.unprivileged import SHARED, Account, can_reach
from tests.support.cluster import ROOT, STANDIN, Cluster

NAMES = ("redis", "postgres", "gateway-1", "gateway-2", "runner-1", "runner-2", "nginx")


@pytest.fixture
def cluster(folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder / "state", program=STANDIN)
    yield cluster
    if cluster.process is not None:
        cluster.stop()


@pytest.fixture
def light(folder: Path) -> Iterator[Cluster]:
    """On the servers of the tests: for what has nothing to do with the embedded ones."""
    cluster = Cluster(folder / "state", program=STANDIN, environment=given_servers())
    yield cluster
    if cluster.process is not None:
        cluster.stop()


def given_servers() -> dict[str, str]:
    return {
        "DATABASE_URL": os.environ["TEST_DATABASE_URL"],
        "REDIS_URL": os.environ["TEST_REDIS_URL"],
    }


def until_gone(pids: list[int], timeout_s: float = 20.0) -> None:
    """Wait for the processes and for what is left of their groups."""
    deadline = time.monotonic() + timeout_s
    while alive := [p for p in pids if command_line(p) is not None or group_members(p)]:
        assert time.monotonic() < deadline, f"still running: {[command_line(p) for p in alive]}"
        time.sleep(0.02)


def pids_of(topology: Topology) -> list[int]:
    return [process.pid for process in topology.processes]


def keep_something(topology: Topology) -> None:
    with psycopg.connect(topology.database_url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
    with redis.Redis.from_url(topology.redis_url) as client:
        client.xadd("kept", {"number": "7"}, id="7-0")


def assert_kept(topology: Topology) -> None:
    with psycopg.connect(topology.database_url) as connection:
        assert connection.execute("SELECT number FROM kept").fetchall() == [(7,)]
    with redis.Redis.from_url(topology.redis_url) as client:
        assert client.xlen("kept") == 1


def test_the_topology_names_all_that_runs_until_it_is_stopped(cluster: Cluster) -> None:
    cluster.start()
    cluster.until_ready()
    topology = cluster.topology
    assert {p.name for p in topology.processes} == set(NAMES)
    assert stat.S_IMODE((cluster.state / "topology.json").stat().st_mode) == 0o600
    assert httpx.get(cluster.url).text in {str(p.pid) for p in topology.of("gateway")}
    assert cluster.stop() == 0
    until_gone(pids_of(topology))
    assert not (cluster.state / "topology.json").exists()


def test_ctrl_c_is_a_clean_end(light: Cluster) -> None:
    light.start()
    light.until_ready()
    pids = pids_of(light.topology)
    light.signal(signal.SIGINT)
    assert light.wait() == 0
    until_gone(pids)
    first, *_, last = light.said.splitlines()
    assert first == "starting gateways (2), runners (2), nginx, on DATABASE_URL and REDIS_URL"
    assert last.startswith("stopping")


def test_a_closed_terminal_is_a_clean_end(light: Cluster) -> None:
    light.start()
    light.until_ready()
    pids = pids_of(light.topology)
    light.signal(signal.SIGHUP)
    assert light.wait() == 0
    until_gone(pids)


def test_a_stop_in_the_middle_of_the_start_leaves_nothing(cluster: Cluster) -> None:
    cluster.start()
    cluster.until(lambda: (cluster.state / "topology.json").exists())
    pids = pids_of(cluster.topology)
    cluster.signal(signal.SIGTERM)
    assert cluster.wait() == 0
    until_gone(pids)


def test_every_killed_child_is_started_again(cluster: Cluster) -> None:
    cluster.start()
    cluster.until_ready()
    keep_something(cluster.topology)
    for name in NAMES:
        cluster.until_replaced(name, cluster.kill(name))
    cluster.until(lambda: is_serving(cluster))
    assert_kept(cluster.topology)


def is_serving(cluster: Cluster) -> bool:
    try:
        psycopg.connect(cluster.topology.database_url).close()
        return httpx.get(cluster.url).status_code == httpx.codes.OK
    except (psycopg.OperationalError, httpx.TransportError):
        return False


def test_killing_the_supervisor_leaves_nothing_running(cluster: Cluster) -> None:
    cluster.start()
    cluster.until_ready()
    pids = pids_of(cluster.topology)
    cluster.signal(signal.SIGKILL)
    cluster.wait()
    until_gone(pids)


def test_killing_everything_at_once_loses_nothing(cluster: Cluster) -> None:
    cluster.start()
    cluster.until_ready()
    before = cluster.topology
    keep_something(before)
    cluster.signal(signal.SIGKILL)
    for pid in pids_of(before):
        os.kill(pid, signal.SIGKILL)
    cluster.wait()
    cluster.start()
    cluster.until_ready()
    assert cluster.topology.database_url == before.database_url
    assert cluster.topology.jwt_secret == before.jwt_secret
    assert_kept(cluster.topology)


def test_a_pid_file_that_names_a_stranger_by_now_is_no_obstacle(cluster: Cluster) -> None:
    cluster.start()
    cluster.until_ready()
    cluster.stop()
    data = next(cluster.state.glob("pg[0-9]*"))
    owner = data.stat()
    account = Account("owner", owner.st_uid, owner.st_gid) if os.geteuid() == 0 else None
    stranger = spawn(Execution(["/bin/sleep", "60"], cluster.state / "stranger", account=account))
    (data / "postmaster.pid").write_text(f"{stranger.pid}\n{data}\n0\n1\n\n\n\nready\n")
    os.chown(data / "postmaster.pid", owner.st_uid, owner.st_gid)
    (cluster.state / "redis" / "redis.pid").write_text(f"{stranger.pid}\n")
    (cluster.state / "nginx" / "nginx.pid").write_text(f"{stranger.pid}\n")
    cluster.start()
    cluster.until_ready()
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_a_server_left_over_is_stopped_first(cluster: Cluster) -> None:
    """Two servers on the same files would destroy them."""
    cluster.start()
    cluster.until_ready()
    left = [cluster.pid("redis"), cluster.pid("postgres")]
    for pid in left:
        os.kill(pid, signal.SIGSTOP)  # cannot follow the signal of its parent's death
    cluster.signal(signal.SIGKILL)
    cluster.wait()
    for pid in left:
        os.kill(pid, signal.SIGCONT)
    cluster.start()
    cluster.until_ready()
    until_gone(left)


def test_another_up_in_the_same_folder_is_refused(light: Cluster) -> None:
    light.start()
    light.until_ready()
    second = Cluster(light.state, program=STANDIN, output=light.state / "second.out")
    second.start()
    assert second.wait() == 1
    assert second.said.startswith("steadyrun: another `steadyrun up` is using")
    assert second.said.count("\n") == 1


def test_a_taken_port_is_named_before_anything_is_started(folder: Path, light: Cluster) -> None:
    light.start()
    light.until_ready()
    second = Cluster(folder / "second", program=STANDIN, port=light.port)
    second.start()
    assert second.wait() == 1
    assert second.said == f"steadyrun: port {light.port} is taken: name another by --port\n"
    assert not list((folder / "second").glob("pg*"))


@pytest.mark.parametrize(
    ("environment", "status", "cause"),
    [
        ({"STEADYRUN_LEASE_TTL_S": "soon"}, 2, "STEADYRUN_LEASE_TTL_S: Input should be"),
        ({"STEADYRUN_HEARTBEAT_INTERVAL_S": "-1"}, 2, "STEADYRUN_HEARTBEAT_INTERVAL_S: Input"),
        ({"STEADYRUN_LEASE_RENEW_INTERVAL_S": "5"}, 2, "STEADYRUN_LEASE_RENEW_INTERVAL_S is too"),
        ({"STEADYRUN_MASKING_PATTERNS": '["("]'}, 2, "STEADYRUN_MASKING_PATTERNS: '(' is no"),
        ({"STEADYRUN_JWKS_URL": "nonsense"}, 2, "STEADYRUN_JWKS_URL: must begin with https://"),
        ({"STEADYRUN_METRICS_PORT": "9464"}, 2, "STEADYRUN_METRICS_PORT: 2 runners on one"),
        ({"STEADYRUN_LEASE_TLL_S": "3"}, 2, "did you mean STEADYRUN_LEASE_TTL_S?"),
        ({"DATABASE_URL": "mysql://x"}, 2, "DATABASE_URL: must begin with postgresql://"),
        ({"STEADYRUN_GRAPHS": "/nowhere/langgraph.json"}, 2, "STEADYRUN_GRAPHS"),
        ({"STEADYRUN_OPSPILOT_MODEL": "nobody:nothing"}, 1, "graph 'opspilot'"),
    ],
)
def test_what_is_wrong_with_settings_is_named_before_a_server_is_started(
    folder: Path, environment: dict[str, str], status: int, cause: str
) -> None:
    cluster = Cluster(folder / "state", environment=environment)
    cluster.start()
    assert cluster.wait() == status
    assert_nothing_began(cluster, cause)


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import nowhere_at_all", "No module named 'nowhere_at_all'"),
        ("graph = 7", "int is no graph, StateGraph or factory"),
        ("def graph():\n    raise OSError('no key')", "its factory failed: OSError: no key"),
        ("import sys\nsys.exit(0)", "graph 'shop'"),
    ],
)
def test_a_broken_graph_is_named_before_a_server_is_started(
    folder: Path, code: str, cause: str
) -> None:
    (folder / "shop.py").write_text(code)
    graphs = folder / "langgraph.json"
    graphs.write_text('{"graphs": {"shop": "./shop.py:graph"}}')
    cluster = Cluster(folder / "state")
    cluster.start("--graphs", str(graphs))
    assert cluster.wait() == 1
    assert_nothing_began(cluster, cause)


def assert_nothing_began(cluster: Cluster, cause: str) -> None:
    complaint = cluster.said.splitlines()[-1]
    assert complaint.startswith("steadyrun: ")
    assert cause in complaint
    assert "Traceback" not in cluster.said
    for begun in ("pg[0-9]*", "redis", "topology.json"):
        assert not list(cluster.state.glob(begun))


def test_a_folder_that_cannot_be_written_is_named(folder: Path) -> None:
    (folder / "file").touch()
    state = folder / "file" / "state"
    cluster = Cluster(state, program=STANDIN, output=folder / "out")
    cluster.start()
    assert cluster.wait() == 1
    assert cluster.said.startswith("steadyrun: cannot use the state folder")
    assert cluster.said.count("\n") == 1


@pytest.mark.parametrize("verb", ["check", "migrate", "gateway", "runner"])
def test_what_cannot_start_stops_all_and_says_why(light: Cluster, verb: str) -> None:
    light.environment["STANDIN_FAIL"] = verb
    light.start()
    assert light.wait() == 1
    complaint = light.said.splitlines()[-1]
    assert f"this {verb} was told to fail" in complaint
    assert not (light.state / "topology.json").exists()


def test_a_second_signal_stops_by_force(light: Cluster) -> None:
    light.environment["STANDIN_STUBBORN"] = "gateway"
    light.start()
    light.until_ready()
    pids = pids_of(light.topology)
    light.signal(signal.SIGINT)
    light.until(lambda: light.named("nginx") is None)
    asked_at = time.monotonic()
    light.signal(signal.SIGINT)
    assert light.wait() == 0
    until_gone(pids)
    assert time.monotonic() - asked_at < 14, "less than the patience with a gateway"


def test_without_nginx_the_first_gateway_listens_on_the_port(light: Cluster) -> None:
    light.start("--no-nginx")
    light.until_ready()
    assert httpx.get(light.url).text == str(light.pid("gateway-1"))


def test_servers_of_the_environment_replace_the_embedded_ones(light: Cluster) -> None:
    light.start()
    light.until_ready()
    assert light.topology.database_url == os.environ["TEST_DATABASE_URL"]
    assert light.topology.redis_url == os.environ["TEST_REDIS_URL"]
    assert light.topology.of("postgres") + light.topology.of("redis") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="every other test runs as an ordinary user already")
def test_an_ordinary_user_needs_no_rights(folder: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    account = Account("nobody", nobody.pw_uid, nobody.pw_gid)
    place = folder / "home"
    place.mkdir()
    os.chown(place, account.uid, account.gid)
    program, environment = reachable_program(account)
    cluster = Cluster(place / "state", program=program, environment=environment, account=account)
    with cluster.running():
        assert httpx.get(cluster.url).status_code == httpx.codes.OK
        owners = {Path(f"/proc/{pid}").stat().st_uid for pid in pids_of(cluster.topology)}
        assert owners == {account.uid}


def reachable_program(account: Account) -> tuple[list[str], dict[str, str]]:
    """This interpreter, or the system's of the same version, if root's home hides this one."""
    own = Path(sys.executable)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = next(p for p in sys.path if p.endswith("site-packages"))
    for python in (own, shutil.which(version, path="/usr/bin:/usr/local/bin")):
        if python and can_reach(Path(python).resolve(), account) and can_reach(ROOT / "x", account):
            return [str(python), *STANDIN[1:]], {"PYTHONPATH": f"{ROOT}:{packages}", "HOME": "/"}
    pytest.skip("no Python of this version that an ordinary user can reach")


def test_the_command_line_refuses_unusable_arguments_in_one_line() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "deploy.cli", "up", "--port", "99999"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 2
    assert said.stderr.startswith("steadyrun: Invalid value for '--port'")
    assert said.stderr.count("\n") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to hand Postgres to somebody else")
def test_root_keeps_its_home_closed(folder: Path) -> None:
    """Data that Postgres' account cannot reach lies elsewhere; no folder is opened for it."""
    home = folder / "home"
    home.mkdir(mode=0o700)
    places = []
    for _ in range(2):  # the second time under the same name, after the folder was thrown away
        cluster = Cluster(home / "state", program=STANDIN)
        with cluster.running():
            keep_something(cluster.topology)
            assert not list(cluster.state.glob("pg*"))
        places.append(json.loads((cluster.state / "secrets.json").read_text())["place"])
        shutil.rmtree(cluster.state)
    for place in places:
        shutil.rmtree(next(SHARED.glob(f"*-{place}")))
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
