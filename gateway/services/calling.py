"""Calling what a graph's author wrote, inside a gateway: bounded in time and in threads.

The code may block, raise, exit, hang or swallow its cancellation. Sync code gets a daemon thread,
so that one that never returns neither holds what the loop's executor is needed for nor the end of
the process; so many may hang, then further calls wait for a place until their time is over. A task
that does not end when it is cancelled is left behind. Nothing of an error's text is told: it may
hold a secret, and goes to the log only, masked.
"""

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any

import structlog

from common.errors import Refused

logger = structlog.get_logger(__name__)

Act = Callable[..., Any]
_THREADS_MAX = 32
_ANY_ERROR = (Exception, SystemExit, KeyboardInterrupt)  # an exit would end the gateway


class Late(Refused):
    """It did not answer in time."""


class AuthorCode:
    """One a process, for all its graphs."""

    def __init__(self, timeout_s: float, threads_max: int = _THREADS_MAX) -> None:
        self._timeout_s = timeout_s
        self._places = asyncio.Semaphore(threads_max)
        self._running: set[asyncio.Task[_Ended]] = set()

    async def call(
        self, what: str, act: Act, *arguments: Any, expects: tuple[type[Exception], ...] = ()
    ) -> Any:
        """What it returns; raises what it `expects` as it is, and Refused UNAVAILABLE for all else.

        `what` names it to the person: "the guard's reload".
        """
        task = asyncio.create_task(self._ended(act, *arguments))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await asyncio.wait({task}, timeout=self._timeout_s)
        finally:
            task.cancel()
        if not task.done():
            raise self._late(what, act)
        error = _Cancelled() if task.cancelled() else task.result().error
        if isinstance(error, expects):
            raise error
        if error is not None:
            raise failed(what, act, error) from error
        return task.result().value

    async def _ended(self, act: Act, *arguments: Any) -> "_Ended":
        try:
            return _Ended(value=await self._called(act, *arguments))
        except _ANY_ERROR as error:
            return _Ended(error=error)

    async def _called(self, act: Act, *arguments: Any) -> Any:
        if inspect.iscoroutinefunction(act):
            return await act(*arguments)
        found = await self._in_thread(act, *arguments)
        return await found if inspect.isawaitable(found) else found

    async def _in_thread(self, act: Act, *arguments: Any) -> Any:
        await self._places.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def settle(ended: _Ended) -> None:
            self._places.release()
            if not future.done():
                future.set_result(ended)

        def work() -> None:
            try:
                ended = _Ended(value=context.run(act, *arguments))
            except _ANY_ERROR as error:
                ended = _Ended(error=error)
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, ended)

        Thread(target=work, name="author", daemon=True).start()
        ended: _Ended = await future
        if ended.error is not None:
            raise ended.error
        return ended.value

    def _late(self, what: str, act: Act) -> Refused:
        logger.error("a graph author's code did not answer in time", what=what, act=_name(act))
        within = f"within {self._timeout_s:g} s"
        return Late("UNAVAILABLE", f"{what} did not answer {within}; nothing was decided")


@dataclass(frozen=True, slots=True)
class _Ended:
    """A value or an error, so that no exit leaves a task and with it the loop."""

    value: Any = None
    error: BaseException | None = None


class _Cancelled(Exception):
    """The code raised a cancellation of its own."""


def failed(what: str, act: Act, error: BaseException) -> Refused:
    logger.error("a graph author's code failed", what=what, act=_name(act), exc_info=error)
    return Refused("UNAVAILABLE", f"{what} failed; nothing was decided")


def _name(act: Act) -> str:
    return str(getattr(act, "__qualname__", type(act).__name__))
