"""Prometheus metrics of one runner, over all its lives, and the port that shows them.

A runner speaks no HTTP to clients; `served` answers scrapes from a thread of its own, so that they
are answered while a graph blocks the loop. Counters rise once a batch, claim or outcome, never once
an event; what is only looked at is computed when it is asked for.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, get_args

from prometheus_client import start_http_server

from common.errors import Misconfigured
from common.metrics import FAST_S, Meters
from common.runs import FailureCode, ResumeReason

OUTCOMES: Final = (
    *("completed", "failed", "cancelled", "interrupted", "paused", "handed_over"),
    *("lost", "left", "crashed"),
)
_LONG_S = (0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600)


class Metrics(Meters):
    """Made once, by the process."""

    def __init__(self) -> None:
        super().__init__()
        self._runs()
        self._lease()
        self._log()
        self._begin_at_zero()

    def _runs(self) -> None:
        self.claims = self.counter(
            "runner_claims_total", "runs taken up; `failover` is a takeover", "reason"
        )
        self.queue_s = self.histogram("runner_queue_seconds", "from queued to claimed", _LONG_S)
        self.executing = self.gauge("runner_executing", "runs that are executed now")
        self.places = self.gauge("runner_places", "runs that can be executed at once")
        self.outcomes = self.counter(
            "runner_outcomes_total",
            "how take-ups ended; `lost`: another runner has the run, `left`: Postgres was away",
            "outcome",
        )
        self.failures = self.counter(
            "runner_failures_total", "runs that failed, by the code of their error", "code"
        )
        self.execution_s = self.histogram(
            "runner_execution_seconds", "from claim to outcome of a take-up", _LONG_S
        )
        self.effects = self.counter(
            "runner_effects_total",
            "guarded effects: performed, known from an earlier execution, found done, told, asked",
            "outcome",
        )
        self.unknown_settings = self.gauge(
            "runner_unknown_settings",
            "variables of the environment that this version does not know",
        )
        self.leftovers = self.gauge(
            "runner_leftovers", "ended runs whose code goes on in this process"
        )

    def _begin_at_zero(self) -> None:
        """Else Prometheus does not see the first one: a series that begins at 1 has not risen."""
        for reason in ("start", *get_args(ResumeReason)):
            self.claims.labels(reason)
        for outcome in OUTCOMES:
            self.outcomes.labels(outcome)
        for code in get_args(FailureCode):
            self.failures.labels(code)
        for effect in ("performed", "known", "verified", "told", "asked"):
            self.effects.labels(effect)

    def claimed(self, reason: ResumeReason | None, waited: timedelta) -> None:
        self.claims.labels(reason or "start").inc()
        self.queue_s.observe(max(0.0, waited.total_seconds()))

    def _lease(self) -> None:
        self.leases_lost = self.counter(
            "runner_leases_lost_total", "leases that this process lost for good"
        )
        self.dead_found = self.counter(
            "runner_dead_found_total", "runners that this one has called dead"
        )
        self.handed_back = self.counter(
            "runner_handed_back_total", "runs that this one took off dead or stuck runners"
        )
        self.cancellations = self.counter(
            "runner_cancellations_finished_total", "cancellations that somebody left half done"
        )

    def _log(self) -> None:
        self.append_s = self.histogram(
            "runner_append_seconds", "one trip of all runs' batches to Redis", FAST_S
        )
        self.batches = self.counter("runner_batches_sent_total", "batches that Redis has taken")
        self.events = self.counter("runner_events_sent_total", "numbered events in them")
        self.lag_s = self.gauge(
            "runner_publisher_lag_seconds", "for how long something has waited to be sent"
        )
        self.archive_s = self.histogram(
            "runner_archive_seconds", "one statement that archives all runs' batches", FAST_S
        )
        self.archive_behind_s = self.gauge(
            "runner_archive_behind_seconds", "since the archive last had all that was numbered"
        )
        self.held_bytes = self.gauge(
            "runner_held_bytes", "frames in memory that Redis or the archive lacks"
        )
        self.redis_up = self.gauge("runner_redis_up", "1 while Redis takes what is appended")
        self.pubsub = self.gauge("runner_pubsub_healthy", "1 while the pub/sub probe comes back")


class Since:
    """How long something has lasted, for a gauge that is asked from another thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._from: float | None = None

    def begin(self) -> None:
        """Nothing, if it lasts already."""
        if self._from is None:
            self._from = self._clock()

    def end(self) -> None:
        self._from = None

    @property
    def seconds(self) -> float:
        began_at = self._from
        return 0.0 if began_at is None else self._clock() - began_at


@contextmanager
def served(metrics: Metrics, host: str, port: int | None) -> Iterator[None]:
    """On `port`, if there is one, until the block ends. Raises Misconfigured when it is taken."""
    if port is None:
        yield
        return
    try:
        server, thread = start_http_server(port, addr=host, registry=metrics.registry)
    except OSError as error:
        raise Misconfigured(f"STEADYRUN_METRICS_PORT: {host}:{port}: {error.strerror}") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
