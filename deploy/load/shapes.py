"""The shapes of load; each gives the figures that `metrics` names for it.

CPU is that of the system's own processes. Latencies are taken on the one clock of this machine, so
they mean nothing for an address elsewhere with another clock.
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from statistics import median

from common.errors import Refused
from deploy.client import Run
from deploy.load.client import LoadFailed, Order
from deploy.load.machine import spent
from deploy.load.measures import overhead
from deploy.load.stage import Figures, Stage, percentiles_ms, share, total
from deploy.load.tap import Counter, Numbers, Tap

Shape = Callable[[Stage], Awaitable[Figures]]

_APART_FACTOR = 20  # events and rate of the run whose cost elsewhere is looked for
_CUT_EVERY_S = 1.0
_IDLE_RUNS = 10
_BUSY_SHARE = 10  # one stream of so many is busy
_KILL_AFTER_S = 1.5


async def watchers(stage: Stage) -> Figures:
    """Attach all streams to a run that waits, weigh them, let it talk, count what arrives."""
    amount = stage.amount
    run = await stage.client.hold(Order("custom", amount.events, amount.rate, hold=True))
    before = stage.machine.resident_bytes("gateway")
    taps = await stage.client.follow_many([run["id"]] * amount.subscribers)
    await stage.settle()
    weight = stage.machine.resident_bytes("gateway") - before
    start = stage.machine.cpu_s()
    await stage.client.release(run)
    said = await _ended(stage, run, taps)
    cpu_s = spent(start, stage.machine.cpu_s())
    had = run["lastSequence"] * len(taps)
    delivered = sum(tap.counter.events for tap in taps) - had
    p50, p99 = percentiles_ms(_latencies(taps))
    return {
        "delivered_share": share(delivered, said * len(taps) - had),
        "events_per_cpu_s": delivered / max(total(cpu_s, ["gateway"]), 0.001),
        "latency_p50_ms": p50,
        "latency_p99_ms": p99,
        "stream_kib": weight / len(taps) / 1024,
        "apart_us_per_event": await _apart(stage),
    }


async def _apart(stage: Stage) -> float:
    """What a run costs the gateways that do not follow it, beyond what they do anyway; nan without
    such gateways. Measured on a fast run, since the kernel counts in hundredths of a second."""
    first, *others = stage.topology().of("gateway")
    if not others or first.url is None:
        return float("nan")
    amount = stage.amount
    order = Order("custom", amount.events * _APART_FACTOR, amount.rate * _APART_FACTOR, hold=True)
    names = [process.name for process in others]
    run = await stage.client.hold(order)
    tap = await stage.client.follow(run["id"], address=first.url)
    await tap.has_begun()
    await stage.settle()
    start, began = stage.machine.cpu_of(names), time.monotonic()
    await stage.client.release(run)
    said = await _ended(stage, run, [tap])
    busy, lasted_s = stage.machine.cpu_of(names) - start, time.monotonic() - began
    start = stage.machine.cpu_of(names)
    await asyncio.sleep(lasted_s)
    idle = stage.machine.cpu_of(names) - start
    return max(0.0, busy - idle) / said / len(others) * 1e6


async def runs(stage: Stage) -> Figures:
    """All are begun at once; each has the stream of its POST."""
    amount = stage.amount
    order = Order(amount.kind, amount.events, amount.rate)
    start, began = stage.machine.cpu_s(), time.monotonic()
    taps = await stage.client.runs(order, amount.runs, at_once=amount.runs)
    lasted_s, cpu_s = time.monotonic() - began, spent(start, stage.machine.cpu_s())
    counters = [tap.counter for tap in taps]
    delivered = sum(counter.events for counter in counters)
    said = sum([(await stage.client.any.run(tap.run_id))["lastSequence"] for tap in taps])
    first50, first99 = percentiles_ms(c.first_s for c in counters if c.first_s is not None)
    p50, p99 = percentiles_ms(_latencies(taps))
    return {
        "delivered_share": share(delivered, said),
        "runs_per_s": len(counters) / lasted_s,
        "first_event_p50_ms": first50,
        "first_event_p99_ms": first99,
        "latency_p50_ms": p50,
        "latency_p99_ms": p99,
        "events_per_cpu_s": delivered / max(total(cpu_s, ["gateway", "runner"]), 0.001),
        "cpu_ms_per_run": total(cpu_s) / len(counters) * 1000,
    }


async def reconnects(stage: Stage) -> Figures:
    """Every stream is cut at once each second and comes back, on the next gateway, where it was."""
    amount = stage.amount
    events = max(1, round(amount.rate * amount.seconds))
    run = await stage.client.hold(Order("custom", events, amount.rate, hold=True))
    held = [_Held(stage, run["id"]) for _ in range(amount.subscribers)]
    await asyncio.gather(*(one.attach() for one in held))
    await stage.client.release(run)
    start, times = stage.machine.cpu_s(), list[float]()
    while not all(one.has_ended for one in held):
        await asyncio.sleep(_CUT_EVERY_S)
        times += await asyncio.gather(*(one.attach() for one in held if one.cut()))
    cpu_s = spent(start, stage.machine.cpu_s())
    said = (await stage.client.any.run(run["id"]))["lastSequence"]
    p50, p99 = percentiles_ms(times)
    return {
        "lost": sum(one.numbers.lost + said - one.numbers.last for one in held),
        "doubled": sum(one.numbers.doubled for one in held),
        "back_p50_ms": p50,
        "back_p99_ms": p99,
        "gateway_us_per_reconnect": total(cpu_s, ["gateway"]) / max(len(times), 1) * 1e6,
    }


class _Held:
    """One stream over many connections; it goes on after the last event that it has had whole."""

    def __init__(self, stage: Stage, run_id: str) -> None:
        self._stage, self._run_id = stage, run_id
        self.numbers = Numbers()
        self._tap: Tap | None = None
        self.has_ended = False

    async def attach(self) -> float:
        """Seconds until the answer has begun."""
        began = time.perf_counter()
        counter, after = Counter(numbers=self.numbers), self.numbers.last
        tap = await self._stage.client.follow(self._run_id, after=after, counter=counter)
        await tap.has_begun()
        if tap.status not in (200, 204):
            raise LoadFailed(f"a stream that came back was answered {tap.status}")
        self._tap, self.has_ended = tap, tap.status == 204
        return time.perf_counter() - began

    def cut(self) -> bool:
        """False: there is nothing to cut, it has been read to its end."""
        if self._tap is None or self.has_ended:
            return False
        if self._tap.ended.done() and self._tap.ended.result():
            self.has_ended = True
            return False
        self._tap.cut()
        self.numbers.cut()
        self._tap = None
        return True


async def approvals(stage: Stage) -> Figures:
    """All questions are decided at once, each by two clicks with keys of their own."""
    order = Order("custom", 10, 0.0, hold=True)
    gate = asyncio.Semaphore(16)

    async def held() -> Run:
        async with gate:
            return await stage.client.hold(order)

    waiting = await asyncio.gather(*(held() for _ in range(stage.amount.runs)))
    taps = await stage.client.follow_many([run["id"] for run in waiting])
    start = stage.machine.cpu_s()
    decided = await asyncio.gather(*(_decide(stage, run) for run in waiting))
    ended = await asyncio.gather(*(tap.ended for tap in taps))
    if not all(ended):
        raise LoadFailed("a stream broke while its run was decided")
    cpu_s = spent(start, stage.machine.cpu_s())
    done = [tap.ended_at - began for tap, (began, _, _) in zip(taps, decided, strict=True)]
    answer50, answer99 = percentiles_ms(answered for _, answered, _ in decided)
    done50, done99 = percentiles_ms(done)
    return {
        "accepted": sum(accepted for *_, accepted in decided) / len(decided),
        "answer_p50_ms": answer50,
        "answer_p99_ms": answer99,
        "done_p50_ms": done50,
        "done_p99_ms": done99,
        "cpu_ms_per_approval": total(cpu_s) / len(decided) * 1000,
    }


async def _decide(stage: Stage, run: Run) -> tuple[float, float, int]:
    """When the clicks were made, how long the accepted one took, how many were accepted."""
    (question,) = run["pendingInterrupts"]

    async def click() -> float | None:
        began = time.perf_counter()
        try:
            await stage.client.any.resume(run["id"], question["id"], "approve")
        except Refused as refusal:
            if refusal.code != "INTERRUPT_NOT_PENDING":
                raise
            return None
        return time.perf_counter() - began

    began = time.monotonic()
    took = [s for s in await asyncio.gather(click(), click()) if s is not None]
    return began, max(took, default=float("nan")), len(took)


async def idle(stage: Stage) -> Figures:
    """Streams on runs that wait, and some on one that talks for as long."""
    amount, client = stage.amount, stage.client
    waiting = [await client.hold(Order("custom", 1, hold=True)) for _ in range(_IDLE_RUNS)]
    events = max(1, round(amount.rate * amount.seconds))
    talking = await client.hold(Order("custom", events, amount.rate, hold=True))
    before = stage.machine.resident_bytes("gateway")
    ids = [waiting[n % _IDLE_RUNS]["id"] for n in range(amount.subscribers)]
    quiet = await client.follow_many(ids)
    busy = await client.follow_many([talking["id"]] * max(1, amount.subscribers // _BUSY_SHARE))
    await stage.settle()
    full = stage.machine.resident_bytes("gateway")
    start, began = stage.machine.cpu_s(), time.monotonic()
    await client.release(talking)
    said = await _ended(stage, talking, busy)
    cpu_s, lasted_s = spent(start, stage.machine.cpu_s()), time.monotonic() - began
    growth = stage.machine.resident_bytes("gateway") - full
    broken = sum(tap.ended.done() for tap in quiet)
    await asyncio.gather(*(client.any.cancel(run["id"]) for run in waiting))
    await asyncio.gather(*(tap.ended for tap in quiet))
    return {
        "stream_kib": (full - before) / (len(quiet) + len(busy)) / 1024,
        "growth_kib": growth / 1024,
        "cut": broken,
        "gateway_cpu_share": share(total(cpu_s, ["gateway"]), lasted_s),
        "delivered_share": share(sum(tap.counter.events for tap in busy), said * len(busy)),
    }


async def kills(stage: Stage) -> Figures:
    """kill -9 of the first runner while all runs stream; `up` starts it again."""
    amount = stage.amount
    order = Order("tokens", max(amount.events, round(amount.rate * 6)), amount.rate)
    counters = [Counter(arrivals=[]) for _ in range(amount.runs)]
    streams = [asyncio.create_task(stage.client.run(order, counter)) for counter in counters]
    await asyncio.gather(*(counter.began.wait() for counter in counters))
    await asyncio.sleep(_KILL_AFTER_S)
    killed_at = time.monotonic()
    os.kill(stage.topology().of("runner")[0].pid, signal.SIGKILL)
    ended = await asyncio.gather(*streams, return_exceptions=True)
    hit = [counter for counter in counters if counter.taken_up_again]
    gaps = sorted(_longest_gap(counter.arrivals or [], killed_at) for counter in hit)
    return {
        "gap_p50_ms": median(gaps) * 1000 if gaps else float("nan"),
        "gap_max_ms": gaps[-1] * 1000 if gaps else float("nan"),
        "runs_hit": len(hit),
        "unfinished": sum(isinstance(one, BaseException) for one in ended),
    }


def _longest_gap(arrivals: Sequence[float], since: float) -> float:
    """Between two arrivals, counted from `since` on."""
    return max((b - max(a, since) for a, b in pairwise(arrivals) if b > since), default=0.0)


async def _ended(stage: Stage, run: Run, taps: Sequence[Tap]) -> int:
    """The last sequence of the run once every stream has come to its end."""
    if not all(await asyncio.gather(*(tap.ended for tap in taps))):
        raise LoadFailed(f"a stream of {run['id']} broke")
    return (await stage.client.any.run(run["id"]))["lastSequence"]


def _latencies(taps: Sequence[Tap]) -> list[float]:
    return [seconds for tap in taps for seconds in tap.counter.latencies_s]


SHAPES: Mapping[str, Shape] = {
    "overhead": overhead,
    "watchers": watchers,
    "runs": runs,
    "reconnects": reconnects,
    "approvals": approvals,
    "idle": idle,
    "kills": kills,
}
