"""Performs the guarded effects of one execution (I5; for authors: runner/authoring/effects.py).

    begin ─► outcome known ────────────────────────────────────────────► returned
      │  └─► intent of an earlier start ─► a person said: done ────────► stored, returned
      │        ├─► verify ─► Performed(value) ─────────────────────────► stored, returned
      │        │     └────► UNKNOWN, no verify, nobody has said anything ─► a person is asked
      ▼        ▼
    intent   NOT_PERFORMED, or UNKNOWN and a person said: again
    is ours    │  the intent becomes ours
      └────────┴─────┬──────────────────────
                     ▼
    may this process still execute the run? ─► no: the intent is taken back if that is still ours
                     ▼                             to do, and the execution ends
               fn is started ─► outcome stored ─► returned

Two defences keep a process that stood still from performing what another has taken up: each
statement of the ledger is fenced by (run, epoch) in itself, and right before `fn` is started (in
its own thread for a sync one) the local lease must still hold. The fence cannot see what happens
after `begin`, the lease's clock cannot see a takeover that came early: each covers where the other
is blind.

An intent of our own epoch that was not started here is ours as well: the answer to `begin` was lost
and it was sent again. An epoch belongs to one execution in one process, so that is certain.

A person's word counts for the intent that was asked about, once (common/db/effects): whoever takes
the run up after another crash asks again. "Done" is believed, whatever `verify` would say now; for
"again" `verify` is asked once more, since it may know by now that the effect has happened.

What ends the execution (lost, cancelled, a person to be asked) is not raised where user code could
catch it: the graph is stopped, and `guarded` does not return before it is cancelled
(`runner/asking` says when the graph is stopped to ask).
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError as CancelledInThread
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, NoReturn
from weakref import WeakValueDictionary

from common.db.effects import CancelAsked, Effect, Word
from common.errors import LeaseLost
from common.tracing import Tracing
from runner.asking import Asking, Unknown
from runner.authoring import effects as authoring
from runner.authoring.effects import NotPerformed, Performed, Verify
from runner.calling import called
from runner.effectcard import done, is_again
from runner.ledger import KEY_CHARS_MAX, Ledger, check_key, kept
from runner.metrics import Metrics
from runner.outcomes import Cancelled, Outcome

GRACE_S: Final = 1.0  # less than runner.execution.CANCEL_GRACE_S
_LEAVING_S: Final = 10.0


class _Ends(Exception):
    """The execution ends with this; never leaves this module."""

    def __init__(self, outcome: Outcome | None) -> None:
        self.outcome = outcome


class _MayNotStart(Exception):
    """Nothing was started; never leaves this module."""


@dataclass(slots=True)
class _Call:
    key: str
    fn: authoring.Effect
    verify: Verify | None
    permission: str | None
    abandoned: bool = False
    """Whoever called was cancelled: nothing more is started."""


class Effects:
    """Of one (run, epoch), in the event loop that makes it.

    `may_go_on`: whether this process holds the run by its own clock; `may_start`: and nobody has
    stopped the execution. Both are asked from any thread. `stop(outcome)` ends the execution; None:
    the run is lost. `asking` is told what a person has to be asked.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        may_start: Callable[[], bool],
        may_go_on: Callable[[], bool],
        stop: Callable[[Outcome | None], None],
        mask: Callable[[str, int], str],
        asking: Asking,
        metrics: Metrics | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._ledger = ledger
        self._may_start = may_start
        self._may_go_on = may_go_on
        self._stop = stop
        self._mask = mask
        self._asking = asking
        self._metrics = metrics or Metrics()
        self._tracing = tracing or Tracing()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._entered = False
        self._started: set[str] = set()
        self._working: set[asyncio.Task[Any]] = set()
        self._held: set[asyncio.Task[Any]] = set()
        self._waiting: set[Future[Any]] = set()

    def enter(self) -> None:
        """From here on, in this task and what it makes, `guarded` comes here."""
        authoring.current.set(self)
        self._entered = True

    @property
    def begun(self) -> int:
        """How many have been started, or tried to be, by this execution."""
        return len(self._started)

    async def settle(self) -> None:
        """The graph has been stopped: let effects that are under way end and be noted, for a
        moment; then nothing of them goes on here but threads, which nobody can end. Nothing more is
        started before `enter`, whatever threads are left."""
        self._entered = False
        await self._grace(set(self._working))
        for task in [*self._working, *self._held]:
            task.cancel()
        for future in list(self._waiting):
            future.cancel()

    async def perform(
        self,
        key: str,
        fn: authoring.Effect,
        verify: Verify | None = None,
        permission: str | None = None,
    ) -> Any:
        check_key(key)
        self._check_place(key)
        with self._asking.inside(key):
            try:
                return await self._in_turn(_Call(key, fn, verify, permission))
            except asyncio.CancelledError:
                await self._hold(key)
                raise

    async def _in_turn(self, call: _Call) -> Any:
        turn = self._turns.setdefault(call.key, asyncio.Lock())
        async with turn:
            try:
                return await self._sheltered(call)
            except _Ends as end:
                await self._leave(end.outcome)
            except LeaseLost:  # of the ledger, or of `effect_key`
                await self._leave(None)

    async def _hold(self, key: str) -> None:
        """Whoever called does not wait any longer for what a person is to be asked: the graph is
        stopped before it can go on."""
        if self._asking.asks(key) and self._asking.rest():
            await asyncio.sleep(GRACE_S)

    def perform_sync(
        self,
        key: str,
        fn: authoring.Effect,
        verify: Verify | None = None,
        permission: str | None = None,
    ) -> Any:
        if threading.get_ident() == self._thread:
            raise RuntimeError("in async code: await guarded(…) instead of guarded_sync(…)")
        performing = self.perform(key, fn, verify, permission)
        future = asyncio.run_coroutine_threadsafe(performing, self._loop)
        self._waiting.add(future)
        try:
            return future.result()
        except CancelledInThread:  # an Exception, which a node may catch; this is none
            raise asyncio.CancelledError from None
        finally:
            self._waiting.discard(future)

    def _check_place(self, key: str) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("in an event loop of your own: call guarded_sync(…) in a thread")
        inside = authoring.outside.get(None)
        if inside and inside.key == authoring.outside_key_of(self._ledger.run_id, key):
            raise RuntimeError(f"the effect {key!r} waits for itself")

    async def _sheltered(self, call: _Call) -> Any:
        """A cancellation does not tear an effect from its outcome, if it ends in a moment."""
        work = self._loop.create_task(self._perform(call))
        self._working.add(work)
        work.add_done_callback(self._forget_work)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            call.abandoned = True
            await self._grace({work} - self._held)
            raise
        finally:
            work.cancel()

    async def _grace(self, work: "set[asyncio.Task[Any]]") -> None:
        """None for a run that is lost: what its owner does now must not happen (I3)."""
        if work and self._may_go_on():
            await asyncio.wait(work, timeout=GRACE_S)

    def _forget_work(self, work: "asyncio.Task[Any]") -> None:
        self._working.discard(work)
        if not work.cancelled():
            work.exception()  # seen

    async def _leave(self, outcome: Outcome | None) -> NoReturn:
        """Whoever would catch an exception of ours is cancelled instead."""
        self._stop(outcome)
        await asyncio.sleep(_LEAVING_S)
        raise self._ledger.lost

    # the chain of one effect

    async def _perform(self, call: _Call) -> Any:
        effect = await self._begin(call.key)
        if effect.outcome is not None:
            self._count("known")
            return kept(effect.outcome)
        if not self._is_ours(effect):
            word = await self._ledger.word(call.key)
            if word is not None and (said := done(word.answer)) is not None:
                return await self._believe(call.key, word, said.value)
            if isinstance(answer := await self._verdict(call), Performed):
                self._count("verified")
                return await self._ledger.complete(call.key, answer.value)
            await self._take_over(call, effect, word, answer)
        value = await self._ledger.complete(call.key, await self._started_once(call))
        self._count("performed")
        return value

    def _count(self, outcome: str) -> None:
        self._metrics.effects.labels(outcome).inc()

    async def _begin(self, key: str) -> Effect:
        begun = await self._ledger.begin(key)
        if isinstance(begun, CancelAsked):
            raise _Ends(Cancelled(begun.reason))
        return begun

    def _is_ours(self, effect: Effect) -> bool:
        """Written under this epoch, and nothing was started."""
        return effect.epoch == self._ledger.epoch and effect.key not in self._started

    async def _verdict(self, call: _Call) -> authoring.Answer:
        if call.verify is None:
            return authoring.UNKNOWN
        with self._outside(call.key):
            answer = await called(call.verify)
        if not isinstance(answer, Performed | authoring.Verdict):
            raise TypeError("verify answers Performed(value), NOT_PERFORMED or UNKNOWN")
        return answer

    async def _take_over(
        self,
        call: _Call,
        effect: Effect,
        word: Word | None,
        answer: authoring.Verdict,
    ) -> None:
        """The intent becomes ours where it is known that this is right; else a person is asked."""
        if answer is authoring.NOT_PERFORMED:
            await self._ledger.take_over(call.key)
        elif word is None:
            await self._ask_person(call, effect)
        elif is_again(word.answer):
            await self._ledger.repeat(call.key, word)
        else:  # a rejection: given up
            raise _Ends(Cancelled("rejected"))

    async def _ask_person(self, call: _Call, effect: Effect) -> NoReturn:
        """Does not go on; `settle` ends it."""
        work = asyncio.current_task()
        assert work is not None
        self._working.discard(work)
        self._held.add(work)
        work.add_done_callback(self._held.discard)
        self._count("asked")
        self._asking.ask(
            Unknown(call.key, effect.epoch, effect.runner_id, effect.started_at, call.permission)
        )
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def _believe(self, key: str, word: Word, value: Any) -> Any:
        self._count("told")
        await self._ledger.believe(key, word, value)
        return value

    async def _started_once(self, call: _Call) -> Any:
        """What `fn` returned. An exception of its own leaves the intent as it is."""
        try:
            with self._outside(call.key), self._span(call.key):
                return await called(call.fn, lambda: self._start(call))
        except _MayNotStart:
            if call.key not in self._started:
                await self._ledger.try_to_forget(call.key)
            raise _Ends(None) from None
        except NotPerformed:
            await self._ledger.forget(call.key)
            self._started.discard(call.key)
            raise

    def _start(self, call: _Call) -> None:
        """The last thing before user code (again, before what it made is awaited)."""
        if call.abandoned or not self._entered or not self._may_start():
            raise _MayNotStart
        self._started.add(call.key)

    def _outside(self, key: str) -> AbstractContextManager[None]:
        return authoring.performing(self._ledger.run_id, key, self._check_held)

    def _span(self, key: str) -> AbstractContextManager[object]:
        """Current in `fn`, so that what it calls outside can go on with the trace."""
        masked = self._mask(key, KEY_CHARS_MAX) if self._tracing.on else ""
        return self._tracing.span("effect", {"steadyrun.effect": masked}, kind="client")

    def _check_held(self) -> None:
        if not self._may_go_on():
            raise self._ledger.lost
