"""Side effects that must not happen twice: `guarded` (contract, last paragraph).

LangGraph executes a node again from its beginning after a question, a crash or a retry. What a node
only reads or computes bears that; a payment or a restart does not. So:

    async def charge(state):
        receipt = await guarded(f"charge/{state['order']}", pay, verify=was_paid)

performs `pay` at most once for this run and this key, and gives on every later execution what it
gave the first time. Before `pay` is started an intent is stored, after it the outcome, both under
the run's epoch; `pay` is not started by a process that has lost the run.

What cannot be closed from here: the process dies, or stands still, *after* `pay` was started and
before its outcome is stored. Then nobody knows whether it happened, and it is not performed again
by guessing. `verify` may know: it asks the outside system and answers `Performed(value)`,
`NOT_PERFORMED` (it is performed then) or `UNKNOWN`. Without a `verify`, and on `UNKNOWN`, a person
is asked, by an interrupt of the run: do it again, it is done (perhaps with its result), or give
up, which cancels the run. Until then this call does not return, whatever the graph catches; when
the answer comes the node is executed from its beginning, as after `interrupt()`. `permission` says
who may answer; without one the owner of the conversation does.

A process can also be stopped between its last look at its lease and the first byte that `pay`
sends, and go on when another has asked, heard "not performed", and performed it. The last look is
right before `pay` is started, and again whenever it calls `effect_key()`: so call that late, and
what remains lies between a few machine instructions. The outside system alone can close it: hand it
the key, a text that is the same on every execution of this effect and of no other, as its
idempotency key.

Rules for authors
    key     one for each effect in the run: a key in a loop needs what tells its rounds apart, in a
            tool its call's id. 1 to 256 characters. It may be shown (masked).
    fn      no arguments; async, or sync and then run in a thread. What it returns is JSON of at
            most 256 KiB; a tuple comes back as a list, also the first time. Anything else raises
            `OutcomeRefused` here and on every later execution: the effect has happened and is not
            performed again.
    raising leaves the outcome unknown, since a timeout may come after the effect: the next
            execution (a retry policy's too) meets the intent. Only `NotPerformed` says that
            nothing happened: it takes the intent back and is raised on.
    asking  before, never inside `fn`: a question interrupts it.
    catch   nothing that is not yours around it; a cancelled `guarded` still gets a moment to end.

A sync node or tool calls `guarded_sync`. Two branches with one key at once: the second waits for
the first.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from inspect import isawaitable
from typing import Any, Final, Literal, Protocol

from runner.authoring import context

Effect = Callable[[], Any]
"""No arguments; gives JSON, or an awaitable of it."""


@dataclass(frozen=True, slots=True)
class Performed:
    """The effect has happened, and this is what it gave."""

    value: Any = None


class Verdict(Enum):
    NOT_PERFORMED = "not performed"
    UNKNOWN = "unknown"


NOT_PERFORMED: Final = Verdict.NOT_PERFORMED
"""It has not happened and will not happen by itself any more: perform it now."""
UNKNOWN: Final = Verdict.UNKNOWN

Verify = Callable[[], Any]
"""Gives `Performed | NOT_PERFORMED | UNKNOWN`, or an awaitable of it. What it raises is raised on
and leaves everything as it was."""


class NotPerformed(Exception):
    """For `fn` to raise: nothing has happened outside, and trying again is right."""


class OutcomeRefused(Exception):
    """What `fn` returned cannot be stored, so nobody can give it again. The effect has happened."""


class Performer(Protocol):
    """Performs the guarded effects of one execution: the runner's, or a rehearsal's."""

    async def perform(
        self, key: str, fn: Effect, verify: Verify | None, permission: str | None
    ) -> Any: ...

    def perform_sync(
        self, key: str, fn: Effect, verify: Verify | None, permission: str | None
    ) -> Any: ...


current: ContextVar[Performer] = ContextVar("performer")
"""Set by the runner for each execution; LangGraph copies it into nodes' tasks and threads."""


@dataclass(frozen=True, slots=True)
class Outside:
    """An effect as the outside system knows it. `check` raises LeaseLost in a process that has lost
    the run meanwhile."""

    key: str
    check: Callable[[], None]


outside: ContextVar[Outside] = ContextVar("outside")
"""Set while `fn` or `verify` is executed."""


async def guarded(
    key: str, fn: Effect, verify: Verify | None = None, *, permission: str | None = None
) -> Any:
    """Perform `fn` at most once in this run; what it returned the first time.

    Raises what `fn` and `verify` raise, OutcomeRefused, ValueError for an unusable key, and
    RuntimeError outside of a run.
    """
    return await _performer().perform(key, fn, verify, permission)


def guarded_sync(
    key: str, fn: Effect, verify: Verify | None = None, *, permission: str | None = None
) -> Any:
    """`guarded` for sync nodes and tools, which LangGraph runs in threads; blocks the thread."""
    return _performer().perform_sync(key, fn, verify, permission)


def effect_key() -> str:
    """Inside `fn` and `verify`: the same on every execution of this effect, in no other, 36
    characters. For the outside system's idempotency key.

    Raises LeaseLost where this process may not go on, having stood still for too long: let it pass.
    """
    effect = outside.get(None)
    if effect is None:
        raise RuntimeError("effect_key() is for use inside a guarded effect and its verify")
    effect.check()
    return effect.key


def outside_key_of(run_id: str, key: str) -> str:
    return "eff_" + blake2b(f"{run_id}\x1f{key}".encode(), digest_size=16).hexdigest()


@contextmanager
def rehearsal() -> Iterator[None]:
    """For tests of a graph by plain LangGraph, without Steadyrun: within this block each key's
    effect is performed once, and facts and a summary are remembered; nothing survives the block."""
    token, memory = current.set(_Rehearsal()), context.current.set(context.Rehearsed())
    try:
        yield
    finally:
        context.current.reset(memory)
        current.reset(token)


class _Rehearsal:
    def __init__(self) -> None:
        self._outcomes: dict[str, Any] = {}

    async def perform(
        self, key: str, fn: Effect, verify: Verify | None, permission: str | None
    ) -> Any:
        if key not in self._outcomes:
            with performing("rehearsal", key, lambda: None):
                made = fn()
                self._outcomes[key] = await made if isawaitable(made) else made
        return self._outcomes[key]

    def perform_sync(
        self, key: str, fn: Effect, verify: Verify | None, permission: str | None
    ) -> Any:
        if key not in self._outcomes:
            with performing("rehearsal", key, lambda: None):
                self._outcomes[key] = fn()
        return self._outcomes[key]


@contextmanager
def performing(run_id: str, key: str, check: Callable[[], None]) -> Iterator[None]:
    """`effect_key()` works in here."""
    token = outside.set(Outside(outside_key_of(run_id, key), check))
    try:
        yield
    finally:
        outside.reset(token)


def _performer() -> Performer:
    performer = current.get(None)
    if performer is None:
        raise RuntimeError(
            "guarded effects work inside a node or tool of a run that Steadyrun executes"
            " (in a thread of your own: start it with contextvars.copy_context())"
        )
    return performer


Answer = Performed | Literal[Verdict.NOT_PERFORMED, Verdict.UNKNOWN]
