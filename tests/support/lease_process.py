"""A runner reduced to its lease, as a process of its own: what tests kill, stop and block.

The first line on standard input is its settings (JSON), each further one an order:

    block   hold the event loop until SIGUSR1, as a graph's blocking call does
    fork    leave a child that shares all sockets and outlives us
    stop    release the lease and end

It says what happens as JSON lines on standard output: held, lost, ended; blocked, unblocked;
forked.
A lost lease makes it register again under a new id, as a runner does.
"""

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from common.db import runners
from common.db.engine import Database
from common.errors import Unavailable
from common.ids import RunnerId, new_id
from runner.lease import Lease
from tests.support.leases import until

FORKED_LIVES_S = 60


def say(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


async def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # in all threads to come
    orders = await standard_input()
    settings = json.loads(await orders.readline())
    obeying = asyncio.create_task(obey(orders))
    while not obeying.done():
        await live(settings, obeying)


async def live(settings: dict[str, Any], obeying: asyncio.Task[None]) -> None:
    """One life: from registration to the loss of the lease, or to the order to stop."""
    runner_id, slot = await register(settings["database_url"], settings["ttl_s"])
    lease = Lease(
        runner_id=runner_id,
        slot=slot,
        on_lost=lambda reason: say("lost", runner=runner_id, reason=reason),
        **settings,
    )
    lease.start()
    watching = asyncio.create_task(lease.watch())

    async def held_or_lost() -> bool:
        return lease.held or watching.done()

    await until(held_or_lost)
    say("held", runner=runner_id, slot=slot)
    await asyncio.wait({watching, obeying}, return_when=asyncio.FIRST_COMPLETED)
    await lease.stop()
    say("ended", runner=runner_id)


async def register(url: str, ttl_s: float) -> tuple[RunnerId, int]:
    runner_id = RunnerId(new_id("rnr"))
    application_name = runners.application_name(runner_id)
    database = Database(url, application_name=application_name, pool_size=1)
    while True:
        with suppress(Unavailable):
            async with database.connect() as connection:
                slot = await runners.register(
                    connection, id=runner_id, host="test", pid=os.getpid(), capacity=1, ttl_s=ttl_s
                )
                return runner_id, slot
        await asyncio.sleep(0.05)


async def obey(orders: asyncio.StreamReader) -> None:
    """Ends with the order to stop, or with the test."""
    while line := await orders.readline():
        match line.split():
            case [b"block"]:
                say("blocked")
                signal.sigwait({signal.SIGUSR1})
                say("unblocked")
            case [b"fork"]:
                fork()
            case [b"stop"]:
                return


def fork() -> None:
    child = os.fork()
    if child == 0:
        os.closerange(0, 3)  # whoever reads what we say must see the end
        time.sleep(FORKED_LIVES_S)
        os._exit(0)
    say("forked", pid=child)


async def standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return reader


if __name__ == "__main__":
    asyncio.run(main())
