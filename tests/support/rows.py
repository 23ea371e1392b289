"""Rows for tests of common/db, made through its own functions."""

from typing import Any

from common.batch import Batch
from common.db import conversations, runners, runs
from common.db.engine import Connection
from common.db.interrupts import NewInterrupt
from common.db.runs import ClaimedRun, NewRun, Run
from common.events import Event, encode_frame
from common.ids import new_id, stable_id

USER = "ada"
GRAPH = "opspilot"
BLOCK = 1000


async def conversation(connection: Connection, user_id: str = USER) -> str:
    made = await conversations.create(
        connection, id=new_id("conv"), user_id=user_id, title="Pumps", graph=GRAPH
    )
    return made.id


def new_run(conversation_id: str, **values: Any) -> NewRun:
    given: dict[str, Any] = {
        "id": new_id("run"),
        "user_id": USER,
        "user_message_id": new_id("msg"),
        "graph": GRAPH,
        "content": "restart pump 7",
        "input": {"content": "restart pump 7", "inputFormat": "text"},
        "principal": {"user": USER, "permissions": ["pumps.restart"]},
        "metadata": {},
    }
    return NewRun(conversation_id=conversation_id, **{**given, **values})


async def queued_run(connection: Connection, **values: Any) -> Run:
    """In a conversation of its own."""
    run = await runs.create(connection, new_run(await conversation(connection), **values))
    assert run is not None
    return run


async def runner(connection: Connection, ttl_s: float = 60.0) -> str:
    runner_id = new_id("rnr")
    await runners.register(connection, id=runner_id, host="test", pid=1, capacity=16, ttl_s=ttl_s)
    return runner_id


async def claim(connection: Connection, runner_id: str, limit: int = 100) -> list[ClaimedRun]:
    return await runs.claim(connection, runner_id, [GRAPH], limit, BLOCK, "redis-1")


async def running_run(connection: Connection, **values: Any) -> ClaimedRun:
    """Held by a runner of its own."""
    run = await queued_run(connection, **values)
    claimed = await claim(connection, await runner(connection))
    return next(held for held in claimed if held.id == run.id)


def question(native_id: str = "native-1", asked: int = 0, **values: Any) -> NewInterrupt:
    given: dict[str, Any] = {
        "type": "confirm_action",
        "format": "opaque",
        "payload": {"question": "Restart pump 7?"},
        "allowed_decisions": ["approve", "reject"],
        "actions": [],
        "on_reject": "cancel",
        "on_expire": "cancel",
    }
    interrupt_id = values.pop("id", None) or stable_id("int", new_id("run"), native_id)
    return NewInterrupt(interrupt_id, native_id, asked, **{**given, **values})


def batch(first: int, last: int, *, after: int | None = None, epoch: int = 1) -> Batch:
    frames = b"".join(
        encode_frame(Event("custom", {"data": n}), run_id="run", sequence=n, epoch=epoch, at="now")
        for n in range(first, last + 1)
    )
    return Batch(first - 1 if after is None else after, first, last, epoch, "", frames)
