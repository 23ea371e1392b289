"""`steadyrun gateway`: one gateway process, configured by the environment."""

import sys

from common.errors import Misconfigured, SteadyrunError
from common.settings import GatewaySettings, load


def main() -> int:
    """0 after SIGTERM or Ctrl-C, 1 with one line on standard error when it cannot start."""
    try:
        settings = load(GatewaySettings)
        _run(settings)
    except SteadyrunError as error:
        print(f"steadyrun gateway: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _run(settings: GatewaySettings) -> None:
    """Imported late: wrong settings are told of at once."""
    import uvloop

    from common import telemetry
    from common.graphfile import parse
    from common.masking import Masker
    from common.tracing import tracing
    from gateway.app import create_app

    telemetry.configure(settings.log_level, Masker(settings.masking_patterns), process="gateway")
    graphs = parse(settings.graphs)
    graphs.apply_env()
    app = create_app(settings, graphs, tracing(settings.traces_url, "gateway"))
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
    await server(front, gateway.drain, settings.drain_window_s).serve(sockets=[listener])


if __name__ == "__main__":
    sys.exit(main())
