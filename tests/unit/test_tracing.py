"""Trace contexts are handed on with or without OpenTelemetry; spans say nothing that is secret."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from common import tracing
from common.errors import Misconfigured
from common.events import Event
from common.telemetry import _traced
from common.tracing import Tracing
from runner.spans import ToolSpans

PARENT = f"00-{'ab' * 16}-{'cd' * 8}-01"


@pytest.fixture
def exported() -> Iterator[SimpleNamespace]:
    """A tracing, and the spans that it has ended."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield SimpleNamespace(
        tracing=Tracing(provider.get_tracer("test")), spans=exporter.get_finished_spans
    )
    provider.shutdown()


def parent_of(span: ReadableSpan) -> str:
    assert span.parent is not None
    return f"{span.parent.span_id:016x}"


def test_without_a_tracer_the_context_is_handed_on_as_it_came() -> None:
    assert tracing.current() is None
    with Tracing().span("GET", parent=PARENT):
        with Tracing().span("inner"):
            assert tracing.current() == PARENT
        assert Tracing().begin("tool").end() is None  # type: ignore[func-returns-value]
    assert tracing.current() is None


def test_a_span_goes_on_with_the_trace_that_came(exported: SimpleNamespace) -> None:
    with exported.tracing.span("run", {"steadyrun.epoch": 2}, kind="consumer", parent=PARENT):
        handed_on = tracing.current()
        with exported.tracing.span("effect"):
            pass
        exported.tracing.begin("execute_tool x").end()
    effect, tool, run = exported.spans()
    assert handed_on == f"00-{'ab' * 16}-{run.context.span_id:016x}-01"
    assert parent_of(run) == "cd" * 8
    assert parent_of(effect) == parent_of(tool) == f"{run.context.span_id:016x}"
    assert run.attributes == {"steadyrun.epoch": 2}
    assert {f"{s.context.trace_id:032x}" for s in (effect, tool, run)} == {"ab" * 16}


def test_what_is_not_to_be_sampled_is_not_recorded(exported: SimpleNamespace) -> None:
    with exported.tracing.span("run", parent=PARENT[:-2] + "00"):
        assert tracing.current() is not None
        assert tracing.current() != PARENT
    assert exported.spans() == ()


def test_an_error_is_told_by_its_type_alone(exported: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="hush"), exported.tracing.span("effect"):
        raise ValueError("hush: password=secret")
    (span,) = exported.spans()
    assert span.attributes == {"error.type": "ValueError"}
    assert span.events == ()
    assert span.status.description is None
    assert not span.status.is_ok


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"00-{'0' * 32}-{'cd' * 8}-01",
        f"00-{'ab' * 16}-{'0' * 16}-01",
        f"ff-{'ab' * 16}-{'cd' * 8}-01",
        f"00-{'AB' * 16}-{'cd' * 8}-01",
        PARENT + "-more",
        PARENT + "\n",
        " " + PARENT,
    ],
)
def test_a_malformed_header_is_as_if_none_had_come(header: str) -> None:
    assert tracing.valid(header) is None


def test_a_well_formed_header_is_taken() -> None:
    assert tracing.valid(PARENT) == PARENT
    assert tracing.valid(None) is None


def test_log_lines_carry_the_trace_they_belong_to() -> None:
    assert _traced(None, "info", {"event": "x"}) == {"event": "x"}
    with Tracing().span("run", parent=PARENT):
        assert _traced(None, "info", {}) == {"trace_id": "ab" * 16}


def test_no_url_no_traces() -> None:
    assert not tracing.tracing(None, "runner").on


def test_a_url_without_the_extra_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(Misconfigured, match=r"install steadyrun\[otel\]"):
        tracing.tracing("http://127.0.0.1:4318/v1/traces", "runner")


@pytest.mark.parametrize(("given", "shown"), [("", "steadyrun-runner"), ("mine", "mine")])
def test_a_url_with_the_extra_records_under_a_name(
    monkeypatch: pytest.MonkeyPatch, given: str, shown: str
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", given)
    made = tracing.tracing("http://127.0.0.1:9/v1/traces", "runner")
    assert made.on
    span: Any = made.begin("x")._span
    assert span.resource.attributes["service.name"] == shown


def test_tools_are_spans_that_end_with_their_events_or_with_the_stream(
    exported: SimpleNamespace,
) -> None:
    spans = ToolSpans(exported.tracing)
    for call in ("a", "b", "c"):
        spans.feed(
            [Event("tool_started", {"callId": call, "tool": f"tool_{call}", "input": "hush"})]
        )
    spans.feed([Event("tool_finished", {"callId": "b", "tool": "tool_b", "status": "error"})])
    spans.feed([Event("tool_finished", {"callId": "a", "tool": "tool_a", "status": "success"})])
    spans.feed([Event("tool_finished", {"callId": "of a stream before", "status": "success"})])
    spans.close()
    found = {span.name: span for span in exported.spans()}
    assert list(found) == ["execute_tool tool_b", "execute_tool tool_a", "execute_tool tool_c"]
    assert not found["execute_tool tool_b"].status.is_ok
    assert all("hush" not in str(span.attributes) for span in found.values())
