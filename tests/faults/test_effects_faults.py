"""I5: whatever happens to its runner around an effect, it is performed at most once.

Two real runner processes with a short lease; each round starts some runs, kills or stops runners at
exact places of an effect or at a random moment, and continues the stopped ones when another runner
has taken up and ended what they had. An effect appends a line to a file of its run.
"""

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from common.db import runs
from common.db.engine import Database
from common.db.runs import Run
from deploy.process import Command, spawn
from tests.acceptance.conftest import GRAPHS
from tests.support import rows
from tests.support.cluster import ROOT
from tests.support.effect_faults import KILL, PLACES, STOP
from tests.support.leases import until

ROUNDS = int(os.environ.get("STEADYRUN_FAULT_ROUNDS", "2"))
SEED = int(os.environ.get("STEADYRUN_FAULT_SEED", "1"))
RUNS = 6
LEASE_S = 2.0
PATIENCE_S = 90.0  # of a machine that is shared


class RunnerProcess:
    """tests/support/effect_runner.py; started again when it was killed."""

    def __init__(self, name: str, environment: dict[str, str], folder: Path) -> None:
        log = folder / f"{name}.log"
        argv = [sys.executable, "-m", "tests.support.effect_runner"]
        self._command = Command(argv, log=log, env=os.environ | environment, cwd=ROOT)
        self.start()

    def start(self) -> None:
        self._child = spawn(self._command)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_dead(self) -> bool:
        return self._child.poll() is not None

    @property
    def is_stopped(self) -> bool:
        if self.is_dead:
            return False
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def send(self, sign: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._child.send_signal(sign)

    def end(self) -> None:
        self.send(signal.SIGKILL)
        self._child.wait()


@dataclass(frozen=True)
class Case:
    """One run: its file, and whether there is a verify."""

    run_id: str
    file: Path
    verify: bool

    @property
    def lines(self) -> list[str]:
        return self.file.read_text().split() if self.file.exists() else []

    def wrong(self, run: Run) -> str | None:
        """What must not be, in words."""
        if len(self.lines) > 1:
            return f"performed {len(self.lines)} times"
        if run.status == "completed" and len(self.lines) == 1:
            return None
        if not self.verify and run.status == "interrupted":
            return None
        return (
            f"{run.status} in epoch {run.epoch} with {len(self.lines)} lines, {run.output},"
            f" {run.error}, asked {run.input['content']}"
        )


class Field:
    """Two runners on one database, and what a test does to them."""

    def __init__(self, db: Database, folder: Path, environment: dict[str, str]) -> None:
        self._db = db
        self._folder = folder
        self.orders = folder / "orders"
        self.orders.mkdir()
        environment = environment | {"EFFECT_FAULTS": str(self.orders)}
        self.runners = [RunnerProcess(name, environment, folder) for name in ("one", "two")]

    async def until_ready(self) -> None:
        """Every process lives, and has renewed a lease since now: one that stood still has gone on,
        noticed what it lost, and had a moment to do what it must not."""
        for runner in self.runners:
            runner.send(signal.SIGCONT)
        async with self._db.connect() as conn:
            since = await conn.value("SELECT clock_timestamp()")

        async def all_renewed() -> bool:
            for runner in self.runners:
                if runner.is_dead:  # also one that goes on to where it is to be killed
                    runner.start()
            return await self._have_renewed(since)

        await until(all_renewed, PATIENCE_S)
        await asyncio.sleep(0.2)

    async def _have_renewed(self, since: datetime) -> bool:
        limit = since + timedelta(seconds=LEASE_S)
        async with self._db.connect() as conn:
            living = await conn.rows(
                "SELECT pid FROM runners WHERE dead_at IS NULL AND lease_until > $1", limit
            )
        return {runner.pid for runner in self.runners} <= {row["pid"] for row in living}

    async def start(self, name: str, *, order: str | None = None, **asked: Any) -> Case:
        file = self._folder / name
        given = {"file": str(file), "key": name, **asked}
        if order:
            (self.orders / name).write_text(order)
        content = json.dumps(given)
        async with self._db.begin() as conn:
            run = await rows.queued_run(
                conn, graph="effects", input={"content": content}, content=content
            )
        return Case(run.id, file, bool(asked.get("verify")))

    async def until_ended(self, cases: list[Case]) -> dict[str, Run]:
        """All runs of a round; runners that are gone or stand still stay so, but one goes on."""

        async def all_ended() -> dict[str, Run]:
            if all(runner.is_dead or runner.is_stopped for runner in self.runners):
                self.revive_one()
            found = [await self._find(case.run_id) for case in cases]
            done = all(run.status in ("completed", "failed", "interrupted") for run in found)
            return {run.id: run for run in found} if done else {}

        return await until(all_ended, PATIENCE_S)

    def revive_one(self) -> None:
        """Both stood still or are dead: nobody could take anything up."""
        runner = self.runners[0]
        if runner.is_dead:
            runner.start()
        runner.send(signal.SIGCONT)

    async def _find(self, run_id: str) -> Run:
        async with self._db.connect() as conn:
            run = await runs.find(conn, run_id)
        assert run is not None
        return run

    def end(self) -> None:
        for runner in self.runners:
            runner.end()


@pytest.fixture
async def field(
    database_url: str, redis_url: str, redis_prefix: str, folder: Path
) -> AsyncIterator[Field]:
    environment = {
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "STEADYRUN_REDIS_PREFIX": redis_prefix,
        "STEADYRUN_GRAPHS": str(GRAPHS),
        "STEADYRUN_LEASE_TTL_S": str(LEASE_S),
        "STEADYRUN_LEASE_RENEW_INTERVAL_S": "0.3",
        "STEADYRUN_CLAIM_POLL_S": "0.05",
        "STEADYRUN_ATTEMPTS_MAX": "20",
    }
    db = Database(database_url, application_name="test", pool_size=3)
    made = Field(db, folder, environment)
    try:
        await made.until_ready()
        yield made
    finally:
        made.end()
        await db.aclose()


@pytest.mark.timeout(120 + 60 * ROUNDS)
async def test_an_effect_is_performed_at_most_once_whatever_happens_to_its_runner(
    field: Field,
) -> None:
    dice = random.Random(SEED)
    for number in range(ROUNDS):
        cases = [await field.start(f"{number}-{n}", **drawn(dice)) for n in range(RUNS)]
        await strike(field, dice)
        await field.until_ended(cases)
        await field.until_ready()  # what stood still has gone on, and may have acted late
        ended = await field.until_ended(cases)
        wrong = {case.run_id: case.wrong(ended[case.run_id]) for case in cases}
        assert not any(wrong.values()), f"seed {SEED}, round {number}: {wrong}"


def drawn(dice: random.Random) -> dict[str, Any]:
    """A run, and for some a fault at an exact place of its effect."""
    asked: dict[str, Any] = {
        "verify": dice.random() < 0.5,
        "fn": dice.choice(["async", "sync", "made"]),
        "pause_s": dice.choice([0, 0, 0.01, 0.1]),
        "returns": 1,
    }
    if dice.random() < 0.3:
        asked["order"] = f"{dice.choice([STOP, KILL])} {dice.choice(PLACES)}"
    return asked


async def strike(field: Field, dice: random.Random) -> None:
    """A fault at a random moment, beside those at exact places."""
    await asyncio.sleep(dice.uniform(0, 0.4))
    sign = dice.choice([None, signal.SIGKILL, signal.SIGSTOP])
    if sign is not None:
        dice.choice(field.runners).send(sign)


@pytest.mark.timeout(240)
async def test_a_runner_that_stood_still_after_its_intent_appends_nothing_when_it_goes_on(
    field: Field,
) -> None:
    """The place that the ledger's fence cannot see; its own clock stops it."""
    cases = [
        await field.start(name, order=f"{STOP} begun", verify=name == "verified", returns=1)
        for name in ("verified", "unverified")
    ]
    ended = await field.until_ended(cases)
    await field.until_ready()
    assert [case.wrong(ended[case.run_id]) for case in cases] == [None, None]
    assert len(cases[0].lines) == 1
