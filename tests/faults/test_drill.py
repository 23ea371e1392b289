"""The drill finds nothing, checks everything, and can be interrupted.

A few scenarios on one system by default; with STEADYRUN_FAULT_ROUNDS all of them, and so many
rounds of `mixed`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.drill import Choices, drill
from deploy.drill.scenarios import SCENARIOS
from deploy.process import Command, command_line, spawn
from deploy.topology import Topology

ROUNDS = os.environ.get("STEADYRUN_FAULT_ROUNDS")
NAMES = tuple(SCENARIOS) if ROUNDS else ("runner-kill", "redis-empty", "gateway-kill", "mixed")
INVARIANTS = {f"I{number}" for number in range(1, 10)}


@pytest.mark.timeout(3600 if ROUNDS else 300)
def test_nothing_is_lost_doubled_or_stuck_whatever_is_killed(folder: Path) -> None:
    file = folder / "told.json"
    said: list[str] = []
    choices = Choices(NAMES, rounds=int(ROUNDS or 2), json_file=file, state=folder / "state")
    status = drill(choices, said.append)
    told: dict[str, Any] = json.loads(file.read_text())
    assert told["violations"] == [], "\n".join(said)
    assert status == 0
    assert [each["name"] for each in told["scenarios"]] == list(NAMES)
    assert all(each["checks"] for each in told["scenarios"])
    assert {i["invariant"] for i in told["invariants"]} >= INVARIANTS
    assert [i for i in told["invariants"] if i["outcome"] == "not checked"] == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("number", "shell"),
    [(signal.SIGINT, []), (signal.SIGTERM, ["sh", "-c", "trap '' INT; exec \"$@\"", "background"])],
    ids=["ctrl-c", "sigterm"],
)
def test_an_interrupted_drill_leaves_no_process_and_nothing_stopped(
    folder: Path, number: signal.Signals, shell: list[str]
) -> None:
    """In the middle of a pause, when a gateway stands still; also as a script's background job,
    which is deaf to Ctrl-C."""
    state = folder / "state"
    command = drill_command(folder, "gateway-pause", "--state", str(state))
    child = spawn(replace(command, argv=[*shell, *command.argv]))
    try:
        topology = until_paused(child, state)
        child.send_signal(number)
        assert child.wait(60) == 0, (folder / "out").read_text()
    finally:
        child.kill()
        child.wait()
    assert "interrupted: 0 violations" in (folder / "out").read_text()
    assert [p.name for p in topology.processes if command_line(p.pid) is not None] == []


def drill_command(folder: Path, *words: str) -> Command:
    few = ("--gateways", "1", "--runners", "1", "--no-nginx")
    argv = [sys.executable, "-m", "deploy.cli", "drill", *words, *few]
    return Command(argv=argv, log=folder / "out", death_signal=signal.SIGTERM)


def until_paused(child: "subprocess.Popen[bytes]", state: Path) -> Topology:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert child.poll() is None
        try:
            topology = Topology.read(state / "topology.json")
            if any(is_stopped(gateway.pid) for gateway in topology.of("gateway")):
                return topology
        except (OSError, ValueError):
            pass
        time.sleep(0.05)
    raise AssertionError("no gateway was ever stopped")


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
