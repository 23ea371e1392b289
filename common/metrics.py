"""Prometheus metrics of one process: `steadyrun_<process>_<what>_<unit>`, counters end in `_total`.

A registry belongs to a composition root, never to a module. No label carries a user, a run, a
conversation or a path with ids (I9), so the number of series is bounded by the code (I8). Every
metric is described where it is made; `deploy/docs/metrics.md` is written from that.
"""

from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

PREFIX = "steadyrun"
FAST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Buckets for what should take milliseconds."""


@dataclass(frozen=True, slots=True)
class Described:
    """One metric as the page of metrics shows it."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...]


class Meters:
    """Makes metrics in a registry of its own; memory and CPU of the process are in it as well."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.described: list[Described] = []
        ProcessCollector(registry=self.registry)

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(
            self._named(name, "counter", text, labels), text, labels, registry=self.registry
        )

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(self._named(name, "gauge", text, labels), text, labels, registry=self.registry)

    def histogram(
        self, name: str, text: str, buckets: tuple[float, ...] = FAST_S, *labels: str
    ) -> Histogram:
        named = self._named(name, "histogram", text, labels)
        return Histogram(named, text, labels, buckets=buckets, registry=self.registry)

    def _named(self, name: str, kind: str, text: str, labels: tuple[str, ...]) -> str:
        self.described.append(Described(f"{PREFIX}_{name}", kind, text, labels))
        return f"{PREFIX}_{name}"
