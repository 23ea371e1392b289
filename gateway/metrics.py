"""Prometheus metrics of one gateway.

Routes are labelled by their template, never by a path (I9). What Postgres says of all runs is the
same on every gateway: a board takes the largest.
"""

from common.metrics import FAST_S, Meters


class Metrics(Meters):
    """Made once, by the app."""

    def __init__(self) -> None:
        super().__init__()
        self._streams()
        self._following()
        self._requests()
        self._fleet()

    def _streams(self) -> None:
        lives = (*FAST_S, 60, 600)
        self.streams_open = self.gauge("gateway_streams_open", "open event streams")
        self.stream_s = self.histogram("gateway_stream_seconds", "life of a stream", lives)
        self.join_s = self.histogram(
            "gateway_join_seconds", "from a stream's request to its first event sent"
        )
        self.writes = self.counter("gateway_stream_writes_total", "writes with events in them")
        self.events_sent = self.counter("gateway_events_sent_total", "events delivered")
        self.bytes_sent = self.counter("gateway_bytes_sent_total", "bytes of events delivered")
        self.resumes = self.counter(
            "gateway_resumes_total",
            "streams and pages asked for: from the start or resumed",
            "outcome",
        )
        self.ends = self.counter("gateway_stream_ends_total", "why streams ended", "reason")
        self.slow = self.counter(
            "gateway_slow_disconnects_total", "clients that took nothing for long and were aborted"
        )
        self.drained = self.counter("gateway_drain_aborts_total", "streams aborted by a drain")
        self.limited = self.counter(
            "gateway_rate_limited_total", "requests refused by a user's limits", "limit"
        )
        self.rejected = self.counter(
            "gateway_streams_rejected_total", "streams refused at the door", "reason"
        )
        for reason in ("gateway", "user"):  # else the first refusals are no rise, and no alert
            self.rejected.labels(reason)

    def _following(self) -> None:
        self.topics = self.gauge("gateway_topics", "runs that are followed")
        self.ring_bytes = self.gauge("gateway_ring_bytes", "bytes of live frames kept")
        self.fills = self.counter(
            "gateway_fills_total", "reads of a log where the live frames do not reach", "source"
        )
        self.distrusts = self.counter("gateway_distrusts_total", "rings thrown away", "reason")
        self.gaps = self.counter("gateway_gaps_total", "live batches that did not follow")
        self.duplicates = self.counter(
            "gateway_duplicates_dropped_total", "live batches already known"
        )
        self.checks = self.counter(
            "gateway_position_checks_total", "looks at Postgres for all followed runs"
        )
        self.reconnects = self.counter(
            "gateway_pubsub_reconnects_total", "pub/sub connections made anew"
        )
        self.healthy = self.gauge("gateway_pubsub_healthy", "1 while the pub/sub probe comes back")

    def _requests(self) -> None:
        self.request_s = self.histogram(
            "gateway_request_seconds",
            "requests other than streams",
            FAST_S,
            *("method", "route", "status"),
        )
        self.unknown_settings = self.gauge(
            "gateway_unknown_settings",
            "variables of the environment that this version does not know",
        )
        self.server_up = self.gauge(
            "gateway_server_up", "1 while the server answers this gateway", "server"
        )

    def _fleet(self) -> None:
        self.runs = self.gauge("runs", "runs that have not ended and wait behind none", "status")
        self.runs_overdue = self.gauge(
            "runs_overdue", "running runs that are past their time limit and not taken off"
        )
        self.queue_s = self.gauge("queue_oldest_seconds", "age of the oldest queued run, 0 if none")
        self.pending = self.gauge("interrupts_pending", "questions that wait for a person")
        self.pending_s = self.gauge(
            "interrupts_oldest_pending_seconds", "age of the oldest of them, 0 if none"
        )
        self.runners = self.gauge("runners", "runners with a lease", "state")
        self.places = self.gauge("places", "runs that the living runners can execute at once")
