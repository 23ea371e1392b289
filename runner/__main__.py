"""`steadyrun runner`: one runner process, configured by the environment."""

import asyncio
import gc
import signal
import sys
from contextlib import suppress
from typing import Final

import uvloop

from common import telemetry
from common.environment import load, unknown_variables
from common.errors import SteadyrunError, exit_status
from common.masking import Masker
from common.settings import RunnerSettings
from common.tracing import Tracing, tracing
from runner.app import serve
from runner.ending import BEAT_INTERVAL_S, LoopWatch, end_within
from runner.metrics import Metrics
from runner.worker import HAND_OVER_LIMIT_S

EXIT_LIMIT_S: Final = 2.0
# beyond what a drain takes: a step boundary, the hand-over, Postgres that does not answer
DRAIN_SLACK_S: Final = 10.0
STALL_SLACK_S: Final = 3.0
# Python looks for garbage after 700 new objects by default. A big state that is read makes millions
# at once, without letting go of the interpreter: the lease's thread stands still for that time,
# and several times as long when all of them are looked at again and again.
GARBAGE_AFTER: Final = 20_000
# Few objects may hold much, as a cycle around a state does: young ones are looked at by time, too.
TIDY_INTERVAL_S: Final = 1.0


def main() -> int:
    """0 after SIGTERM or Ctrl-C; with one line on standard error 2 where a setting cannot be meant,
    1 when it cannot start, or when user code in it does not end."""
    try:
        gc.set_threshold(GARBAGE_AFTER)
        unknown = unknown_variables()
        settings = load(RunnerSettings)
        telemetry.configure(settings.log_level, Masker(settings.masking_patterns), process="runner")
        telemetry.warn_of(unknown)
        metrics = Metrics()
        metrics.unknown_settings.set(len(unknown))
        traced = tracing(settings.traces_url, "runner")
        return uvloop.run(_serve_until_signalled(settings, metrics, traced))
    except SteadyrunError as error:
        return _failed(str(error), exit_status(error))


async def _serve_until_signalled(
    settings: RunnerSettings, metrics: Metrics, traced: Tracing
) -> int:
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def drain() -> None:
        """The first signal asks for it, each further one hurries it."""
        if stop.is_set():
            hurry.set()
        stop.set()
        end_within(2 * settings.drain_timeout_s + HAND_OVER_LIMIT_S + DRAIN_SLACK_S, 1)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, drain)
    beating = asyncio.create_task(_beat(settings))
    tidying = asyncio.create_task(tidy())
    status = 1
    try:
        stuck = await serve(settings, stop, metrics, traced, hurry)
        status = 0 if stuck is None else _failed(f"code of run {stuck} does not end; it ends here")
    finally:
        beating.cancel()
        tidying.cancel()
        end_within(EXIT_LIMIT_S, status)
    return status


async def _beat(settings: RunnerSettings) -> None:
    """The lease is over before the watch ends the process."""
    watch = LoopWatch(settings.loop_stall_max_s + settings.lease_ttl_s + STALL_SLACK_S)
    watch.start()
    with suppress(asyncio.CancelledError):
        while True:
            watch.beat()
            await asyncio.sleep(BEAT_INTERVAL_S)


async def tidy(interval_s: float = TIDY_INTERVAL_S) -> None:
    """Ends by cancellation. It looks at no more than some ten times GARBAGE_AFTER objects."""
    while True:
        await asyncio.sleep(interval_s)
        gc.collect(1)


def _failed(message: str, status: int = 1) -> int:
    print(f"steadyrun runner: {message}", file=sys.stderr)  # noqa: T201
    return status


if __name__ == "__main__":
    sys.exit(main())
