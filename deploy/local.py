"""`steadyrun up`: the whole system on one machine (contract §7).

Servers, migrations, gateways and runners, nginx, in this order; stopped the other way round.
Killing this process leaves nothing running, and nothing that was acknowledged is lost.
"""

import hashlib
import os
import resource
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from common.errors import Misconfigured
from common.graphfile import GraphFile, parse
from deploy.check import settings_of_up
from deploy.child import Child
from deploy.embedded import PostgresServer, RedisServer
from deploy.nginx import NginxServer
from deploy.probe import LogWord, is_answering
from deploy.process import Command
from deploy.signals import Signals
from deploy.state import LOOPBACK, StateFolder, is_port_free
from deploy.supervisor import ChildFailed, Stopped, Supervisor
from deploy.topology import Process, Topology

OPEN_FILES_MAX = 262_144
# -P: a module beside the caller's files must not stand in for one of ours
PROGRAM = (sys.executable, "-P", "-m", "deploy.cli")
WELCOME = "Steadyrun runs at"  # said once, when all children are ready
RUNNER_STARTED = '"runner_started"'  # its log line once the graphs are loaded and it is registered
QUIET_LEVELS = ("warning", "error")  # where that line is not written, a runner that
# of gateways and runners, for servers that are started beside them and for those of others
START_PATIENCE_S, FOREIGN_PATIENCE_S = 60.0, 5.0
RUNNER_PROBATION_S = 20.0  # ends so early is taken for one that could not load its graphs


@dataclass(frozen=True)
class Choices:
    """The options of `up`."""

    gateways: int = 2
    runners: int = 2
    port: int = 8080
    graphs: Path | None = None  # None: the sample agent
    state: Path = Path(".steadyrun")
    nginx: bool = True


def up(choices: Choices, say: Callable[[str], object], program: Sequence[str] = PROGRAM) -> None:
    """Run until SIGINT or SIGTERM. Raises Misconfigured or ChildFailed when it cannot be run.

    `program` is what the verbs check, migrate, gateway and runner are given to.
    """
    settings_of_up(choices.runners)
    with Signals.watched() as signals, StateFolder.open(choices.state) as state:
        _allow_many_open_files()
        system = System(choices, state, program)
        supervisor = Supervisor(signals, on_change=system.note, say=say)
        try:
            with suppress(Stopped):
                say(system.announcement())
                system.start(supervisor)
                say(system.welcome())
                supervisor.watch()
            say("stopping; once more to do it by force")
        finally:
            supervisor.stop()
            state.topology.unlink(missing_ok=True)


