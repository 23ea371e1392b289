"""The pure parts of the ways to run."""

import os
import stat
from pathlib import Path

import pytest

from common.errors import Misconfigured
from deploy import nginx
from deploy.child import Backoff
from deploy.local import Choices, System
from deploy.probe import LogWord
from deploy.process import command_line, read_pid
from deploy.signing import sign, signing_secret
from deploy.state import PORTS, StateFolder, free_port
from deploy.topology import Process, Topology
from deploy.unprivileged import Account, can_reach
from tests.support.servers import need_servers

STRANGER = Account("stranger", 54_321, 54_321)


def test_a_child_that_ends_soon_waits_longer_each_time_up_to_a_limit() -> None:
    backoff = Backoff(first_s=1, longest_s=5, calm_s=60)
    assert [backoff.after(0) for _ in range(5)] == [1, 2, 4, 5, 5]


def test_a_child_that_ran_for_a_while_is_started_again_at_once() -> None:
    backoff = Backoff(first_s=1, longest_s=5, calm_s=60)
    for _ in range(4):
        backoff.after(0)
    assert [backoff.after(61), backoff.after(0)] == [1, 2]


def test_a_template_that_is_not_filled_in_is_refused() -> None:
    with pytest.raises(KeyError, match="LISTEN"):
        nginx.render(nginx.PLAIN, {"PID_FILE": "x"})


def test_nginx_keeps_its_own_variables() -> None:
    values = nginx.values_for(
        listen="127.0.0.1:1", gateways=["127.0.0.1:2"], workers=1, connections=512
    )
    text = nginx.render(nginx.PLAIN, values)
    assert "proxy_set_header Host $http_host;" in text
    assert "server 127.0.0.1:2 max_fails" in text


@pytest.mark.parametrize("name", [nginx.PLAIN, nginx.TLS])
def test_no_template_repeats_a_post_or_logs_a_query(name: str) -> None:
    directives = [line.partition("#")[0] for line in nginx.template(name).splitlines()]
    text = "\n".join(directives)
    assert "non_idempotent" not in text
    assert not [
        word for word in ("$args", "$query_string", "'$request ", "$request_uri'") if word in text
    ]
    assert "proxy_buffering off;" in text


def test_both_templates_treat_streams_alike() -> None:
    plain, tls = (nginx.template(name).splitlines() for name in (nginx.PLAIN, nginx.TLS))
    missing = [line for line in plain if line not in tls]
    assert [line.strip() for line in missing if line[:1] != "#"] == ["listen ${LISTEN};"]


def test_a_topology_is_read_as_it_was_written_and_is_private(tmp_path: Path) -> None:
    process = Process("gateway-1", "gateway", 7, "http://127.0.0.1:1")
    topology = Topology("http://127.0.0.1:8080", "postgresql://", "redis://", "secret", [process])
    topology.write(tmp_path / "topology.json")
    assert Topology.read(tmp_path / "topology.json") == topology
    assert stat.S_IMODE((tmp_path / "topology.json").stat().st_mode) == 0o600
    assert topology.of("gateway") == [process]
    assert topology.of("runner") == []


def test_something_else_is_no_topology(tmp_path: Path) -> None:
    (tmp_path / "topology.json").write_text('{"url": "x"}')
    with pytest.raises(ValueError, match="not a topology"):
        Topology.read(tmp_path / "topology.json")


def test_a_state_folder_remembers_secrets_and_ports(tmp_path: Path) -> None:
    with StateFolder.open(tmp_path / "state") as first:
        before = (first.memory.jwt_secret, first.port("redis"))
    with StateFolder.open(tmp_path / "state") as second:
        assert (second.memory.jwt_secret, second.port("redis")) == before
    assert stat.S_IMODE((tmp_path / "state" / "secrets.json").stat().st_mode) == 0o600


def test_a_state_folder_is_held_by_one(tmp_path: Path) -> None:
    with (
        StateFolder.open(tmp_path),
        pytest.raises(Misconfigured, match="another `steadyrun up` is using"),
        StateFolder.open(tmp_path),
    ):
        pass


def test_an_error_of_the_caller_is_not_taken_for_one_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), StateFolder.open(tmp_path):
        raise FileNotFoundError


