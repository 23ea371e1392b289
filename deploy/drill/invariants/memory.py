"""I8: gateways and runners do not grow with what has passed through them."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from deploy.drill.record import Weight
from deploy.drill.verdict import Verdict

WARM_UP_S = 3.0
START_UP_S = 30.0
"""A process that was started in between loads its code meanwhile, slowly on a busy machine."""
SPAN_MIN_S = 4.0
SAMPLES_MIN = 8
GROWTH_BYTES_MAX = 64 << 20
RESIDENT_BYTES_MAX = 512 << 20


def memory_bounded(weights: Sequence[Weight]) -> Verdict:
    """Of each process that was weighed long enough: what lived for a few seconds says nothing."""
    verdict = Verdict("I8", "Memory stays bounded")
    processes: dict[tuple[str, int], list[Weight]] = defaultdict(list)
    for weight in weights:
        processes[weight.process, weight.pid].append(weight)
    for (name, pid), found in processes.items():
        warm_at = _warm_at(found[0].at, weights[0].at)
        settled = [weight for weight in found if weight.at >= warm_at]
        if len(settled) >= SAMPLES_MIN and settled[-1].at - settled[0].at >= SPAN_MIN_S:
            _process(verdict, f"{name} (pid {pid})", [w.resident_bytes for w in settled])
    return verdict


def _warm_at(first_at: float, began_at: float) -> float:
    """Clients begin when the system is up, so what is there at the beginning has started."""
    was_there = first_at - began_at < 1.0
    return first_at + (WARM_UP_S if was_there else START_UP_S)


def _process(verdict: Verdict, name: str, resident: Sequence[int]) -> None:
    third = len(resident) // 3
    growth = int(median(resident[-third:]) - median(resident[:third]))
    verdict.check(growth <= GROWTH_BYTES_MAX, f"{name}: grew by {growth >> 20} MiB")
    most = max(resident)
    verdict.check(most <= RESIDENT_BYTES_MAX, f"{name}: {most >> 20} MiB")
