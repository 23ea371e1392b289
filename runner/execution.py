"""One take-up of one run: from the claim to a stored outcome, as a chain of named steps.

    open log → tell what was decided → (read durable state → choose input → stream)* → store outcome

The durable state alone decides what was done (langgraph checkpoints, fenced); input is given once,
stored decisions are sent by native id until the state shows them taken, and every further stream is
announced with the steps that will be shown again. Clients are never waited for; Redis neither.

Outcomes are values (`runner/outcomes`). LeaseLost ends everything at once without a trace: another
owner has the run. Unavailable gives the run back as soon as Postgres answers.

Code that does not let itself be stopped is left behind after a moment (`runner/leftovers`), its
mute: the outcome is stored without it. A run whose cancellation was asked, whose time is
over or whose runners died too often is not executed any more: its code may be what ended them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import structlog
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl
from langgraph.types import Command

from common.db.runs import ClaimedRun
from common.errors import LeaseLost, Unavailable
from common.events import Event
from common.page import Page
from common.runs import CancelReason
from common.tracing import Attributes
from runner import durable
from runner.answers import Answers
from runner.asking import Asking
from runner.breakpoints import Breakpoints
from runner.checkpointer import FencedSaver
from runner.durable import Durable
from runner.effects import Effects
from runner.facts import Facts
from runner.gate import Gate
from runner.guarding import Work, enter_graph
from runner.inputs import described, graph_input, leave
from runner.kit import Kit
from runner.opening import open_outlet
from runner.outcomes import Asked, Cancelled, Failed, Finished, HandedOver, Outcome, Paused, Waiting
from runner.outlet import Outlet
from runner.registry import Graph
from runner.spans import ToolSpans
from runner.steps import Steps, run_config
from runner.storing import Storing
from runner.translate import Translator

log = structlog.get_logger(__name__)

CANCEL_GRACE_S = 1.5
VALUES_WITHIN_S = 5.0
LAST_LOOK_S = 3.0  # at a run whose time is over: it may have come to its end unstored
_STREAM_MODES: Any = ["messages", "tasks", "tools", "custom"]  # "tools" is not in the literal


class Execution:
    """`run` returns when the run is no longer ours. The other methods may be called meanwhile."""

    def __init__(self, kit: Kit, run: ClaimedRun) -> None:
        self.claimed = run
        self._kit = kit
        self._spec = kit.registry.spec(run.graph)
        self._control = RunControl()
        loop = asyncio.get_running_loop()
        self._stop: asyncio.Future[Outcome | None] = loop.create_future()
        timeout_s = kit.timeout_s(run.graph)
        self._over_at = loop.time() + timeout_s - run.executed_s
        self._deadline = max(self._over_at, loop.time() + min(LAST_LOOK_S, timeout_s))
        self._decided = asyncio.Event()
        self._config = self._new_config(Steps())
        self._page = Page()
        self._gate = Gate()
        self._outlet: Outlet | None = None
        self._graph: Graph | None = None  # None: it cannot be built
        self.crashed = False  # by a mistake of ours: giving the run back is charged
        self._storing: Storing
        self._context: Any = None
        self._asking = Asking(self._gate)
        self._effects = Effects(
            kit.db,
            run.id,
            run.epoch,
            may_start=lambda: self._may_go_on_executing and kit.may_execute(),
            may_go_on=lambda: not self._is_lost and kit.may_execute(),
            stop=self._stop_graph,
            mask=kit.masker.text,
            asking=self._asking,
            metrics=kit.metrics,
            tracing=kit.tracing,
        )
        self._facts = Facts(
            *(kit.db, run, self._spec.fact_permissions, kit.masker), stopped=self._stop.done
        )
        self._answers = Answers(kit, run)
        self._left_branches = False  # a stream failed and the run goes on
        self._work = Work()
        self._spans = ToolSpans(kit.tracing)
        self._translator: Translator | None = None
        if run.cancel_requested is not None:
            self.cancel(run.cancel_requested)

    def cancel(self, reason: CancelReason) -> None:
        """Stop executing and end the run as cancelled."""
        self._stop_with(Cancelled(reason))

    def lose(self) -> None:
        """Another owner has the run, or the lease is over: stop at once, store nothing."""
        self._stop_with(None)

    @property
    def _is_lost(self) -> bool:
        return self._stop.done() and self._stop.result() is None

    def drain(self) -> None:
        """Hand the run over at the next step boundary."""
        self._control.request_drain()

    def hand_over(self) -> None:
        """Stop executing now; the run goes on elsewhere."""
        self._stop_with(HandedOver("handover"))

    def decided(self) -> None:
        """A decision was stored meanwhile: tell it."""
        self._decided.set()

    async def run(self) -> None:
        """Raises only CancelledError. What is not settled stays `running` and is given back."""
        run, metrics = self.claimed, self._kit.metrics
        with (
            structlog.contextvars.bound_contextvars(run_id=run.id, epoch=run.epoch),
            metrics.execution_s.time(),
            self._kit.tracing.span("run", _described(run), kind="consumer", parent=run.traceparent),
        ):
            try:
                await self._chain()
            except LeaseLost:
                metrics.outcomes.labels("lost").inc()
                log.info("run_lost")
            except Unavailable as error:
                metrics.outcomes.labels("left").inc()
                log.warning("run_left", what=error.what)
            except Exception:
                self.crashed = True
                metrics.outcomes.labels("crashed").inc()
                log.exception("execution_failed")
            finally:
                if self._outlet is not None and not self._outlet.leaving:
                    self._outlet.lose()  # nothing of this owner may follow

    async def _chain(self) -> None:
        await self._open()
        while True:
            self._asking.reset()
            outcome = await self._stoppable(self._attempt())
            if isinstance(outcome, Asked):
                outcome = Waiting(await self._durable(), outcome.unknown, outcome.given)
            if await self._storing.store(outcome):
                return

    async def _open(self) -> None:
        """When this returns, the first event of this epoch is out or lies in the buffer."""
        discard = await self._prepare()
        run, kit, page = self.claimed, self._kit, self._page
        outlet = await open_outlet(
            kit,
            run,
            page,
            discard,
            on_lost=self.lose,
            stopped=lambda: self._stop.done() and not self._is_cancelled,
            hurried=lambda: self._is_cancelled,
        )
        self._outlet = outlet
        self._storing = Storing(kit, run, self._graph, outlet, page, self._values)

    async def _prepare(self) -> Callable[[Page], list[str]]:
        """Build the graph; what is to be discarded of a page. One that cannot be built fails once
        the log is open, so that this is told."""
        task = asyncio.create_task(self._build())
        awaited: set[asyncio.Future[Any]] = {task, self._stop}
        timeout_s = self._deadline - asyncio.get_running_loop().time()
        try:
            await asyncio.wait(awaited, timeout=timeout_s, return_when="FIRST_COMPLETED")
        finally:
            await self._end(task)
        if self._stop.done() and self._stop.result() is None:
            raise LeaseLost(self.claimed.id, self.claimed.epoch)
        if task.done() and not task.cancelled():
            return task.result()
        self._graph = None
        return _nothing

    async def _build(self) -> Callable[[Page], list[str]]:
        run, kit = self.claimed, self._kit
        enter_graph(self._work)
        if not (self._may_execute or kit.registry.is_built(run.graph)):
            return _nothing
        saver = FencedSaver(
            *(kit.sessions, run.id, run.epoch),
            gate=self._gate,
            facts=self._facts,
            on_failure=self._answers.note_failure,
        )
        try:
            self._graph = await kit.registry.graph(run.graph, saver, self._config)
            return _nothing if run.epoch == 1 else (await self._durable()).discard
        except (LeaseLost, Unavailable):
            raise
        except (Exception, SystemExit, KeyboardInterrupt):  # a user's factory, an unreadable state
            log.warning("graph_failed", exc_info=True)
            self._graph = None
            return _nothing

    @property
    def _may_execute(self) -> bool:
        return not (self._stop.done() or self._is_worn_out or self._time_is_over)

    @property
    def _is_worn_out(self) -> bool:
        return self.claimed.attempts >= self._kit.settings.attempts_max

    @property
    def _time_is_over(self) -> bool:
        return asyncio.get_running_loop().time() >= self._over_at

    async def _durable(self) -> Durable:
        assert self._graph is not None
        snapshot = await self._graph.aget_state(self._config, subgraphs=True)
        stops = Breakpoints.of_run(self._graph, self.claimed.input)
        return durable.read(snapshot, self.claimed.id, stops)

    @property
    def _passed(self) -> set[str]:
        """Checkpoints at which a pause was stored: the run goes on, so it was continued."""
        return set((self.claimed.paused_at or "").split())

    async def _values(self) -> Any:
        """None as well when the state cannot be read (in time): the outcome must be stored."""
        if self._graph is None:
            return None
        try:
            async with asyncio.timeout(VALUES_WITHIN_S):
                return (await self._durable()).values
        except (LeaseLost, Unavailable):
            raise
        except Exception as error:  # it takes too long, or what a graph wrote cannot be read
            log.warning("state_not_read", error=type(error).__name__)
            return None

    @property
    def _open_outlet(self) -> Outlet:
        assert self._outlet is not None  # opened before anything is executed
        return self._outlet

    # stopping

    @property
    def _is_cancelled(self) -> bool:
        return self._stop.done() and isinstance(self._stop.result(), Cancelled)

    def _stop_with(self, outcome: Outcome | None) -> None:
        if not self._stop.done():
            self._stop.set_result(outcome)

    def _stop_graph(self, outcome: Outcome | None) -> None:
        """An effect ends the execution; but what is to be asked is asked, and whether the run is
        still ours is seen when that is stored."""
        if not self._asking.is_over:
            self._stop_with(outcome)

    @property
    def _may_go_on_executing(self) -> bool:
        return not (self._stop.done() or self._asking.is_over)

    async def _stoppable(self, attempt: Coroutine[Any, Any, Outcome]) -> Outcome:
        """The attempt's outcome, or why it was stopped. Raises LeaseLost when the run was lost."""
        task = asyncio.create_task(attempt)
        try:
            return await self._first_of(task)
        finally:
            self._gate.close()
            await self._end(task)
            await self._effects.settle()

    async def _end(self, task: "asyncio.Task[Any]") -> None:
        """Cancelled and waited for, but not for long; what goes on then is left behind, mute."""
        if _has_ended_well(task) and not self._left_branches:
            return
        task.add_done_callback(_see)  # what it raises: the outcome that stopped it counts
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_GRACE_S)
        if not task.done():
            self._mute()
        self._kit.leftovers.add(self.claimed.id, task, self._work)

    def _mute(self) -> None:
        """What was begun is closed in its stead; nothing that it still says is heard."""
        if self._outlet is not None:
            if self._translator is not None:
                self._close(self._translator)
            self._outlet.mute()

    async def _first_of(self, task: "asyncio.Task[Outcome]") -> Outcome:
        loop = asyncio.get_running_loop()
        while not task.done() and self._may_go_on_executing and loop.time() < self._deadline:
            await self._next_notice(task, self._deadline - loop.time())
        if self._stop.done():
            if (outcome := self._stop.result()) is None:
                raise LeaseLost(self.claimed.id, self.claimed.epoch)
            return outcome
        if self._asking.is_over:
            return Asked(self._asking.unknown, self._answers.given)
        return task.result() if task.done() else _TIMED_OUT

    async def _next_notice(self, task: "asyncio.Task[Outcome]", timeout_s: float) -> None:
        decided = asyncio.ensure_future(self._decided.wait())
        asking = asyncio.ensure_future(self._asking.over.wait())
        awaited: set[asyncio.Future[Any]] = {task, self._stop, decided, asking}
        try:
            await asyncio.wait(awaited, timeout=timeout_s, return_when="FIRST_COMPLETED")
        finally:
            decided.cancel()
            asking.cancel()
        if self._decided.is_set():
            self._decided.clear()
            await self._storing.tell_decisions()

    # executing

    async def _attempt(self) -> Outcome:
        """Outcomes of whatever a graph does. Raises LeaseLost."""
        enter_graph(self._work)
        self._effects.enter()
        if self._is_worn_out:
            return Failed("RUNNER_LOST", "The run lost its runner several times.", True)
        if self._graph is None:
            return Failed("GRAPH_ERROR", "The agent could not be prepared.", False)
        try:
            return await self._execute()
        except LeaseLost:
            raise
        except GraphDrained:
            return HandedOver("handover")
        except Unavailable:
            return HandedOver("failover")
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # whatever a graph raises
            log.warning("graph_failed", exc_info=True)
            return Failed("GRAPH_ERROR", f"The agent failed ({type(error).__name__}).", False)

    async def _execute(self) -> Outcome:
        streamed = False
        while True:
            state = await self._durable()
            answers = await self._answers.to_send(state) if self._storing.asked else {}
            stops = streamed or not state.breakpoints.issubset(self._passed)
            if (outcome := _outcome(state, answers, stops=stops)) is not None:
                return outcome
            if self._time_is_over:
                return _TIMED_OUT
            if streamed:
                self._announce(state, answers)
            else:
                self._context = await self._make_context()
            await self._stream_or_ask_again(await self._input(state, answers), state)
            streamed = True

    async def _stream_or_ask_again(self, given: Any, state: Durable) -> None:
        """An answer that the graph cannot use does not fail the run at once (`runner/answers`)."""
        begun = self._effects.begun
        try:
            await self._stream(given, state)
        except Exception:  # whatever a graph raises
            if self._effects.begun > begun or not self._answers.have_failed:
                raise
            if not await self._answers.take_back(await self._durable()):
                raise
            self._left_branches = True
            log.info("asked_again", exc_info=True)

    async def _make_context(self) -> Any:
        """Built anew at every take-up, never stored (contract §8)."""
        run = self.claimed
        return await self._kit.registry.context(run.graph, described(run), run.principal)

    def _announce(self, state: Durable, answers: dict[str, Any]) -> None:
        """A further stream in this take-up: unfinished steps are shown again from their start."""
        reason = "decision" if answers else "continue"
        fields = {"reason": reason, "discard": state.discard(self._page)}
        self._tell([Event("run_resumed", fields)])

    def _tell(self, events: list[Event]) -> None:
        if not self._open_outlet.is_mute:
            self._page.apply(events)
            self._spans.feed(events)
            self._open_outlet.emit(events)

    async def _input(self, state: Durable, answers: dict[str, Any]) -> Any:
        if answers:
            return Command(resume=answers)
        if state.input_applied:
            return None
        assert self._graph is not None
        left = await leave(self._graph, self._config) if state.left else []
        return await graph_input(self._spec, self._graph, self.claimed, state.values, left)

    async def _stream(self, given: Any, state: Durable) -> None:
        outlet = self._open_outlet
        if outlet.is_mute:
            raise LeaseLost(self.claimed.id, self.claimed.epoch)
        steps = Steps()  # a step that is executed again begins to count anew
        self._translator = translator = self._new_translator(state, steps)
        self._gate.open(steps, outlet)
        config = self._new_config(steps, self._facts.open(steps).tools)
        self._asking.open(steps)
        try:
            async for chunk in self._chunks(given, config):
                if outlet.is_mute:
                    raise LeaseLost(self.claimed.id, self.claimed.epoch)
                self._tell(translator.feed(chunk))
                self._gate.note(chunk)
                self._asking.note(chunk)
                await outlet.room()
        finally:
            self._gate.close()
            if not outlet.is_mute:
                self._close(translator)

    def _close(self, translator: Translator) -> None:
        self._translator = None
        self._tell(translator.close(waits=self._asking.is_over))
        self._spans.close()

    def _new_config(self, steps: Steps, *others: BaseCallbackHandler) -> RunnableConfig:
        run = self.claimed
        return run_config(thread_id=run.conversation_id, run_id=run.id, steps=steps, others=others)

    def _new_translator(self, state: Durable, steps: Steps) -> Translator:
        settings = self._kit.settings
        return Translator(
            run_id=self.claimed.id,
            mask=self._kit.masker,
            finished=state.finished_steps,
            shown=self._page.steps,
            steps=self._spec.steps,
            seen=state.message_ids,
            standing=self._page.standing,
            callback=steps,
            tool_bytes_max=settings.tool_payload_bytes_max,
            custom_bytes_max=settings.custom_payload_bytes_max,
        )

    def _chunks(self, given: Any, config: RunnableConfig) -> AsyncIterator[Any]:
        run, graph = self.claimed, self._graph
        assert graph is not None
        stream: AsyncIterator[Any] = graph.astream(
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
        return stream


def _described(run: ClaimedRun) -> Attributes:
    reason = run.resume_reason or "start"
    return {
        "steadyrun.run_id": run.id,
        "steadyrun.epoch": run.epoch,
        "steadyrun.graph": run.graph,
        "steadyrun.reason": reason,
    }


_TIMED_OUT = Failed("RUN_TIMEOUT", "The run took longer than it may.", True)


def _nothing(page: Page) -> list[str]:
    return []


def _outcome(state: Durable, answers: dict[str, Any], *, stops: bool) -> Outcome | None:
    """What the durable state amounts to; None while there is something to execute.

    `stops`: LangGraph has just left the thread there, or would have, had its runner not died.
    """
    if state.finished:
        return Finished(state)
    if not state.input_applied or answers:
        return None
    if state.waiting:
        return Waiting(state)
    if stops and not state.pending:
        return Paused(state)
    return None


def _has_ended_well(task: "asyncio.Task[Any]") -> bool:
    """A failed graph may leave a parallel branch behind in its thread."""
    if not task.done() or task.cancelled() or task.exception() is not None:
        return False
    return not isinstance(task.result(), Failed)


def _see(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()
