"""A real runner as a child: what tests kill, stop and wedge.

`python -m tests.support.runner_process` is `steadyrun runner`; with STEADYRUN_TEST_BLIND=1 it never
notices that its lease is over, as if the local deadline and the renewal's answer were not there:
then the fences are alone.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.acceptance.conftest import GRAPHS
from tests.support.cluster import ROOT
from tests.support.until import until

STARTED = "runner_started"


@dataclass
class RunnerProcess:
    process: asyncio.subprocess.Process
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def signal(self, sign: signal.Signals) -> None:
        self.process.send_signal(sign)

    async def ended(self, within_s: float = 60.0) -> int:
        """Its exit status; below zero, the signal that killed it."""
        async with asyncio.timeout(within_s):
            return await self.process.wait()

    async def lives(self, count: int = 1) -> None:
        await until(lambda: self.said.count(STARTED) >= count, within_s=60)


@asynccontextmanager
async def runner_process(
    folder: Path, database_url: str, redis_url: str, redis_prefix: str, **settings: Any
) -> AsyncIterator[RunnerProcess]:
    """A runner that is ready; killed at the end, if it has not ended before."""
    given = {
        "graphs": GRAPHS,
        "redis_prefix": redis_prefix,
        "claim_poll_s": 0.1,
        "archive_interval_s": 0.1,
        **settings,
    }
    environment = {f"STEADYRUN_{name.upper()}": str(value) for name, value in given.items()}
    servers = {"DATABASE_URL": database_url, "REDIS_URL": redis_url, "PYTHONUNBUFFERED": "1"}
    log = folder / f"runner-{uuid4().hex}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.runner_process"),
            cwd=ROOT,
            env=os.environ | environment | servers,
            stdout=output,
            stderr=output,
        )
    child = RunnerProcess(process, log)
    try:
        await child.lives()
        yield child
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _be_blind() -> None:
    from common.db.lease import LeaseConnection
    from runner.lease import Term

    Term.is_over = property(lambda self: False)  # type: ignore[assignment,method-assign]
    Term.holds = property(lambda self: True)  # type: ignore[assignment,method-assign]
    LeaseConnection.renew = lambda self: True  # type: ignore[method-assign]


if __name__ == "__main__":
    from runner.__main__ import main

    if os.environ.get("STEADYRUN_TEST_BLIND") == "1":
        _be_blind()
    sys.exit(main())
