"""Keeps what a user's node raises from ending the process.

asyncio lets SystemExit and KeyboardInterrupt of a task out of the event loop, and LangGraph runs
each node in a task of its own. So tasks that are made inside an execution turn them into an
ordinary error; a run fails then, and its neighbours go on.
"""

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any

_in_graph: ContextVar[bool] = ContextVar("in_graph", default=False)


class NodeExited(Exception):
    """A node asked the interpreter to exit."""


def enter_graph() -> None:
    """From here on, in this task and those it makes, exits are errors."""
    _in_graph.set(True)


def task_factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> "asyncio.Task[Any]":
    """For `loop.set_task_factory` of a runner."""
    guarded = _exits_are_errors(coro) if _in_graph.get() else coro
    return asyncio.Task(guarded, loop=loop, **options)


async def _exits_are_errors(coro: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coro
    except (SystemExit, KeyboardInterrupt) as error:
        raise NodeExited(type(error).__name__) from error
