"""Calls what authors hand over: coroutine functions on the loop, everything else in a thread."""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from runner.guarding import counted

T = TypeVar("T")


async def called(fn: Callable[[], Any], check: Callable[[], None] = lambda: None) -> Any:
    """What `fn` gives: a coroutine function's on the loop, every other's in a thread of its own.
    `check` comes right before each piece of user code, in its thread; what it raises keeps that
    from being started."""

    def checked() -> Any:
        check()
        return fn()

    on_loop = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004
    )
    made = checked() if on_loop else await _in_thread(checked)
    if not inspect.isawaitable(made):
        return made
    if not on_loop:
        _check_or_close(check, made)
    return await made


def _check_or_close(check: Callable[[], None], made: Any) -> None:
    try:
        check()
    except Exception:
        if inspect.iscoroutine(made):
            made.close()
        raise


async def _in_thread(call: Callable[[], T]) -> T:
    """A thread of its own: those of the loop may all be waiting for effects (`guarded_sync`), and a
    call that never returns must not keep the process from exiting."""
    future: Future[T] = Future()
    call = counted(call)
    context = contextvars.copy_context()

    def root() -> None:
        try:
            future.set_result(context.run(call))
        except BaseException as error:
            with suppress(Exception):  # nobody waits any more
                future.set_exception(error)

    threading.Thread(target=root, name="effect", daemon=True).start()
    return await asyncio.wrap_future(future)