class System:
    """The children that choices and environment ask for, and the topology they make."""

    def __init__(self, choices: Choices, state: StateFolder, program: Sequence[str]) -> None:
        self._choices = choices
        self._state = state
        self._program = program
        self._graphs = _graphs(choices.graphs)
        self._runners = choices.runners
        self._ports = [state.port(f"gateway-{n + 1}") for n in range(choices.gateways)]
        self._nginx = self._front(choices)
        self._postgres = None if _given("DATABASE_URL") else PostgresServer(state)
        self._redis = None if _given("REDIS_URL") else RedisServer(state)
        self.topology = Topology(
            url=f"http://{LOOPBACK}:{choices.port}",
            database_url=self._postgres.url if self._postgres else _given("DATABASE_URL"),
            redis_url=self._redis.url if self._redis else _given("REDIS_URL"),
            jwt_secret=_given("JWT_SECRET") or state.memory.jwt_secret,
        )

    def announcement(self) -> str:
        """Said before the wait; the first start also makes a database."""
        choices = self._choices
        named = [
            *(["Postgres"] if self._postgres else []),
            *(["Valkey"] if self._redis else []),
            f"gateways ({choices.gateways})",
            f"runners ({choices.runners})",
            *(["nginx"] if self._nginx else []),
        ]
        given = [name for name in ("DATABASE_URL", "REDIS_URL") if _given(name)]
        return f"starting {', '.join(named)}" + (f", on {' and '.join(given)}" if given else "")

    def welcome(self) -> str:
        """Said once, when all is ready."""
        url, sample = self.topology.url, self._choices.graphs is None
        text = "Look at the recent errors of payment-api" if sample else "Hello"
        lines = [
            f"{WELCOME} {url}",
            f"  console     {url}/",
            f'  ask it      {_chat(self._state)} "{text}"',
            *([] if sample else [f"  graphs      {', '.join(self._graphs.graphs)}"]),
            f"  processes   {self._state.topology}",
            f"  logs        {self._state.logs}",
            "  stop        Ctrl-C",
        ]
        return "\n".join(lines)

    def start(self, supervisor: Supervisor) -> None:
        """In order; raises what `Supervisor.start` raises."""
        self._check(supervisor)
        servers = [server.child() for server in (self._redis, self._postgres) if server]
        ours = [*self._gateways(), *self._runner_children()]
        wanted = schema_fingerprint()
        if self._postgres and self._postgres.label == wanted:
            supervisor.start([*servers, *ours])  # ours wait for the servers while they load
        else:
            supervisor.start(servers)
            self._migrate(supervisor, wanted)
            supervisor.start(ours)
        if self._nginx:
            supervisor.start([self._nginx.child()])

    def _check(self, supervisor: Supervisor) -> None:
        """No server is started for what cannot run. It is a child that imports the graphs."""
        try:
            supervisor.run_once("check", self._command("check", "check"))
        except ChildFailed as error:
            said = error.last_words.removeprefix("steadyrun: ")
            raise Misconfigured(said or str(error)) from error

    def _migrate(self, supervisor: Supervisor, label: str) -> None:
        supervisor.run_once("migrate", self._command("migrate", "migrate"))
        if self._postgres:
            self._postgres.put_label(label)

    def note(self, processes: Sequence[Process]) -> None:
        self.topology = replace(self.topology, processes=processes)
        self.topology.write(self._state.topology)

    def _front(self, choices: Choices) -> NginxServer | None:
        """nginx on the chosen port, or the first gateway there."""
        nginx = None
        if choices.nginx:
            addresses = [f"{LOOPBACK}:{port}" for port in self._ports]
            nginx = NginxServer(self._state, port=choices.port, gateways=addresses)
            nginx.stop_leftovers()
        else:
            self._ports[0] = choices.port
        if not is_port_free(choices.port):
            low = choices.port < 1024 and os.geteuid() != 0
            cause = "needs the rights of root" if low else "is taken"
            raise Misconfigured(f"port {choices.port} {cause}: name another by --port")
        return nginx

    def _gateways(self) -> list[Child]:
        return [self._gateway(f"gateway-{n}", port) for n, port in enumerate(self._ports, start=1)]

    def _gateway(self, name: str, port: int) -> Child:
        url = f"http://{LOOPBACK}:{port}"
        return Child(
            name=name,
            role="gateway",
            command=self._command(
                name,
                "gateway",
                STEADYRUN_GATEWAY_HOST=LOOPBACK,
                STEADYRUN_GATEWAY_PORT=str(port),
            ),
            url=url,
            is_ready=lambda pid: is_answering(f"{url}/readyz"),
            patience_s=_patience_s("DRAIN_WINDOW_S", 5.0) + _seconds("DRAIN_DELAY_S", 0.0),
        )

    def _runner_children(self) -> list[Child]:
        return [self._runner(f"runner-{n + 1}") for n in range(self._runners)]

    def _runner(self, name: str) -> Child:
        started = LogWord(self._state.log(name), RUNNER_STARTED)
        is_quiet = _given("LOG_LEVEL") in QUIET_LEVELS
        return Child(
            name=name,
            role="runner",
            command=self._command(name, "runner"),
            prepare=started.begin,
            is_ready=lambda pid: is_quiet or started.has_come(),
            patience_s=_patience_s("DRAIN_TIMEOUT_S", 8.0),
            probation_s=RUNNER_PROBATION_S if is_quiet else 0.0,
        )

    def _command(self, name: str, verb: str, **more: str) -> Command:
        return Command(
            argv=[*self._program, verb],
            log=self._state.log(name),
            env=self._environment() | more,
        )

    def _environment(self) -> dict[str, str]:
        """The caller's, less what libpq would take from it for a server of ours."""
        kept = {k: v for k, v in os.environ.items() if not (self._postgres and k.startswith("PG"))}
        ours = {
            "DATABASE_URL": self.topology.database_url,
            "REDIS_URL": self.topology.redis_url,
            "STEADYRUN_JWT_SECRET": self.topology.jwt_secret,
            "STEADYRUN_GRAPHS": str(self._graphs.path),
            "STEADYRUN_DEMO": _given("DEMO") or self._demo(),
            "PYTHONUNBUFFERED": "1",
            "STEADYRUN_START_PATIENCE_S": _given("START_PATIENCE_S")
            or str(START_PATIENCE_S if self._postgres and self._redis else FOREIGN_PATIENCE_S),
        }
        return kept | ours

    def _demo(self) -> str:
        return "0" if _given("JWT_SECRET") or _given("JWKS_URL") else "1"


def _given(name: str) -> str:
    """A setting of the caller's environment, "" when unset."""
    return os.environ.get(f"STEADYRUN_{name}") or (
        os.environ.get(name, "") if name in ("DATABASE_URL", "REDIS_URL") else ""
    )


def schema_fingerprint() -> str:
    """Changes with every migration of ours and every version of LangGraph's tables."""
    scripts = sorted((Path(str(files("common"))) / "db" / "migrations").rglob("*.py"))
    digest = hashlib.sha256(version("langgraph-checkpoint-postgres").encode())
    for script in scripts:
        digest.update(script.read_bytes())
    return digest.hexdigest()


def _patience_s(setting: str, default_s: float) -> float:
    """Some seconds more than a process may take to drain."""
    return _seconds(setting, default_s) + 7.0


def _seconds(setting: str, default_s: float) -> float:
    try:
        return float(_given(setting) or default_s)
    except ValueError:  # the process itself will complain about it
        return default_s


def _graphs(chosen: Path | None) -> GraphFile:
    sample = Path(str(files("runner"))) / "graphs" / "opspilot" / "langgraph.json"
    path = (chosen or sample).absolute()
    if not path.is_file():
        raise Misconfigured(f"there is no graph file {path}: name one by --graphs")
    return parse(path)


def _allow_many_open_files() -> None:
    """A stream takes two files in nginx and one in a gateway; children inherit the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _chat(state: StateFolder) -> str:
    """The command as it can be typed here."""
    program = "steadyrun" if shutil.which("steadyrun") else ".venv/bin/steadyrun"
    place = "" if state.path == Path(".steadyrun").absolute() else f" --state {state.path}"
    return f"{program} chat{place}"
