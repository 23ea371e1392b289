"""The command line. Exit status: 0 done (also after SIGTERM or Ctrl-C), 1 failed, 2 unusable
arguments; an error is one line on standard error that names the cause and what to do."""

import os
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from typer import TyperException

from common.errors import SteadyrunError, Unusable
from deploy.arguments import address, writable
from deploy.arguments import user as somebody

LONGEST_S = 1_000_000_000  # some thirty years: beyond it clocks and timers fail
CTRL_C = 130  # what typer makes of KeyboardInterrupt

StateOption = Annotated[Path, typer.Option(help="The state folder of a running `up`.")]

cli = typer.Typer(
    name="steadyrun",
    help="Runs LangGraph agents in production: exact event streams that survive killed instances.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """The entry point."""
    status = status_of(lambda: cli(prog_name="steadyrun", standalone_mode=False))
    if sys.argv[1:2] == ["check"]:  # threads of what it has imported may never end
        from runner.ending import end_now

        end_now(status)
    sys.exit(status)


def status_of(command: Callable[[], object]) -> int:
    """The only place where errors become exit statuses. Ctrl-C ends a command early, and that is
    what was asked for: 0."""
    try:
        status = command()
    except TyperException as error:
        return _complain(error.format_message() + " (see --help)", error.exit_code)
    except Unusable as error:
        return _complain(f"{error} (see --help)", 2)
    except (SteadyrunError, OSError) as error:
        return _complain(str(error))
    return status if isinstance(status, int) and status != CTRL_C else 0


@cli.callback()
def begin(context: typer.Context) -> None:
    """Names what is misspelt in the environment; gateway and runner do so by themselves."""
    if context.invoked_subcommand in ("gateway", "runner") or "--help" in sys.argv:
        return
    from common.environment import unknown_variables

    for one in unknown_variables():
        print(f"steadyrun: {one} It is ignored.", file=sys.stderr)


@cli.command()
def up(
    gateways: Annotated[int, typer.Option(min=1, max=64, help="How many gateways.")] = 2,
    runners: Annotated[int, typer.Option(min=1, max=64, help="How many runners.")] = 2,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where to listen.")] = 8080,
    graphs: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            envvar="STEADYRUN_GRAPHS",
            help="A langgraph.json. Default: the sample.",
        ),
    ] = None,
    state: Annotated[
        Path, typer.Option(file_okay=False, help="Where data, logs and secrets are kept.")
    ] = Path(".steadyrun"),
    nginx: Annotated[
        bool, typer.Option("--nginx/--no-nginx", help="nginx in front of the gateways.")
    ] = True,
) -> None:
    """Run the whole system on this machine; Ctrl-C stops all of it.

    Postgres and Valkey are embedded unless DATABASE_URL or REDIS_URL is set.
    """
    from deploy.local import Choices, up

    choices = Choices(gateways, runners, port, graphs, state, nginx)
    up(choices, _say)


@cli.command()
def check() -> None:
    """Say whether gateways and runners can start with this environment: settings and graphs.

    Connects to nothing.
    """
    from deploy.check import check

    _say(check())


@cli.command()
def gateway() -> int:
    """Run one gateway, configured by the environment."""
    from gateway.__main__ import main

    return _serve(main)


@cli.command()
def runner() -> int:
    """Run one runner, configured by the environment."""
    from runner.__main__ import main

    return _serve(main)


@cli.command()
def migrate() -> None:
    """Bring the database of DATABASE_URL to this version; may be repeated."""
    from common.db.migrate import migrate

    migrate(_database_url())


@cli.command()
def token(
    user: Annotated[str, typer.Option(help="Whose token (claim `sub`).")],
    permission: Annotated[
        list[str] | None, typer.Option(help="A permission; may be given several times.")
    ] = None,
    ttl: Annotated[
        float, typer.Option(min=1, max=LONGEST_S, help="Seconds until it expires.")
    ] = 3600,
    state: StateOption = Path(".steadyrun"),
) -> None:
    """Print a JWT signed with STEADYRUN_JWT_SECRET, else with the secret of a running `up`."""
    from deploy.signing import sign, signing_secret

    print(sign(signing_secret(state), somebody(user), permission or [], ttl_s=ttl))


@cli.command()
def chat(
    text: Annotated[
        str | None, typer.Argument(help="What to ask. Without it the active run is joined.")
    ] = None,
    user: Annotated[str, typer.Option(help="Who asks.")] = "demo",
    conversation: Annotated[str | None, typer.Option(help="Go on in this conversation.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Approve whatever is asked.")] = False,
    url: Annotated[
        str | None, typer.Option(help="Default: STEADYRUN_URL or a running `up`.")
    ] = None,
    graph: Annotated[str | None, typer.Option(help="Which graph of the graph file.")] = None,
    state: StateOption = Path(".steadyrun"),
) -> int:
    """Talk to an agent: shows progress, asks for decisions, goes on after any disconnect.

    A token is taken from STEADYRUN_TOKEN, else signed with the secret of the running `up`.
    """
    from deploy.chat import chat

    if conversation is None and not (text or "").strip():
        raise Unusable("nothing to say: give a text, or a conversation to go on with")
    at = address(url) if url else None
    return chat(at, text, somebody(user), conversation, yes, state=state, graph=graph)


@cli.command()
def load(
    shapes: Annotated[
        list[str] | None, typer.Argument(help="Which shapes. Default: overhead watchers.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="A running system. Default: ones of its own.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="How many runs.")] = 20,
    subscribers: Annotated[int, typer.Option(min=1, help="How many streams on one run.")] = 200,
    events: Annotated[int, typer.Option(min=1, help="Events of a run.")] = 200,
    rate: Annotated[float, typer.Option(min=0.1, max=1e6, help="Its events a second.")] = 50.0,
    kind: Annotated[str, typer.Option(help="What its events are: tokens or custom.")] = "tokens",
    seconds: Annotated[
        float, typer.Option(min=1, max=LONGEST_S, help="How long streams are idle, or cut.")
    ] = 20.0,
    replicas: Annotated[
        str | None, typer.Option(help="Sizes, each measured on its own: 1,2,3 or 1+2,3+4.")
    ] = None,
    gateways: Annotated[int, typer.Option(min=1, help="Of a topology of its own.")] = 1,
    runners: Annotated[int, typer.Option(min=1, help="Of a topology of its own.")] = 1,
    json: Annotated[Path | None, typer.Option(help="Also write the figures there.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write a report there.")] = None,
    charts: Annotated[
        Path | None, typer.Option(file_okay=False, help="Also draw SVG charts into this folder.")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option(help="Measure nothing: compare two JSON reports.")
    ] = None,
    state: StateOption = Path(".steadyrun"),
    list_: Annotated[bool, typer.Option("--list", help="Show the shapes.")] = False,
) -> int:
    """Measure what runs and streams cost: a table, and a report as JSON, Markdown and SVG.

    Exit status 1 when something was lost or doubled.
    """
    from deploy.load import Choices, compared, listing, load, sizes
    from deploy.load.stage import Amount

    if list_:
        print(listing())
        return 0
    if compare is not None:
        return compared(*compare, _say)
    writable(json, "--json")
    writable(markdown, "--markdown")
    choices = Choices(
        shapes=tuple(shapes or ("overhead", "watchers")),
        amount=Amount(runs, subscribers, events, rate, kind, seconds),
        replicas=sizes(replicas or f"{gateways}+{runners}"),
        url=address(url) if url else None,
        state=state,
        json_file=json,
        markdown_file=markdown,
        charts=charts,
        command=f"steadyrun {shlex.join(sys.argv[1:])}",
    )
    return load(choices, _say)


@cli.command()
def drill(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which scenarios. Default: each once.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Repeats the faults and orders of an earlier drill.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=1, max=LONGEST_S, help="Repeat each scenario for so long.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of `mixed`.")] = 10,
    gateways: Annotated[int, typer.Option(min=1, max=16, help="How many gateways.")] = 2,
    runners: Annotated[int, typer.Option(min=1, max=16, help="How many runners.")] = 2,
    nginx: Annotated[
        bool, typer.Option("--nginx/--no-nginx", help="nginx in front of the gateways.")
    ] = True,
    state: Annotated[
        Path | None, typer.Option(file_okay=False, help="Keep data and logs there.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Also write what came of it there.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the scenarios.")] = False,
) -> int:
    """Kill things while clients watch and decide; says whether anything was lost or doubled.

    On a system of its own. Exit status 1 when an invariant was violated.
    """
    from deploy.drill import Choices, drill, listing, unknown

    if list_:
        print(listing())
        return 0
    if wrong := unknown(names or []):
        raise typer.BadParameter(f"no such scenario: {', '.join(wrong)}; --list shows them")
    writable(json, "--json")
    where = (gateways, runners, nginx)
    return drill(Choices(tuple(names or ()), seed, seconds, rounds, json, state, *where), _say)


def _serve(serve: Callable[[], object]) -> int:
    """uvicorn raises the signal again after a clean drain: that is success here."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    status = serve()
    return status if isinstance(status, int) else 0


def _say(line: str) -> None:
    """Who has read enough (`| head`) does not take the system down."""
    with suppress(OSError):
        print(line, flush=True)


def _database_url() -> str:
    """As gateways and runners take it."""
    for name in ("DATABASE_URL", "STEADYRUN_DATABASE_URL"):
        if url := os.environ.get(name):
            return url
    raise Unusable("DATABASE_URL is not set: say where the server is")


def _complain(cause: str, status: int = 1) -> int:
    print(f"steadyrun: {' '.join(cause.split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    main()
