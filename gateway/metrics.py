"""Prometheus metrics of one gateway; the registry belongs to the app, not to the module.

No label carries a user, a run or a path with ids (I9): routes are labelled by their template.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """Every metric has the prefix `gateway_`; times are seconds."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._streams()
        self._following()
        self._requests()

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def _streams(self) -> None:
        self.streams_open = self._gauge("streams_open", "open event streams")
        self.stream_s = self._histogram("stream_seconds", "life of a stream", (*_FAST, 60, 600))
        self.join_s = self._histogram("join_seconds", "from request to the first event sent", _FAST)
        self.writes = self._counter("stream_writes_total", "writes with events in them")
        self.events_sent = self._counter("events_sent_total", "events sent")
        self.bytes_sent = self._counter("bytes_sent_total", "bytes of events sent")
        self.resumes = self._counter("resume_total", "streams and pages asked for", "outcome")
        self.ends = self._counter("stream_ends_total", "why streams ended", "reason")
        self.slow = self._counter("slow_disconnects_total", "clients that took nothing for long")
        self.drained = self._counter("drain_aborts_total", "streams aborted by a drain")
        self.rejected = self._counter("rejected_total", "streams refused at the door", "reason")

    def _following(self) -> None:
        self.topics = self._gauge("topics", "runs that are followed")
        self.ring_bytes = self._gauge("ring_bytes", "bytes of live frames kept")
        self.fills = self._counter("fill_total", "reads of the log", "source")
        self.distrusts = self._counter("distrust_total", "rings thrown away", "reason")
        self.gaps = self._counter("gap_events_total", "live batches that did not follow")
        self.duplicates = self._counter("duplicates_dropped_total", "live batches already known")
        self.checks = self._counter("position_checks_total", "queries for all followed runs")
        self.reconnects = self._gauge("pubsub_reconnects_total", "pub/sub connections made anew")
        self.healthy = self._gauge("pubsub_healthy", "1 while the pub/sub probe comes back")

    def _requests(self) -> None:
        self.request_s = self._histogram(
            "request_seconds", "requests other than streams", _FAST, "method", "route", "status"
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"gateway_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"gateway_{name}", text, registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(f"gateway_{name}", text, labels, buckets=buckets, registry=self.registry)