def test_a_database_without_its_password_is_not_made_anew(tmp_path: Path) -> None:
    (tmp_path / "pg18").mkdir()
    with (
        pytest.raises(Misconfigured, match=r"secrets\.json is missing"),
        StateFolder.open(tmp_path),
    ):
        pass


def test_damaged_secrets_are_named(tmp_path: Path) -> None:
    (tmp_path / "secrets.json").write_text("{")
    with pytest.raises(Misconfigured, match="damaged"), StateFolder.open(tmp_path):
        pass


def test_ports_are_not_those_of_outgoing_connections() -> None:
    assert free_port() in PORTS
    assert PORTS.stop <= 32_768


def test_a_closed_folder_above_cannot_be_passed_by_another_account(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "inner").mkdir(parents=True)
    closed.chmod(0o700)
    assert not can_reach(closed / "inner" / "program", STRANGER)


def test_every_account_reaches_the_system() -> None:
    assert can_reach(Path("/usr/bin/env"), STRANGER)


def test_a_pid_file_with_nonsense_names_nobody(tmp_path: Path) -> None:
    (tmp_path / "pid").write_text("nonsense\n")
    assert read_pid(tmp_path / "pid") is None
    assert read_pid(tmp_path / "none") is None


def test_a_living_process_is_known_by_its_command_line() -> None:
    assert "python" in (command_line(os.getpid()) or "")


def test_a_number_without_a_process_has_no_command_line() -> None:
    child = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 0"], os.environ)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert command_line(child) is None, "a zombie is no living process"
    os.waitpid(child, 0)
    assert command_line(child) is None


def test_a_missing_graph_file_is_named(tmp_path: Path) -> None:
    choices = Choices(graphs=tmp_path / "langgraph.json")
    with (
        StateFolder.open(tmp_path) as state,
        pytest.raises(Misconfigured, match="there is no graph file"),
    ):
        System(choices, state, program=[])


def test_an_unusable_graph_file_is_named_before_anything_is_started(tmp_path: Path) -> None:
    graphs = tmp_path / "langgraph.json"
    graphs.write_text('{"graphs": {"shop": "./nowhere.py:shop"}}')
    with (
        StateFolder.open(tmp_path) as state,
        pytest.raises(Misconfigured, match=r"graph 'shop': \./nowhere\.py does not exist"),
    ):
        System(Choices(graphs=graphs), state, program=[])


def test_up_says_where_the_console_is_and_asks_a_foreign_graph_nothing_of_the_sample(
    tmp_path: Path,
) -> None:
    (tmp_path / "agents.py").touch()
    graphs = tmp_path / "langgraph.json"
    graphs.write_text('{"graphs": {"shop": "./agents.py:shop", "desk": "./agents.py:desk"}}')
    with StateFolder.open(tmp_path / "state") as state:
        own = System(Choices(graphs=graphs, port=free_port()), state, program=[]).welcome()
        sample = System(Choices(port=free_port()), state, program=[]).welcome()
    assert "console     http://127.0.0.1:" in own
    assert "payment-api" in sample
    assert "payment-api" not in own
    assert "graphs      shop, desk" in own


def test_a_token_is_signed_with_the_secret_of_the_running_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STEADYRUN_JWT_SECRET", raising=False)
    secret = "s" * 32
    Topology("http://x", "postgresql://", "redis://", secret).write(tmp_path / "topology.json")
    assert signing_secret(tmp_path) == secret
    assert sign(secret, "ada", ["ops.view"], ttl_s=60).count(".") == 2


def test_without_any_secret_it_is_said_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STEADYRUN_JWT_SECRET", raising=False)
    with pytest.raises(Misconfigured, match="set STEADYRUN_JWT_SECRET"):
        signing_secret(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ([], True),
        (["tests"], True),
        (["tests/unit"], False),
        (["tests/unit/test_house.py::test_x"], False),
        (["tests/unit", "tests/integration"], True),
    ],
)
def test_unit_tests_alone_start_no_servers(arguments: list[str], answer: bool) -> None:
    assert need_servers(arguments) is answer


def test_only_what_comes_into_the_log_from_now_on_counts(tmp_path: Path) -> None:
    log = tmp_path / "runner-1.log"
    log.write_text('{"event": "runner_started"}\n')
    word = LogWord(log, '"runner_started"')
    word.begin()
    assert not word.has_come()
    with log.open("a") as file:
        file.write('{"event": "runner_started"}\n')
    assert word.has_come()
