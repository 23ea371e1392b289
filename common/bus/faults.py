"""What can be done to a Redis to see whether anybody minds. For drills on a server of their own:
nothing in the product calls this."""

from common.bus.client import Bus


async def flush(bus: Bus) -> None:
    """Every key is gone, as after a failover to an empty replica."""
    await bus.call("FLUSHALL")


async def pause(bus: Bus, duration_s: float) -> None:
    """The server takes connections and answers nobody for so long, as while it forks or swaps."""
    await bus.call("CLIENT", "PAUSE", round(duration_s * 1000), "ALL")


async def cut_subscribers(bus: Bus) -> int:
    """Ends every pub/sub connection; returns how many there were. Commands go on being answered."""
    return int(await bus.call("CLIENT", "KILL", "TYPE", "pubsub"))


async def cut_clients(bus: Bus) -> int:
    """Ends every connection but this one; returns how many there were."""
    ended = await bus.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    return int(ended) + await cut_subscribers(bus)
