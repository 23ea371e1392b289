"""The scenarios: each a plan of rounds, drawn from a seed alone.

A round is some strikes at once; between two rounds the system may heal while the clients go on.
Plans are pure: the same seed on as many gateways and runners gives the same plan.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from deploy.drill.faults import FAULTS, Strike
from deploy.drill.topology import Targets

Round = tuple[Strike, ...]
Plan = Callable[[random.Random, Targets], list[Round]]

MIXED = "mixed"
STRIKES_MAX = 3
APART_MAX_S = 1.5  # between the first and the last strike of a mixed round
_SPREAD_S = 0.4  # everything at once, as people mean it

# how often a fault is drawn for a mixed round
WEIGHTS = {
    **dict.fromkeys(FAULTS, 2),
    **{"runner-kill": 6, "runner-pause": 4, "runner-stop": 3, "gateway-kill": 3, "pubsub-cut": 3},
    **{"nginx-kill": 1, "nginx-reload": 1, "postgres-pause": 1},
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """`runs`: how many are kept going, with so many `watchers` each. `calm`: its gaps are held
    against a promise, which does not count the first lease after a start of Postgres."""

    name: str
    does: str
    plan: Plan
    runs: int = 6
    watchers: int = 4
    calm: bool = False


def drawn(rng: random.Random, fault: str, targets: Targets, *, after_s: float = 0.0) -> Strike:
    """A strike on some child of the fault's role, for some time of its spans."""
    chosen = FAULTS[fault]
    target = rng.choice(targets[chosen.role])
    lasts_s = round(rng.uniform(*rng.choice(chosen.spans)), 2) if chosen.spans else 0.0
    return Strike(fault, target, round(after_s, 2), lasts_s)


def mixed_round(rng: random.Random, targets: Targets) -> Round:
    """One to three faults on random children, overlapping as it comes."""
    possible = [name for name in WEIGHTS if targets[FAULTS[name].role]]
    weights = [WEIGHTS[name] for name in possible]
    names = rng.choices(possible, weights, k=rng.randint(1, STRIKES_MAX))
    afters = [0.0, *(rng.uniform(0.0, APART_MAX_S) for _ in names[1:])]
    return tuple(
        drawn(rng, name, targets, after_s=after_s)
        for name, after_s in zip(names, afters, strict=True)
    )


def mixed_plan(rounds: int) -> Plan:
    return lambda rng, targets: [mixed_round(rng, targets) for _ in range(rounds)]


def _each(*faults: str, lasts_s: float | None = None) -> Plan:
    """A round for each fault whose role is there; of a duration that a person can check, where
    one is given."""

    def plan(rng: random.Random, targets: Targets) -> list[Round]:
        strikes = [drawn(rng, fault, targets) for fault in faults if targets[FAULTS[fault].role]]
        return [(s if lasts_s is None else _lasting(s, lasts_s),) for s in strikes]

    return plan


def _lasting(strike: Strike, lasts_s: float) -> Strike:
    return Strike(strike.fault, strike.target, strike.after_s, lasts_s)


def _rolling(rng: random.Random, targets: Targets) -> list[Round]:
    """One after the other, each when the one before it is back."""
    order = [("gateway-stop", "gateway"), ("runner-stop", "runner"), ("nginx-reload", "nginx")]
    servers = [("redis-stop", "redis"), ("postgres-restart", "postgres")]
    return [
        (Strike(fault, name),)
        for fault, role in order + servers
        for name in targets[FAULTS[fault].role]
        if FAULTS[fault].role == role
    ]


def _everything(rng: random.Random, targets: Targets) -> list[Round]:
    faults = ["postgres-restart", "redis-empty", "runner-kill", "gateway-kill", "nginx-kill"]
    present = [fault for fault in faults if targets[FAULTS[fault].role]]
    return [
        tuple(drawn(rng, f, targets, after_s=rng.uniform(0.0, _SPREAD_S)) for f in present),
    ]


def _listed(*scenarios: Scenario) -> dict[str, Scenario]:
    return {scenario.name: scenario for scenario in scenarios}


SCENARIOS = _listed(
    Scenario(
        "runner-kill",
        "kill -9 of a runner with about 20 streaming runs",
        _each("runner-kill"),
        runs=40,
        watchers=1,
        calm=True,
    ),
    Scenario(
        "runner-pause",
        "a runner stands still past its lease and comes back (SIGSTOP, SIGCONT)",
        _each("runner-pause", lasts_s=8.0),
        runs=20,
        watchers=1,
        calm=True,
    ),
    Scenario("gateway-kill", "kill -9 of a gateway", _each("gateway-kill")),
    Scenario("gateway-pause", "a gateway stands still for 4 s", _each("gateway-pause", lasts_s=4)),
    Scenario("nginx-kill", "nginx is reloaded, then killed", _each("nginx-reload", "nginx-kill")),
    Scenario("redis-flush", "FLUSHALL in the middle of streams", _each("redis-flush")),
    Scenario("redis-kill", "kill -9 of Valkey", _each("redis-kill")),
    Scenario("redis-empty", "kill -9 of Valkey, which comes back empty", _each("redis-empty")),
    Scenario(
        "redis-pause",
        "Valkey stands still, then answers nobody (SIGSTOP, CLIENT PAUSE), 3 s each",
        _each("redis-pause", "redis-silence", lasts_s=3),
    ),
    Scenario("pubsub-cut", "all pub/sub connections are cut", _each("pubsub-cut")),
    Scenario("redis-cut", "all connections to Valkey are cut", _each("redis-cut")),
    Scenario("postgres-restart", "a fast restart of Postgres", _each("postgres-restart")),
    Scenario("postgres-kill", "kill -9 of the postmaster", _each("postgres-kill")),
    Scenario("postgres-pause", "Postgres stands still for 5 s", _each("postgres-pause", lasts_s=5)),
    Scenario("postgres-cut", "all sessions of Postgres are ended", _each("postgres-cut")),
    Scenario("rolling-restart", "everything is restarted in turn, servers too", _rolling),
    Scenario("everything", "a runner, a gateway, nginx and both servers at once", _everything),
    Scenario(MIXED, "rounds of one to three random faults (--rounds)", mixed_plan(10)),
)
