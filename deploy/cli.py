"""The command line. Exit status: 0 done (also after SIGTERM or Ctrl-C), 1 failed, 2 unusable
arguments; an error is one line on standard error that names the cause and what to do."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from typer import TyperException

from common.errors import Misconfigured, SteadyrunError

CTRL_C = 130  # what typer makes of KeyboardInterrupt

cli = typer.Typer(
    name="steadyrun",
    help="Runs LangGraph agents in production: exact event streams that survive killed instances.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """The entry point."""
    sys.exit(status_of(lambda: cli(prog_name="steadyrun", standalone_mode=False)))


def status_of(command: Callable[[], object]) -> int:
    """The only place where errors become exit statuses. Ctrl-C ends a command early, and that is
    what was asked for: 0."""
    try:
        status = command()
    except TyperException as error:
        return _complain(error.format_message() + " (see --help)", error.exit_code)
    except (SteadyrunError, OSError) as error:
        return _complain(str(error))
    return status if isinstance(status, int) and status != CTRL_C else 0


@cli.command()
def up(
    gateways: Annotated[int, typer.Option(min=1, max=64, help="How many gateways.")] = 2,
    runners: Annotated[int, typer.Option(min=1, max=64, help="How many runners.")] = 2,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where to listen.")] = 8080,
    graphs: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="A langgraph.json. Default: the sample."),
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
    up(choices, lambda line: print(line, flush=True))


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

    migrate(_required("DATABASE_URL"))


@cli.command()
def token(
    user: Annotated[str, typer.Option(help="Whose token (claim `sub`).")],
    permission: Annotated[
        list[str] | None, typer.Option(help="A permission; may be given several times.")
    ] = None,
    ttl: Annotated[float, typer.Option(min=1, help="Seconds until it expires.")] = 3600,
    state: Annotated[
        Path, typer.Option(help="Whose secret to take when STEADYRUN_JWT_SECRET is unset.")
    ] = Path(".steadyrun"),
) -> None:
    """Print a JWT signed with the configured secret, or with that of a running `up`."""
    from deploy.signing import sign, signing_secret

    print(sign(signing_secret(state), user, permission or [], ttl_s=ttl))


def _serve(serve: Callable[[], object]) -> int:
    """uvicorn raises the signal again after a clean drain: that is success here."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    status = serve()
    return status if isinstance(status, int) else 0


def _required(name: str) -> str:
    if value := os.environ.get(name):
        return value
    raise Misconfigured(f"{name} is not set: say where the server is")


def _complain(cause: str, status: int = 1) -> int:
    print(f"steadyrun: {' '.join(cause.split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    main()
