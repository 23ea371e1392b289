"""The faults: what is done to which child, by its pid or through its own admin commands.

Whatever is stopped is continued, also when the drill is interrupted: `stopped` sees to it.
"""

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from common.bus import faults as redis_faults
from common.db import faults as postgres_faults
from common.errors import Unavailable
from deploy.drill.topology import Site
from deploy.process import family
from deploy.topology import Role


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault of a plan. Times in seconds: after the round's begin, and how long it lasts."""

    fault: str
    target: str
    after_s: float = 0.0
    lasts_s: float = 0.0

    def __str__(self) -> str:
        lasts = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        return f"{self.fault}({self.target}){lasts}"


Act = Callable[[Site, Strike], Awaitable[bool]]
"""Does it; False when there was nothing to do it to (a child that is just dead)."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`spans`: between which lengths a duration is drawn, one span as likely as another."""

    role: Role
    does: str
    act: Act
    spans: tuple[tuple[float, float], ...] = ()


async def strike(site: Site, planned: Strike) -> bool:
    """Do it now. A server that is away already cannot be asked to do something: False."""
    with suppress(Unavailable):
        return await FAULTS[planned.fault].act(site, planned)
    return False


# --- by pid


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """SIGSTOP for the length of the block; SIGCONT however it ends."""
    try:
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in reversed(pids):
            _signal(pid, signal.SIGCONT)


def _ending(number: signal.Signals) -> Act:
    """A signal after which somebody else has to take the place of the target."""

    async def act(site: Site, planned: Strike) -> bool:
        process = site.find(planned.target)
        if process is None or not _signal(process.pid, number):
            return False
        site.doom(process.pid)
        return True

    return act


async def _reload(site: Site, planned: Strike) -> bool:
    process = site.find(planned.target)
    return process is not None and _signal(process.pid, signal.SIGHUP)


async def _pause(site: Site, planned: Strike) -> bool:
    """All of its processes: a postmaster that stands still does not stop its backends. Itself
    first, so that it starts no further one while they are counted."""
    process = site.find(planned.target)
    if process is None:
        return False
    with stopped([process.pid]), stopped(family(process.pid)):
        await asyncio.sleep(planned.lasts_s)
    return True


async def _kill_emptied(site: Site, planned: Strike) -> bool:
    """It comes back without a key; stopped first, so that it cannot write its files anew."""
    process = site.find(planned.target)
    if process is None:
        return False
    site.doom(process.pid)
    with stopped([process.pid]):
        shutil.rmtree(site.system.folder / "redis" / "appendonlydir", ignore_errors=True)
        return _signal(process.pid, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


# --- through the server itself


async def _flush(site: Site, planned: Strike) -> bool:
    async with site.redis() as bus:
        await redis_faults.flush(bus)
    return True


async def _pause_clients(site: Site, planned: Strike) -> bool:
    async with site.redis() as bus:
        await redis_faults.pause(bus, planned.lasts_s)
    await asyncio.sleep(planned.lasts_s)
    return True


async def _cut_subscribers(site: Site, planned: Strike) -> bool:
    async with site.redis() as bus:
        return await redis_faults.cut_subscribers(bus) > 0


async def _cut_clients(site: Site, planned: Strike) -> bool:
    async with site.redis() as bus:
        return await redis_faults.cut_clients(bus) > 0


async def _cut_sessions(site: Site, planned: Strike) -> bool:
    async with site.postgres() as connection:
        return await postgres_faults.cut_sessions(connection) > 0


_KILL = _ending(signal.SIGKILL)
_STOP = _ending(signal.SIGTERM)
_FAST = _ending(signal.SIGINT)  # Postgres' fast shutdown
_BEYOND_A_LEASE = (6.5, 8.5)  # of the default lease of 6 s, which the drill leaves as it is

FAULTS: Mapping[str, Fault] = {
    "runner-kill": Fault("runner", "kill -9 of a runner", _KILL),
    "runner-pause": Fault(
        "runner", "SIGSTOP of a runner, SIGCONT later", _pause, ((0.2, 3.0), _BEYOND_A_LEASE)
    ),
    "runner-stop": Fault("runner", "SIGTERM to a runner", _STOP),
    "gateway-kill": Fault("gateway", "kill -9 of a gateway", _KILL),
    "gateway-pause": Fault("gateway", "SIGSTOP of a gateway, SIGCONT later", _pause, ((0.2, 4.0),)),
    "gateway-stop": Fault("gateway", "SIGTERM to a gateway", _STOP),
    "nginx-kill": Fault("nginx", "kill -9 of nginx", _KILL),
    "nginx-reload": Fault("nginx", "SIGHUP to nginx", _reload),
    "redis-flush": Fault("redis", "FLUSHALL", _flush),
    "redis-kill": Fault("redis", "kill -9 of Valkey", _KILL),
    "redis-empty": Fault("redis", "kill -9 of Valkey, back without a key", _kill_emptied),
    "redis-pause": Fault("redis", "SIGSTOP of Valkey, SIGCONT later", _pause, ((0.2, 4.0),)),
    "redis-silence": Fault("redis", "CLIENT PAUSE ALL", _pause_clients, ((0.2, 4.0),)),
    "redis-stop": Fault("redis", "SIGTERM to Valkey", _STOP),
    "pubsub-cut": Fault("redis", "all pub/sub connections cut", _cut_subscribers),
    "redis-cut": Fault("redis", "all connections to Valkey cut", _cut_clients),
    "postgres-restart": Fault("postgres", "fast shutdown of Postgres", _FAST),
    "postgres-kill": Fault("postgres", "kill -9 of the postmaster", _KILL),
    "postgres-pause": Fault("postgres", "Postgres stands still", _pause, ((2.0, 4.0), (4.0, 10.0))),
    "postgres-cut": Fault("postgres", "all sessions of Postgres ended", _cut_sessions),
}
