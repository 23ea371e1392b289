"""Opens the log of a claimed run, so that its first event can leave.

A run that never had an owner begins at 1 without asking anybody. Every other log is taken over:
the tail that only Redis has is archived first, then decisions that nobody has told yet and
`run_resumed` are stored in one transaction that also notes which Redis it is and reserves numbers.
In between the whole log is folded into the run's page: what earlier owners have shown.
"""

import asyncio
from collections.abc import Callable

from common.db import interrupts, runs
from common.db.engine import Connection
from common.db.runs import ClaimedRun
from common.errors import LeaseLost, Unavailable
from common.events import Event
from common.ownership import Opened, open_log, read_page, resolved_event
from common.page import Page
from runner.kit import Kit
from runner.outlet import NEVER, Outlet
from runner.writer import RunWriter

# a dead runner's un-archived tail is worth waiting for; after that the numbers jump (contract §3)
TAIL_PATIENCE_S = 10.0


async def open_outlet(
    kit: Kit,
    run: ClaimedRun,
    page: Page,
    discard: Callable[[Page], list[str]],
    *,
    on_lost: Callable[[], None],
    stopped: Callable[[], bool],
    hurried: Callable[[], bool],
) -> Outlet:
    """The outlet, with `run_started` or `run_resumed` in it, and `page` as it is then.

    Raises LeaseLost, and Unavailable, also when `stopped` while a server is waited for. `hurried`:
    Redis is not waited for, since the run is about to be cancelled.
    """
    if run.epoch == 1:
        return _begin(kit, run, on_lost)
    opened, generation = await _take_over(kit, run, stopped, hurried)
    await read_page(page, run.id, kit.db.connect)
    first = _first_events(run, opened, discard(page))
    outlet = kit.publisher.outlet(_writer(kit, run, opened), generation=generation, on_lost=on_lost)
    try:
        await _tell_take_over(kit, run, outlet, opened, first)
        page.apply(first)
    except BaseException:
        outlet.lose()
        raise
    return outlet


def _begin(kit: Kit, run: ClaimedRun, on_lost: Callable[[], None]) -> Outlet:
    opened = Opened(top=0, next_sequence=1, trusted=True)
    outlet = kit.publisher.outlet(
        _writer(kit, run, opened), generation=NEVER, on_lost=on_lost, noted=run.redis_identity
    )
    outlet.emit([_started(run)])
    return outlet


def _writer(kit: Kit, run: ClaimedRun, opened: Opened) -> RunWriter:
    block = kit.settings.sequence_block
    return RunWriter(
        run.id,
        run.epoch,
        top=opened.top,
        archived=opened.top,
        next_sequence=opened.next_sequence,
        reserved=opened.next_sequence - 1 + (block if run.epoch == 1 else 0),
        block=block,
        batch_bytes_max=kit.settings.publish_batch_bytes_max,
    )


async def _take_over(
    kit: Kit, run: ClaimedRun, stopped: Callable[[], bool], hurried: Callable[[], bool]
) -> tuple[Opened, int]:
    """The generation is that of the connection on which the log was opened."""
    loop = asyncio.get_running_loop()
    patience_s = TAIL_PATIENCE_S if run.resume_reason == "failover" else 0.0
    deadline = loop.time() + patience_s
    while True:
        try:
            await kit.bus_log.connect()
            generation = kit.bus_log.generation
            return await open_log(kit.db, kit.bus_log, run), generation
        except Unavailable as error:
            if error.what == "Redis" and (hurried() or loop.time() >= deadline):
                return _without_redis(run), NEVER
            if stopped():
                raise
        await asyncio.sleep(0.1)


def _without_redis(run: ClaimedRun) -> Opened:
    """Go on above every number that can have been seen; the archive is where readers look."""
    top = run.archived
    return Opened(top=top, next_sequence=max(top, run.previous_reserved) + 1, trusted=False)


async def _tell_take_over(
    kit: Kit, run: ClaimedRun, outlet: Outlet, opened: Opened, first: list[Event]
) -> None:
    async with kit.db.connect() as conn:
        untold = await interrupts.untold(conn, run.id)
    upto = outlet.writer.next_block + len(untold)

    async def change(conn: Connection, last: int) -> None:
        identity = kit.bus_log.identity or None
        if not await runs.note_identity(conn, run.id, run.epoch, identity, upto):
            raise LeaseLost(run.id, run.epoch)
        await interrupts.mark_told(conn, run.id, run.epoch, [row.id for row in untold])

    resolved = [resolved_event(row) for row in untold]
    # numbers jump at `run_resumed` only (contract §3), so there it is the first
    events = [*resolved, *first] if opened.trusted else [*first, *resolved]
    await outlet.settle(events, change, leaves=False)
    outlet.writer.reserve(upto)


def _first_events(run: ClaimedRun, opened: Opened, discard: list[str]) -> list[Event]:
    """Where nobody was told anything, or that may be lost, the run begins to be told now."""
    began = [_started(run)] if opened.top == 0 else []
    if began and opened.trusted:
        return began
    reason = run.resume_reason or "failover"
    return [Event("run_resumed", {"reason": reason, "discard": discard}), *began]


def _started(run: ClaimedRun) -> Event:
    return Event("run_started", {"conversationId": run.conversation_id, "graph": run.graph})
