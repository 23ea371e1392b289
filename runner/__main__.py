"""`steadyrun runner`: one runner process, configured by the environment."""

import asyncio
import signal
import sys

import uvloop

from common import telemetry
from common.errors import SteadyrunError
from common.masking import Masker
from common.settings import RunnerSettings, load
from runner.app import serve


def main() -> int:
    """0 after SIGTERM or Ctrl-C, 1 with one line on standard error when it cannot start."""
    try:
        settings = load(RunnerSettings)
        telemetry.configure(settings.log_level, Masker(settings.masking_patterns), process="runner")
        uvloop.run(_serve_until_signalled(settings))
    except SteadyrunError as error:
        print(f"steadyrun runner: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


async def _serve_until_signalled(settings: RunnerSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve(settings, stop)


if __name__ == "__main__":
    sys.exit(main())
