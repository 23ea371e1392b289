"""`steadyrun check`: what gateways and runners would refuse, without a server."""

import subprocess
import sys
from pathlib import Path

import pytest

from common.environment import load
from common.errors import Unusable
from common.settings import GatewaySettings, RunnerSettings
from deploy import cli
from deploy.check import settings_of_up


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    (tmp_path / "shop.py").write_text(
        "from langgraph.graph import START, MessagesState, StateGraph\n"
        "made = StateGraph(MessagesState).add_node('a', lambda s: {}).add_edge(START, 'a')\n"
    )
    graphs = tmp_path / "langgraph.json"
    graphs.write_text('{"graphs": {"shop": "./shop.py:made"}}')
    monkeypatch.setenv("STEADYRUN_GRAPHS", str(graphs))
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/x")
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1")
    return monkeypatch


def checked(capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = cli.status_of(lambda: cli.cli(["check"], standalone_mode=False))
    said = capsys.readouterr()
    return status, said.out + said.err


def test_what_is_fine_is_said_without_any_server(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = "settings and graphs are fine: shop"
    assert checked(capsys) == (0, f"{fine}; gateways also need STEADYRUN_JWT_SECRET\n")
    environment.setenv("STEADYRUN_JWT_SECRET", "s" * 32)
    assert checked(capsys) == (0, f"{fine}\n")


@pytest.mark.parametrize(("made", "status"), [("made", 0), ("nothing", 1)])
def test_a_thread_of_a_graph_that_never_ends_does_not_hold_it(
    environment: pytest.MonkeyPatch, tmp_path: Path, made: str, status: int
) -> None:
    with (tmp_path / "shop.py").open("a") as file:
        file.write("import threading\nthreading.Thread(target=threading.Event().wait).start()\n")
    (tmp_path / "langgraph.json").write_text(f'{{"graphs": {{"shop": "./shop.py:{made}"}}}}')
    command = [sys.executable, "-P", "-m", "deploy.cli", "check"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, (ended.stdout + ended.stderr).count("\n")) == (status, 1)


def test_a_graph_that_cannot_be_loaded_is_named(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "broken.json").write_text('{"graphs": {"shop": "./shop.py:nothing"}}')
    environment.setenv("STEADYRUN_GRAPHS", str(tmp_path / "broken.json"))
    status, said = checked(capsys)
    assert (status, said.count("\n")) == (1, 1)
    assert "graph 'shop'" in said


def test_a_guard_that_gateways_refuse_is_named(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "guards.py").write_text("class Guard:\n    def authorise(self, who, card): ...\n")
    (tmp_path / "langgraph.json").write_text(
        '{"graphs": {"shop": "./shop.py:made"},'
        ' "steadyrun": {"graphs": {"shop": {"guard": "./guards.py:Guard"}}}}'
    )
    status, said = checked(capsys)
    assert (status, said.count("\n")) == (1, 1)
    assert "graph 'shop'" in said
    assert "is no guard" in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STEADYRUN_CORS_ORIGINS", "a.example"),
        ("STEADYRUN_CORS_ORIGINS", "https://a.example/"),
        ("STEADYRUN_TRACES_URL", "collector:4318"),
        ("STEADYRUN_JWKS_URL", "ftp://keys"),
        ("STEADYRUN_JWT_SECRET", "short"),
        ("STEADYRUN_LEASE_TTL_S", "nan"),
        ("STEADYRUN_LEASE_TTL_S", "inf"),
        ("STEADYRUN_LEASE_TTL_S", "1e300"),
        ("STEADYRUN_DRAIN_DELAY_S", "inf"),
        ("STEADYRUN_LEASE_RENEW_INTERVAL_S", "4"),
        ("STEADYRUN_RUNNER_CONCURRENCY", str(10**20)),
        ("STEADYRUN_GATEWAY_POOL_SIZE", "-1"),
        ("STEADYRUN_MASKING_PATTERNS", '["(a+)+"]'),
        ("STEADYRUN_METRICS_PORT", "70000"),
        ("STEADYRUN_LOG_LEVEL", "loud"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_named(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    environment.setenv(name, value)
    status, said = checked(capsys)
    assert (status, said.count("\n")) == (2, 1)
    assert said.startswith(f"steadyrun: {name}")


@pytest.mark.parametrize(
    "given",
    [
        *("*", "https://a.example, http://localhost:3000", ""),
        "capacitor://localhost,chrome-extension://abcdefghijklmnop",
    ],
)
def test_origins_as_browsers_send_them_are_taken(
    environment: pytest.MonkeyPatch, given: str
) -> None:
    environment.setenv("STEADYRUN_CORS_ORIGINS", given)
    assert len(load(GatewaySettings).cors_origins) == len([o for o in given.split(",") if o])


def test_every_number_of_a_setting_has_bounds() -> None:
    """What no timer or column can hold would end a process in the middle of its work."""
    for kind in (GatewaySettings, RunnerSettings):
        for name, field in kind.model_fields.items():
            if field.annotation in (int, float, int | None, float | None):
                bounds = {type(one).__name__ for one in field.metadata} | _inner(field)
                assert "Le" in bounds, name
                assert bounds & {"Ge", "Gt"}, name


def _inner(field: object) -> set[str]:
    """Of `Seconds | None`."""
    return {"Le", "Gt"} if "LONGEST" in repr(field) or "1000000000" in repr(field) else set()


def test_up_needs_no_servers_in_the_environment_and_no_port(
    environment: pytest.MonkeyPatch,
) -> None:
    environment.delenv("DATABASE_URL")
    environment.delenv("REDIS_URL")
    environment.setenv("STEADYRUN_GATEWAY_PORT", "tcp://10.0.0.1:8000")
    settings_of_up(2)
    environment.setenv("STEADYRUN_METRICS_PORT", "9464")
    settings_of_up(1)
    with pytest.raises(Unusable, match="cannot share a port"):
        settings_of_up(2)


@pytest.mark.parametrize(
    "name", ["STEADYRUN_JWT_SECRET", "STEADYRUN_DEMO", "STEADYRUN_START_PATIENCE_S"]
)
def test_up_fills_in_what_is_empty(environment: pytest.MonkeyPatch, name: str) -> None:
    environment.setenv(name, "")
    settings_of_up(2)
