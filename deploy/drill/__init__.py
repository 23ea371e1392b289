"""`steadyrun drill`: whether the invariants hold while instances die (contract §7).

On a topology of its own, always: what it does to servers is for nobody else's. Clients start runs,
watch, decide and cancel throughout; then everything they saw is compared with what Postgres says.
"""

import asyncio
import json
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

from deploy.drill import report as reports
from deploy.drill.performance import Outcome, perform
from deploy.drill.report import Report
from deploy.drill.scenarios import MIXED, SCENARIOS, Scenario, mixed_plan
from deploy.drill.topology import Site
from deploy.drill.truth import EFFECTS_VARIABLE
from deploy.own import Wanted, own_system

LEASE_TTL_S = 6.0  # the default; the figures mean something for it alone
_SEEDS = 1_000_000

Say = Callable[[str], object]


@dataclass(frozen=True)
class Choices:
    """The options of `drill`. No names: every scenario once. No state: a folder that goes with the
    drill, unless there is evidence in it."""

    names: tuple[str, ...] = ()
    seed: int | None = None
    seconds: float | None = None
    rounds: int = 10
    json_file: Path | None = None
    state: Path | None = None
    gateways: int = 2
    runners: int = 2
    nginx: bool = True


def drill(choices: Choices, say: Say) -> int:
    """Perform, say what came of it, write the JSON. 1 for any violation, else 0.

    Main thread only. SIGTERM and Ctrl-C end it early with what is known by then. Raises
    Misconfigured or DrillFailed when nothing can be said.
    """
    seed = secrets.randbelow(_SEEDS) if choices.seed is None else choices.seed
    report = Report(seed, _command(choices, seed), LEASE_TTL_S)
    with _sigterm_as_ctrl_c(), _folder(choices, report) as folder:
        try:
            _perform(choices, folder, report, say)
        except KeyboardInterrupt:
            report.is_whole = False
    say("\n" + reports.table(report))
    if choices.json_file:
        choices.json_file.write_text(json.dumps(reports.wire(report), indent=2) + "\n")
    return report.status


def unknown(names: Sequence[str]) -> list[str]:
    """Those that are no scenario."""
    return [name for name in names if name not in SCENARIOS]


def listing() -> str:
    """The scenarios, a line each."""
    return "\n".join(f"{s.name:<18}{s.does}" for s in SCENARIOS.values())


def _perform(choices: Choices, folder: Path, report: Report, say: Say) -> None:
    effects = folder / "effects"
    effects.mkdir(exist_ok=True)
    wanted = _wanted(choices, effects)
    say(f"starting {choices.gateways} gateways and {choices.runners} runners in {folder}")
    with own_system(folder, wanted) as system:
        site = Site(system, effects=effects, lease_ttl_s=LEASE_TTL_S)
        asyncio.run(_all(choices, site, report, say))


async def _all(choices: Choices, site: Site, report: Report, say: Say) -> None:
    for scenario in _chosen(choices):
        say(f"{scenario.name}: {scenario.does}")
        outcome = Outcome(scenario.name)
        report.outcomes.append(outcome)
        await perform(site, scenario, report.seed, outcome, say, choices.seconds)
        say(_outcome_line(outcome))


def _chosen(choices: Choices) -> list[Scenario]:
    chosen = [SCENARIOS[name] for name in choices.names or SCENARIOS]
    plan = mixed_plan(choices.rounds)
    return [replace(s, plan=plan) if s.name == MIXED else s for s in chosen]


def _outcome_line(outcome: Outcome) -> str:
    count = len(outcome.violations)
    return f"  {count} violations in {outcome.checks:,} checks, {outcome.seconds:.0f} s"


def _wanted(choices: Choices, effects: Path) -> Wanted:
    environment = {
        EFFECTS_VARIABLE: str(effects),
        "STEADYRUN_LEASE_TTL_S": str(LEASE_TTL_S),
        "STEADYRUN_RUNNER_CONCURRENCY": "64",  # who is left has room for the runs of who is not
        "STEADYRUN_ATTEMPTS_MAX": "1000",  # no run is to blame for what is done to its runners
        "STEADYRUN_STREAMS_PER_USER_MAX": "10000",
    }
    graphs = Path(str(files("runner"))) / "graphs" / "drill" / "langgraph.json"
    return Wanted(graphs, choices.gateways, choices.runners, choices.nginx, environment)


def _command(choices: Choices, seed: int) -> str:
    words = ["steadyrun drill", *choices.names, f"--seed {seed}"]
    if choices.seconds is not None:
        words.append(f"--seconds {choices.seconds:g}")
    defaults = Choices()
    for option in ("rounds", "gateways", "runners"):
        if (value := getattr(choices, option)) != getattr(defaults, option):
            words.append(f"--{option} {value}")
    return " ".join(words + ([] if choices.nginx else ["--no-nginx"]))


@contextmanager
def _folder(choices: Choices, report: Report) -> Iterator[Path]:
    """The one that was named, or a temporary one that is kept when there is evidence in it."""
    folder = choices.state or Path(tempfile.mkdtemp(prefix="steadyrun-drill-"))
    folder.mkdir(parents=True, exist_ok=True)
    is_kept = True  # an error leaves its logs
    try:
        yield folder.absolute()
        is_kept = choices.state is not None or bool(report.violations)
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """asyncio turns SIGINT into the cancellation of what it runs; SIGTERM shall do the same, also
    in the background of a script, where SIGINT comes in ignored."""
    handlers = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: lambda *_: os.kill(os.getpid(), signal.SIGINT),
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            with suppress(TypeError):  # it was not installed from Python
                signal.signal(number, handler)
