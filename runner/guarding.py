"""Keeps what a user's node does from ending the process, and knows what of it is under way.

asyncio lets SystemExit and KeyboardInterrupt of a task out of the event loop, LangGraph and task
groups let every error through that is no `Exception` (a panic of a library in Rust is one), and a
loop that cannot show what a callback failed with ends. LangGraph runs each node in a task of its
own. So tasks that are made inside an execution turn all of these into an ordinary error; a run
fails then, and its neighbours go on.

Sync nodes and tools are executed by threads of the loop's executor, and a cancelled task leaves its
thread behind. `Threads` counts them by execution; calls of ours never wait behind the user's.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")


class NodeExited(Exception):
    """A node asked the interpreter to exit, or raised what is no `Exception`."""


class Unprintable(Exception):
    """A node raised an error, or asked a question, that has no `repr`: nested too deeply, say."""


class Work:
    """What one execution has under way in threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0

    @property
    def calls(self) -> int:
        """Calls in threads that have begun and not ended."""
        return self._calls

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **kwargs: Any) -> Any:
            self._count(1)
            try:
                return call(*args, **kwargs)
            finally:
                self._count(-1)

        return counting

    def _count(self, difference: int) -> None:
        with self._lock:
            self._calls += difference


_work: ContextVar[Work | None] = ContextVar("work", default=None)


def enter_graph(work: Work) -> None:
    """From here on, in this task and those it makes, exits are errors and threads are counted."""
    _work.set(work)


def counted(call: Callable[[], T]) -> Callable[[], T]:
    """For a thread of its own: counted as those of the loop's executor are."""
    work = _work.get()
    return call if work is None else work.counted(call)


@contextmanager
def outside_graph() -> Iterator[None]:
    """For what we do ourselves in the midst of a graph."""
    token = _work.set(None)
    try:
        yield
    finally:
        _work.reset(token)


class Threads(ThreadPoolExecutor):
    """The default executor of a runner's loop.

    Ours have a pool of their own: a sync node that calls a subgraph waits in its thread for a
    checkpoint, and that must not wait in turn until the thread of a node is free.
    """

    def __init__(self, size: int, ours: int = 8) -> None:
        super().__init__(size, thread_name_prefix="graph")
        self._ours = ThreadPoolExecutor(ours, thread_name_prefix="steadyrun")

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if (work := _work.get()) is None:
            return self._ours.submit(fn, *args, **kwargs)
        return super().submit(work.counted(fn), *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._ours.shutdown(wait, cancel_futures=cancel_futures)
        super().shutdown(wait, cancel_futures=cancel_futures)


def task_factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> "asyncio.Task[Any]":
    """For `loop.set_task_factory` of a runner."""
    if _work.get() is None:
        return asyncio.Task(coro, loop=loop, **options)
    task = asyncio.Task(_exits_are_errors(coro), loop=loop, **options)
    # one that is cancelled before it begins never comes to `coro`, which would be warned of
    task.add_done_callback(lambda _: coro.close())
    return task


async def _exits_are_errors(coro: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coro
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except Exception as error:
        if _is_printable(error):
            raise
        raise Unprintable(type(error).__name__) from None
    except BaseException as error:
        raise NodeExited(type(error).__name__) from error


_ROOM = 50  # levels that whoever prints an error has around it: the task, a list of tasks


def _is_printable(error: Exception) -> bool:
    """Also with what its printers add to it. Python gives up at about 1,000 levels."""
    shown: Any = error
    for _ in range(_ROOM):
        shown = [shown]
    try:
        repr(shown)
    except Exception:  # whatever a user's `__repr__` raises
        return False
    return True
