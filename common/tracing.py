"""Traces from a request over its run's claims to its effects, when somebody wants them.

W3C trace context: a request's `traceparent`, or what its span makes of it, is stored with the run
and continued by every runner that takes the run up. That much is always done, so that log lines of
gateways and runners share a `trace_id` with whoever called. Spans are recorded and sent only where
STEADYRUN_TRACES_URL is set and `steadyrun[otel]` is installed; nothing of OpenTelemetry is imported
otherwise. Names and attributes are ids, names of the code and masked keys; an error is told by its
type alone (I9).
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal

from common.errors import Misconfigured

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

Kind = Literal["server", "internal", "consumer", "client"]
Attributes = dict[str, str | int]

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_SEND_S = 2.0  # nobody waits longer for a collector, also at the end of a process

_current: ContextVar[str | None] = ContextVar("traceparent", default=None)


def current() -> str | None:
    """What is to be handed on of the trace that this code runs in."""
    return _current.get()


def valid(header: str | None) -> str | None:
    """The header, if it is one of version 00 of the W3C's; a malformed one is as if none came."""
    return header if header is not None and _TRACEPARENT.fullmatch(header) else None


class Recorded:
    """A span that is under way, or nothing in its place."""

    def __init__(self, span: "Span | None" = None) -> None:
        self._span = span

    def rename(self, name: str, attributes: Attributes) -> None:
        """Once it is known what it was."""
        if self._span is not None:
            self._span.update_name(name)
            self._span.set_attributes(attributes)

    def failed(self, kind: str) -> None:
        if self._span is not None:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_attribute("error.type", kind)
            self._span.set_status(Status(StatusCode.ERROR))

    def end(self) -> None:
        if self._span is not None:
            self._span.end()


class Tracing:
    """Of one process; without a tracer contexts are handed on and nothing is recorded."""

    def __init__(self, tracer: "Tracer | None" = None) -> None:
        self._tracer = tracer

    @property
    def on(self) -> bool:
        return self._tracer is not None

    @contextmanager
    def span(
        self,
        name: str,
        attributes: Attributes | None = None,
        *,
        kind: Kind = "internal",
        parent: str | None = None,
    ) -> Iterator[Recorded]:
        """Around the block, and current in it; `parent` is a traceparent, else what is current."""
        if self._tracer is None:
            with _as_current(parent or current()):
                yield Recorded()
            return
        from opentelemetry.trace import use_span

        span = self._started(name, attributes, kind, parent)
        with _as_current(_written(span)), use_span(span, True, False, False):
            recorded = Recorded(span)
            try:
                yield recorded
            except BaseException as error:
                recorded.failed(type(error).__name__)
                raise

    def begin(self, name: str, attributes: Attributes | None = None) -> Recorded:
        """A child of what is current, current nowhere; whoever began it ends it."""
        if self._tracer is None:
            return Recorded()
        return Recorded(self._started(name, attributes, "internal", None))

    def _started(
        self, name: str, attributes: Attributes | None, kind: Kind, parent: str | None
    ) -> "Span":
        from opentelemetry.trace import SpanKind

        assert self._tracer is not None
        return self._tracer.start_span(
            name,
            context=_context(parent),
            kind=SpanKind[kind.upper()],
            attributes=attributes or {},
        )


def tracing(url: str | None, process: str) -> Tracing:
    """For a composition root. Raises Misconfigured when the extra is missing."""
    if url is None:
        return Tracing()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise Misconfigured(
            "STEADYRUN_TRACES_URL is set and OpenTelemetry is not there: install steadyrun[otel]"
        ) from error
    name = os.environ.get("OTEL_SERVICE_NAME") or f"steadyrun-{process}"
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}))
    exporter = OTLPSpanExporter(endpoint=url, timeout=_SEND_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider.get_tracer("steadyrun"))


@contextmanager
def _as_current(traceparent: str | None) -> Iterator[None]:
    token = _current.set(traceparent)
    try:
        yield
    finally:
        _current.reset(token)


def _written(span: "Span") -> str:
    found = span.get_span_context()
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{int(found.trace_flags):02x}"


def _context(parent: str | None) -> "Context | None":
    """None: what is current."""
    if parent is None:
        return None
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    _, trace_id, span_id, flags = parent.split("-")
    context = SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16))
    )
    return set_span_in_context(NonRecordingSpan(context))
