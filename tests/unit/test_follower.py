"""A reader whose servers do not answer: it stays attentive, and never has two reads under way."""

import asyncio

from common.batch import Batch
from gateway.services.follower import Follower, Topic
from gateway.services.ring import NOTHING

BATCH = Batch(0, 1, 1, 1, "run", b"id: 1\nevent: done\ndata: {}\n\n")


class Silent:
    """Shelf whose log is read only when `answer` is set."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()
        self.reads = 0

    def read(self, topic: Topic, after: int, count: int) -> "asyncio.Task[list[Batch]]":
        self.reads += 1
        return asyncio.create_task(self._read())

    def leave(self, topic: Topic, follower: Follower) -> None:
        pass

    async def _read(self) -> list[Batch]:
        await self.answer.wait()
        return [BATCH]


async def test_heartbeats_and_drains_do_not_wait_for_a_server_that_does_not_answer() -> None:
    shelf, topic = Silent(), Topic("run_x", 1 << 16)
    follower = Follower(shelf, topic, 0, "end")
    for _ in range(3):
        reading = asyncio.create_task(follower.next())
        await asyncio.sleep(0)
        topic.changed()  # a reason to look again, but not before the first look is over
        follower.interrupt()
        async with asyncio.timeout(10):
            assert await reading == NOTHING
    assert shelf.reads == 1
    shelf.answer.set()
    portion = await follower.next()
    assert (portion.frames, portion.ends) == (BATCH.frames, "run")


async def test_a_reader_that_is_cancelled_leaves_the_read_to_others() -> None:
    shelf = Silent()
    follower = Follower(shelf, Topic("run_x", 1 << 16), 0, "end")
    reading = asyncio.create_task(follower.next())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait({reading})
    shelf.answer.set()
    assert (await follower.next()).frames == BATCH.frames
