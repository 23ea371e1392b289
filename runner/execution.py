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
from collections.abc import Coroutine
from typing import Any, Final

import structlog
from langgraph.errors import GraphDrained

from common.db.runs import ClaimedRun
from common.errors import LeaseLost, Unavailable
from common.page import Page
from common.runs import CancelReason
from common.tracing import Attributes
from runner.answers import Answers
from runner.asking import Asking
from runner.checkpointer import FencedSaver
from runner.durable import Durable
from runner.effects import Effects
from runner.facts import Facts
from runner.gate import Gate
from runner.graphstate import Discard, GraphState, nothing
from runner.guarding import Work, enter_graph
from runner.kit import Kit
from runner.ledger import Ledger
from runner.opening import open_outlet
from runner.outcomes import Asked, Cancelled, Failed, Finished, HandedOver, Outcome, Paused, Waiting
from runner.stopping import TIMED_OUT, Stop
from runner.storing import Storing
from runner.streaming import Streaming

log = structlog.get_logger(__name__)

CANCEL_GRACE_S: Final = 1.5


class Execution:
    """`run` returns when the run is no longer ours. The other methods may be called meanwhile."""

    def __init__(self, kit: Kit, run: ClaimedRun) -> None:
        self.claimed = run
        self.crashed = False  # by a mistake of ours: giving the run back is charged
        self._kit = kit
        self._stop = Stop(run, kit.timeout_s(run.graph))
        self._decided = asyncio.Event()
        self._page = Page()
        self._gate = Gate()
        self._asking = Asking(self._gate)
        self._answers = Answers(kit, run)
        self._effects = self._new_effects()
        self._facts = Facts(
            *(kit.db, run, kit.registry.spec(run.graph).fact_permissions, kit.masker),
            stopped=lambda: self._stop.is_ordered,
        )
        self._state = GraphState(kit, run)
        self._streaming = Streaming(
            *(kit, run, self._state),
            page=self._page,
            gate=self._gate,
            facts=self._facts,
            asking=self._asking,
        )
        self._work = Work()
        self._left_branches = False  # a stream failed and the run goes on
        self._storing: Storing
        if run.cancel_requested is not None:
            self.cancel(run.cancel_requested)

    def cancel(self, reason: CancelReason) -> None:
        """Stop executing and end the run as cancelled."""
        self._stop.order(Cancelled(reason))

    def lose(self) -> None:
        """Another owner has the run, or the lease is over: stop at once, store nothing."""
        self._stop.order(None)

    def drain(self) -> None:
        """Hand the run over at the next step boundary."""
        self._streaming.drain()

    def hand_over(self) -> None:
        """Stop executing now; the run goes on elsewhere."""
        self._stop.order(HandedOver("handover"))

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
                outlet = self._streaming.outlet
                if outlet is not None and not outlet.leaving:
                    outlet.lose()  # nothing of this owner may follow

    async def _chain(self) -> None:
        await self._open()
        while True:
            self._asking.reset()
            outcome = await self._stoppable(self._attempt())
            if isinstance(outcome, Asked):
                outcome = Waiting(await self._state.read(), outcome.unknown, outcome.given)
            if await self._storing.store(outcome):
                return

    # opening

    async def _open(self) -> None:
        """When this returns, the first event of this epoch is out or lies in the buffer."""
        discard = await self._prepare()
        run, kit, stop = self.claimed, self._kit, self._stop
        outlet = await open_outlet(
            *(kit, run, self._page, discard),
            on_lost=self.lose,
            stopped=lambda: stop.is_ordered and not stop.is_cancelled,
            hurried=lambda: stop.is_cancelled,
        )
        self._streaming.outlet = outlet
        state = self._state
        self._storing = Storing(kit, run, state.graph, outlet, self._page, state.values)

    async def _prepare(self) -> Discard:
        """Build the graph, for as long as nothing ends this take-up."""
        task = asyncio.create_task(self._build())
        try:
            await self._stop.first_of(task)
        finally:
            await self._end(task)
        if self._stop.is_lost:
            raise LeaseLost(self.claimed.id, self.claimed.epoch)
        if task.done() and not task.cancelled():
            return task.result()
        self._state.graph = None
        return nothing

    async def _build(self) -> Discard:
        enter_graph(self._work)
        if not (self._may_execute or self._state.is_built):
            return nothing
        run = self.claimed
        saver = FencedSaver(
            *(self._kit.sessions, run.id, run.epoch),
            gate=self._gate,
            facts=self._facts,
            on_failure=self._answers.note_failure,
        )
        return await self._state.build(saver)

    @property
    def _may_execute(self) -> bool:
        return not (self._stop.is_ordered or self._is_worn_out or self._stop.time_is_over)

    @property
    def _is_worn_out(self) -> bool:
        return self.claimed.attempts >= self._kit.settings.attempts_max

    # stopping

    async def _stoppable(self, attempt: Coroutine[Any, Any, Outcome]) -> Outcome:
        """The attempt's outcome, or why it was stopped. Raises LeaseLost when the run was lost."""
        task = asyncio.create_task(attempt)
        try:
            return await self._first_of(task)
        finally:
            self._gate.close()
            await self._end(task)
            await self._effects.settle()

    async def _first_of(self, task: "asyncio.Task[Outcome]") -> Outcome:
        while not task.done() and self._goes_on and not self._stop.is_past_deadline:
            await self._next_notice(task)
        if (ordered := self._stop.outcome) is not None:
            return ordered
        if self._asking.is_over:
            return Asked(self._asking.unknown, self._answers.given)
        return task.result() if task.done() else TIMED_OUT

    @property
    def _goes_on(self) -> bool:
        return not (self._stop.is_ordered or self._asking.is_over)

    async def _next_notice(self, task: "asyncio.Task[Outcome]") -> None:
        decided = asyncio.ensure_future(self._decided.wait())
        asking = asyncio.ensure_future(self._asking.over.wait())
        try:
            await self._stop.first_of(task, decided, asking)
        finally:
            decided.cancel()
            asking.cancel()
        if self._decided.is_set():
            self._decided.clear()
            await self._storing.tell_decisions()

    async def _end(self, task: "asyncio.Task[Any]") -> None:
        """Cancelled and waited for, but not for long; what goes on then is left behind, mute."""
        if _has_ended_well(task) and not self._left_branches:
            return
        task.add_done_callback(_see)  # what it raises: the outcome that stopped it counts
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_GRACE_S)
        if not task.done():
            self._streaming.mute()
        self._kit.leftovers.add(self.claimed.id, task, self._work)

    # executing

    async def _attempt(self) -> Outcome:
        """Outcomes of whatever a graph does. Raises LeaseLost."""
        enter_graph(self._work)
        self._effects.enter()
        if self._is_worn_out:
            return Failed("RUNNER_LOST", "The run lost its runner several times.", True)
        if self._state.graph is None:
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
            state = await self._state.read()
            answers = await self._answers.to_send(state) if self._storing.asked else {}
            stops = streamed or not state.breakpoints.issubset(self._passed)
            if (outcome := _outcome(state, answers, stops=stops)) is not None:
                return outcome
            if self._stop.time_is_over:
                return TIMED_OUT
            if streamed:
                self._streaming.announce(state, answers)
            else:
                await self._streaming.make_context()
            await self._stream_or_ask_again(await self._state.input(state, answers), state)
            streamed = True

    @property
    def _passed(self) -> set[str]:
        """Checkpoints at which a pause was stored: the run goes on, so it was continued."""
        return set((self.claimed.paused_at or "").split())

    async def _stream_or_ask_again(self, given: Any, state: Durable) -> None:
        """An answer that the graph cannot use does not fail the run at once (`runner/answers`)."""
        begun = self._effects.begun
        try:
            await self._streaming.stream(given, state)
        except Exception:  # whatever a graph raises
            if self._effects.begun > begun or not self._answers.have_failed:
                raise
            if not await self._answers.take_back(await self._state.read()):
                raise
            self._left_branches = True
            log.info("asked_again", exc_info=True)

    def _new_effects(self) -> Effects:
        kit, run, stop = self._kit, self.claimed, self._stop

        def stop_graph(outcome: Outcome | None) -> None:
            """What is to be asked is asked, and whether the run is still ours is seen when that is
            stored."""
            if not self._asking.is_over:
                stop.order(outcome)

        return Effects(
            Ledger(kit.db, run.id, run.epoch),
            may_start=lambda: self._goes_on and kit.may_execute(),
            may_go_on=lambda: not stop.is_lost and kit.may_execute(),
            stop=stop_graph,
            mask=kit.masker.text,
            asking=self._asking,
            metrics=kit.metrics,
            tracing=kit.tracing,
        )


def _described(run: ClaimedRun) -> Attributes:
    reason = run.resume_reason or "start"
    return {
        "steadyrun.run_id": run.id,
        "steadyrun.epoch": run.epoch,
        "steadyrun.graph": run.graph,
        "steadyrun.reason": reason,
    }


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
