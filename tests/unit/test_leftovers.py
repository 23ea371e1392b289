"""Code that goes on after its run: when it counts as stuck."""

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor

from runner.ending import BEAT_INTERVAL_S, LoopWatch
from runner.guarding import Threads, Work, enter_graph, outside_graph, task_factory
from runner.leftovers import Leftovers


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def _nothing() -> None:
    return None


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def test_code_that_has_ended_is_no_leftover() -> None:
    leftovers = Leftovers(1.0)
    task = asyncio.create_task(_nothing())
    await task
    leftovers.add("run", task, Work())
    assert len(leftovers) == 0


async def test_a_task_that_goes_on_longer_than_it_may_is_stuck() -> None:
    clock = Clock()
    leftovers = Leftovers(1.0, clock)
    task = asyncio.create_task(_for_ever())
    leftovers.add("run", task, Work())
    assert len(leftovers) == 1
    clock.now = 1.1
    assert await leftovers.watch() == "run"
    task.cancel()


async def test_a_thread_that_goes_on_after_its_task_is_a_leftover_until_it_ends() -> None:
    loop, released, work = asyncio.get_running_loop(), threading.Event(), Work()
    loop.set_default_executor(Threads(2))

    async def node() -> None:
        enter_graph(work)
        await asyncio.to_thread(released.wait)

    task = asyncio.create_task(node())
    while work.calls == 0:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    leftovers = Leftovers(1.0)
    leftovers.add("run", task, work)
    assert len(leftovers) == 1
    released.set()
    while len(leftovers):
        await asyncio.sleep(0)


async def test_our_calls_do_not_wait_for_threads_of_nodes() -> None:
    """A sync node that calls a subgraph waits for a checkpoint that is read in a thread."""
    loop, released = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(Threads(1))

    async def node() -> None:
        enter_graph(Work())
        sitting = asyncio.ensure_future(asyncio.to_thread(released.wait))
        await asyncio.sleep(0)
        with outside_graph():
            await asyncio.to_thread(released.set)
        await sitting

    async with asyncio.timeout(10):
        await asyncio.create_task(node())


async def test_a_task_that_is_cancelled_before_it_begins_leaves_no_warning() -> None:
    """Its coroutine "was never awaited": a lost run cancels many such tasks."""
    asyncio.get_running_loop().set_task_factory(task_factory)
    enter_graph(Work())
    node = _for_ever()
    task = asyncio.create_task(node)
    task.cancel()
    await asyncio.wait({task})
    await asyncio.sleep(0)
    assert inspect.getcoroutinestate(node) == inspect.CORO_CLOSED


def test_threads_are_what_asyncio_takes_for_an_executor() -> None:
    assert issubclass(Threads, ThreadPoolExecutor)


def test_a_loop_that_stands_still_ends_the_process() -> None:
    clock, ended = Clock(), list[int]()
    watch = LoopWatch(5.0, ended.append, clock)
    for _ in range(5):
        clock.now += BEAT_INTERVAL_S
        watch.look()
    assert ended == []
    clock.now += BEAT_INTERVAL_S
    watch.look()
    assert ended == [1]


def test_a_loop_that_beats_goes_on_and_so_does_a_process_that_was_stopped() -> None:
    clock, ended = Clock(), list[int]()
    watch = LoopWatch(5.0, ended.append, clock)
    for _ in range(20):
        clock.now += BEAT_INTERVAL_S
        watch.beat()
        watch.look()
    clock.now += 1000.0
    watch.look()
    assert ended == []
