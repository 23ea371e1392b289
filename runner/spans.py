"""Spans of the tools that one stream of a graph calls, made from the events that tell of them.

A tool's span is a child of the take-up's and current nowhere: what the tool itself does outside is
seen by its own instrumentation, or as a guarded effect (runner/effects).
"""

from collections.abc import Iterable

from common.events import Event
from common.tracing import Recorded, Tracing


class ToolSpans:
    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._open: dict[str, Recorded] = {}

    def feed(self, events: Iterable[Event]) -> None:
        if not self._tracing.on:
            return
        for event in events:
            if event.type == "tool_started":
                self._begin(event.fields["callId"], event.fields["tool"])
            elif event.type == "tool_finished":
                self._end(event.fields["callId"], event.fields["status"])

    def _begin(self, call_id: str, tool: str) -> None:
        attributes = {"gen_ai.tool.name": tool, "gen_ai.operation.name": "execute_tool"}
        self._open[call_id] = self._tracing.begin(f"execute_tool {tool}", dict(attributes))

    def _end(self, call_id: str, status: str) -> None:
        if (span := self._open.pop(call_id, None)) is not None:
            if status == "error":
                span.failed("tool_error")
            span.end()

    def close(self) -> None:
        """What was begun and did not end was stopped."""
        for call_id in list(self._open):
            self._end(call_id, "stopped")
