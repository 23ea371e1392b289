"""Executes the graph: its chunks become events on their way out (`runner/translate`)."""

from collections.abc import AsyncGenerator
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import RunControl

from common.db.runs import ClaimedRun
from common.errors import LeaseLost
from common.events import Event
from common.page import Page
from runner.asking import Asking
from runner.durable import Durable
from runner.facts import Facts
from runner.gate import Gate
from runner.graphstate import GraphState
from runner.inputs import described
from runner.kit import Kit
from runner.outlet import Outlet
from runner.spans import ToolSpans
from runner.steps import Steps
from runner.translate import Translator

_STREAM_MODES: Any = ["messages", "tasks", "tools", "custom"]  # "tools" is not in the literal


class Streaming:
    """Of one take-up; `outlet` is set before anything is streamed."""

    def __init__(
        self,
        kit: Kit,
        run: ClaimedRun,
        state: GraphState,
        *,
        page: Page,
        gate: Gate,
        facts: Facts,
        asking: Asking,
    ) -> None:
        self.outlet: Outlet | None = None
        self._kit, self._run, self._state = kit, run, state
        self._page, self._gate, self._facts, self._asking = page, gate, facts, asking
        self._control = RunControl()
        self._spans = ToolSpans(kit.tracing)
        self._context: Any = None
        self._translator: Translator | None = None

    def drain(self) -> None:
        """Leave at the next step boundary; `stream` then raises GraphDrained."""
        self._control.request_drain()

    async def make_context(self) -> None:
        """Built anew at every take-up, never stored (contract §8)."""
        run = self._run
        self._context = await self._kit.registry.context(run.graph, described(run), run.principal)

    def announce(self, state: Durable, answers: dict[str, Any]) -> None:
        """A further stream in this take-up: unfinished steps are shown again from their start."""
        reason = "decision" if answers else "continue"
        fields = {"reason": reason, "discard": state.discard(self._page)}
        self._tell([Event("run_resumed", fields)])

    async def stream(self, given: Any, state: Durable) -> None:
        """Until the graph has come to its end, waits, or fails. Raises LeaseLost when muted."""
        outlet = self._open_outlet
        steps = Steps()  # a step that is executed again begins to count anew
        self._translator = translator = self._new_translator(state, steps)
        self._gate.open(steps, outlet)
        config = self._state.config(steps, self._facts.open(steps).tools)
        self._asking.open(steps)
        chunks = self._chunks(given, config)
        try:
            async for chunk in chunks:
                self._check_heard(outlet)
                self._tell(translator.feed(chunk))
                self._gate.note(chunk)
                self._asking.note(chunk)
                await outlet.room()
        finally:
            self._gate.close()
            if not outlet.is_mute:
                self._close(translator)
            await chunks.aclose()  # left in its middle, else in a task that nobody waits for

    def mute(self) -> None:
        """What was begun is closed in the graph's stead; nothing that it still says is heard."""
        if self.outlet is not None:
            if self._translator is not None:
                self._close(self._translator)
            self.outlet.mute()

    @property
    def _open_outlet(self) -> Outlet:
        assert self.outlet is not None  # opened before anything is executed
        self._check_heard(self.outlet)
        return self.outlet

    def _check_heard(self, outlet: Outlet) -> None:
        if outlet.is_mute:
            raise LeaseLost(self._run.id, self._run.epoch)

    def _tell(self, events: list[Event]) -> None:
        outlet = self.outlet
        if outlet is not None and not outlet.is_mute:
            self._page.apply(events)
            self._spans.feed(events)
            outlet.emit(events)

    def _close(self, translator: Translator) -> None:
        self._translator = None
        self._tell(translator.close(waits=self._asking.is_over))
        self._spans.close()

    def _new_translator(self, state: Durable, steps: Steps) -> Translator:
        settings = self._kit.settings
        return Translator(
            run_id=self._run.id,
            mask=self._kit.masker,
            finished=state.finished_steps,
            shown=self._page.steps,
            steps=self._kit.registry.spec(self._run.graph).steps,
            seen=state.message_ids,
            standing=self._page.standing,
            callback=steps,
            tool_bytes_max=settings.tool_payload_bytes_max,
            custom_bytes_max=settings.custom_payload_bytes_max,
        )

    def _chunks(self, given: Any, config: RunnableConfig) -> AsyncGenerator[Any, None]:
        run, graph = self._run, self._state.graph
        assert graph is not None
        stream: Any = graph.astream(
            given,
            config,
            context=self._context,
            stream_mode=_STREAM_MODES,
            subgraphs=True,
            durability="sync",  # part of I3: with any other a fenced-out runner goes on executing
            version="v2",
            control=self._control,
            interrupt_before=run.input.get("interruptBefore") or None,
            interrupt_after=run.input.get("interruptAfter") or None,
        )
        chunks: AsyncGenerator[Any, None] = stream
        return chunks
