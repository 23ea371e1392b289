"""`steadyrun gateway`: one gateway process, configured by the environment."""

import sys

from common.environment import load, unknown_variables
from common.errors import Misconfigured, SteadyrunError, exit_status
from common.settings import GatewaySettings
from common.variables import Unknown


def main() -> int:
    """0 after SIGTERM or Ctrl-C; with one line on standard error 2 where a setting cannot be meant,
    1 when it cannot start."""
    try:
        unknown = unknown_variables()
        _run(load(GatewaySettings), unknown)
    except SteadyrunError as error:
        print(f"steadyrun gateway: {error}", file=sys.stderr)  # noqa: T201
        return exit_status(error)
    return 0


def _run(settings: GatewaySettings, unknown: list[Unknown]) -> None:
    """Imported late: wrong settings are told of at once."""
    import uvloop

    from common import telemetry
    from common.graphfile import parse
    from common.masking import Masker
    from common.tracing import tracing
    from gateway.app import create_app

    telemetry.configure(settings.log_level, Masker(settings.masking_patterns), process="gateway")
    telemetry.warn_of(unknown)
    graphs = parse(settings.graphs)
    graphs.apply_env()
    app = create_app(settings, graphs, tracing(settings.traces_url, "gateway"))
    app.state.gateway.metrics.unknown_settings.set(len(unknown))
    uvloop.run(_serve(app, settings))


async def _serve(app: object, settings: GatewaySettings) -> None:
    from common.starting import when_available
    from gateway.server import listen, server

    gateway, front = app.state.gateway, app.state.front  # type: ignore[attr-defined]
    await when_available(gateway.check, settings.start_patience_s)
    try:
        listener = listen(settings.gateway_host, settings.gateway_port)
    except OSError as error:
        where = f"{settings.gateway_host}:{settings.gateway_port}"
        raise Misconfigured(f"cannot listen on {where}: {error.strerror}") from error
    running = server(
        front,
        gateway.drain,
        settings.drain_window_s,
        receive_timeout_s=settings.receive_timeout_s,
    )
    await running.serve(sockets=[listener])


if __name__ == "__main__":
    sys.exit(main())
