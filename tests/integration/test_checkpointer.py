"""The fenced checkpointer on a real Postgres (invariant I3)."""

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import psycopg
import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, ChannelVersions, empty_checkpoint
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from psycopg.conninfo import make_conninfo

from common.errors import LeaseLost, Unavailable
from runner.checkpointer import FencedSaver
from runner.sessions import Sessions
from tests.support.proxy import Proxy
from tests.support.until import until

NAMED: dict[str, Any] = {"application_name": "steadyrun:test", "size": 4}


@dataclass
class Store:
    """A schema of its own: `runs` with the columns of the fence, and LangGraph's tables."""

    url: str
    pool: Sessions

    async def run(self, *, epoch: int = 1, status: str = "running") -> str:
        run_id = f"run_{uuid4().hex}"
        await self.sql("INSERT INTO runs VALUES (%s, %s, %s)", run_id, epoch, status)
        return run_id

    async def sql(self, statement: Any, *values: Any) -> list[dict[str, Any]]:
        async with self.pool.connection() as connection:
            cursor = await connection.execute(statement, values)
            return await cursor.fetchall() if cursor.description else []

    async def count(self, thread_id: str) -> int:
        rows = await self.sql(
            "SELECT (SELECT count(*) FROM checkpoints WHERE thread_id = %s)"
            " + (SELECT count(*) FROM checkpoint_writes WHERE thread_id = %s)"
            " + (SELECT count(*) FROM checkpoint_blobs WHERE thread_id = %s) AS n",
            *[thread_id] * 3,
        )
        return int(rows[0]["n"])

    async def writers_waiting(self) -> int:
        rows = await self.sql(
            "SELECT count(*) AS n FROM pg_stat_activity"
            " WHERE application_name = 'steadyrun:test' AND wait_event_type = 'Lock'"
        )
        return int(rows[0]["n"])


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        await connection.execute("DROP SCHEMA IF EXISTS fence CASCADE")
        await connection.execute("CREATE SCHEMA fence")
    url = fenced(database_url)
    async with Sessions(url, application_name="steadyrun:test", size=4) as pool:
        store = Store(url, pool)
        await store.sql("CREATE TABLE runs (id text PRIMARY KEY, epoch int, status text)")
        await FencedSaver(pool, "none", 0).setup()
        yield store


def fenced(url: str) -> str:
    return make_conninfo(url, options="-csearch_path=fence")


class State(TypedDict, total=False):
    log: Annotated[list[str], lambda a, b: a + b]


def chain(*nodes: str, ran: list[str], before: Any = None) -> Any:
    def node(name: str) -> Any:
        async def step(state: State) -> State:
            if before is not None:
                await before(name)
            ran.append(name)
            return {"log": [name]}

        return step

    builder = StateGraph(State)
    for name in nodes:
        builder.add_node(name, node(name))
    for one, two in zip((START, *nodes), (*nodes, END), strict=True):
        builder.add_edge(one, two)
    return builder


def at(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}


def metadata() -> Any:
    return {"source": "loop", "step": 1, "parents": {}}


async def put(saver: FencedSaver, thread_id: str, **values: Any) -> Any:
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = values
    versions: ChannelVersions = dict.fromkeys(values, "1")
    checkpoint["channel_versions"] = dict(versions)
    return await saver.aput(at(thread_id), checkpoint, metadata(), versions)


async def test_it_passes_langgraphs_own_suite(store: Store) -> None:
    from langgraph.checkpoint.conformance import checkpointer_test, validate

    @checkpointer_test(name="FencedSaver")
    async def factory() -> AsyncIterator[BaseCheckpointSaver[Any]]:
        yield FencedSaver(store.pool, await store.run(), 1)

    report = await validate(factory)
    failed = {name: r.failures for name, r in report.results.items() if r.passed is False}
    passed = {str(name) for name, r in report.results.items() if r.passed}
    assert failed == {}
    assert {"put", "put_writes", "get_tuple", "list", "delete_thread", "prune"} <= passed


async def test_a_graph_runs_and_reads_back_what_it_wrote(store: Store) -> None:
    saver = FencedSaver(store.pool, await store.run(), 1)
    graph = chain("a", "b", ran=[]).compile(checkpointer=saver)
    await graph.ainvoke({"log": ["in"]}, at("conv_1"), durability="sync")
    assert (await graph.aget_state(at("conv_1"))).values == {"log": ["in", "a", "b"]}


async def test_primitive_values_and_big_ones_survive(store: Store) -> None:
    saver = FencedSaver(store.pool, await store.run(), 1)
    for size in (1, 300_000, 300_000):  # the third is serialised in a thread
        values = {"text": "x", "number": 1.5, "none": None, "flag": False, "list": ["y" * size]}
        written = await put(saver, f"conv_{size}", **values)
        read = await saver.aget_tuple(written)
        assert read is not None
        assert read.checkpoint["channel_values"] == values


@pytest.mark.parametrize("value", ["a\0b", float("inf"), float("-inf"), 1e20, 1e308, 2.5e-300])
async def test_primitive_values_that_jsonb_cannot_keep_survive(store: Store, value: Any) -> None:
    saver = FencedSaver(store.pool, await store.run(), 1)
    read = await saver.aget_tuple(await put(saver, "conv_odd", value=value))
    assert read is not None
    kept = read.checkpoint["channel_values"]["value"]
    assert (type(kept), kept) == (type(value), value)


async def test_half_a_surrogate_pair_does_not_fail_a_checkpoint(store: Store) -> None:
    saver = FencedSaver(store.pool, await store.run(), 1)
    read = await saver.aget_tuple(await put(saver, "conv_half", value="half \ud83d"))
    assert read is not None
    assert read.checkpoint["channel_values"]["value"] == "half ?"  # as LangGraph has it elsewhere


async def test_a_number_that_is_none_survives(store: Store) -> None:
    saver = FencedSaver(store.pool, await store.run(), 1)
    read = await saver.aget_tuple(await put(saver, "conv_nan", value=float("nan")))
    assert read is not None
    assert math.isnan(read.checkpoint["channel_values"]["value"])


@pytest.mark.parametrize(
    ("epoch", "status"),
    [(2, "running"), (1, "completed"), (1, "queued"), (1, "interrupted"), (1, "cancelled")],
)
async def test_nothing_is_written_by_who_does_not_hold_the_run(
    store: Store, epoch: int, status: str
) -> None:
    saver = FencedSaver(store.pool, await store.run(epoch=epoch, status=status), 1)
    with pytest.raises(LeaseLost):
        await put(saver, "conv_1", messages=["a"])
    with pytest.raises(LeaseLost):
        await saver.aput_writes(
            {"configurable": {**at("conv_1")["configurable"], "checkpoint_id": "1"}},
            [("messages", "a")],
            "step",
        )
    assert await store.count("conv_1") == 0


async def test_no_write_passes_when_the_run_does_not_exist(store: Store) -> None:
    with pytest.raises(LeaseLost):
        await put(FencedSaver(store.pool, "run_unknown", 1), "conv_1", messages=["a"])


async def waiting_writer(store: Store, run_id: str) -> asyncio.Task[Any]:
    """A write that stands behind an open claim."""
    writer = asyncio.create_task(
        put(FencedSaver(store.pool, run_id, 1), "conv_1", messages=["late"])
    )
    while not await store.writers_waiting():
        assert not writer.done()
        await asyncio.sleep(0)
    return writer


async def test_a_write_that_meets_an_uncommitted_claim_waits_and_is_refused(store: Store) -> None:
    run_id = await store.run()
    async with await psycopg.AsyncConnection.connect(store.url) as claim:
        await claim.execute("UPDATE runs SET epoch = 2 WHERE id = %s", [run_id])
        writer = await waiting_writer(store, run_id)
        await claim.commit()
    with pytest.raises(LeaseLost):
        await writer
    assert await store.count("conv_1") == 0


async def test_a_write_that_meets_a_claim_that_is_rolled_back_goes_through(store: Store) -> None:
    run_id = await store.run()
    async with await psycopg.AsyncConnection.connect(store.url) as claim:
        await claim.execute("UPDATE runs SET epoch = 2 WHERE id = %s", [run_id])
        writer = await waiting_writer(store, run_id)
        await claim.rollback()
    await writer
    assert await store.count("conv_1") == 2


async def test_late_writes_of_many_epochs_are_all_refused(store: Store) -> None:
    run_id = await store.run()
    late = 0

    async def write(epoch: int, wrote: asyncio.Event) -> None:
        saver = FencedSaver(store.pool, run_id, epoch)
        for _ in range(50):
            try:
                await put(saver, f"conv_{epoch}", messages=["x"])
            except LeaseLost:
                return
            wrote.set()

    for epoch in range(1, 9):
        wrote = asyncio.Event()
        writers = [asyncio.create_task(write(epoch, wrote)) for _ in range(3)]
        await wrote.wait()
        await store.sql("UPDATE runs SET epoch = %s WHERE id = %s", epoch + 1, run_id)
        seen = await store.count(f"conv_{epoch}")
        await asyncio.gather(*writers)
        late += await store.count(f"conv_{epoch}") - seen
    assert late == 0


async def test_a_fenced_out_runner_stops_at_the_next_step(store: Store) -> None:
    """durability="sync" is part of the fence: with the others all five nodes would run."""
    run_id, ran = await store.run(), list[str]()

    async def raise_epoch(name: str) -> None:
        if name == "two":
            await store.sql("UPDATE runs SET epoch = 2 WHERE id = %s", run_id)

    builder = chain("one", "two", "three", "four", ran=ran, before=raise_epoch)
    graph = builder.compile(checkpointer=FencedSaver(store.pool, run_id, 1))
    with pytest.raises(LeaseLost):
        await graph.ainvoke({"log": []}, at("conv_1"), durability="sync")
    assert ran == ["one", "two"]


async def test_an_interrupt_is_answered_under_the_next_epoch(store: Store) -> None:
    async def ask(state: State) -> State:
        return {"log": [interrupt("which?")]}

    builder = StateGraph(State).add_node("ask", ask).add_edge(START, "ask")
    run_id = await store.run()
    first = builder.compile(checkpointer=FencedSaver(store.pool, run_id, 1))
    await first.ainvoke({"log": []}, at("conv_1"), durability="sync")
    await store.sql("UPDATE runs SET epoch = 2 WHERE id = %s", run_id)
    second = builder.compile(checkpointer=FencedSaver(store.pool, run_id, 2))
    pending = (await second.aget_state(at("conv_1"))).interrupts
    answer: Command[Any] = Command(resume={pending[0].id: "this"})
    assert await second.ainvoke(answer, at("conv_1"), durability="sync") == {"log": ["this"]}


async def test_a_broken_connection_is_not_the_end_of_a_run(store: Store) -> None:
    saver = FencedSaver(store.pool, await store.run(), 1)
    async with await psycopg.AsyncConnection.connect(store.url, autocommit=True) as other:
        cursor = await other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'steadyrun:test'"
        )
        assert await cursor.fetchall()
    await put(saver, "conv_1", messages=["a"])
    assert await store.count("conv_1") == 2


async def test_a_server_that_stays_away_is_told_as_unavailable(unused_tcp_port: int) -> None:
    url = f"postgresql://u:secret@127.0.0.1:{unused_tcp_port}/x"
    async with Sessions(url, application_name="steadyrun:test", size=1) as nowhere:
        saver = FencedSaver(nowhere, "run_1", 1, patience_s=0.2)
        with pytest.raises(Unavailable, match="Postgres cannot be reached"):
            await put(saver, "conv_1", messages=["a"])
        with pytest.raises(Unavailable):
            await saver.aget_tuple(at("conv_1"))


async def test_a_graph_waits_at_its_checkpoint_until_postgres_is_back(
    store: Store, database_url: str
) -> None:
    """Reads and writes; the moment that somebody listens again they go through."""
    async with Proxy(database_url) as network, Sessions(fenced(network.url), **NAMED) as sessions:
        saver = FencedSaver(sessions, await store.run(), 1)
        await put(saver, "conv_1", messages=["a"])
        network.refusing = True
        await network.cut()
        tried = network.accepted
        writing = asyncio.create_task(put(saver, "conv_1", messages=["a", "b"]))
        reading = asyncio.create_task(saver.aget_tuple(at("conv_1")))
        await until(lambda: network.accepted > tried + 6)
        assert not writing.done()
        assert not reading.done()
        network.refusing = False
        await asyncio.wait_for(asyncio.gather(writing, reading), 5)


async def test_a_graph_that_is_cancelled_does_not_wait_for_a_silent_postgres(
    store: Store, database_url: str
) -> None:
    async with Proxy(database_url) as network, Sessions(fenced(network.url), **NAMED) as sessions:
        saver = FencedSaver(sessions, await store.run(), 1)
        await put(saver, "conv_1", messages=["a"])
        network.stall()
        writing = asyncio.create_task(put(saver, "conv_1", messages=["a", "b"]))
        await asyncio.wait({writing}, timeout=0.1)
        writing.cancel()
        assert await asyncio.wait({writing}, timeout=1.0) == ({writing}, set())
        assert writing.cancelled()
        await sessions.close()
        network.resume()


async def test_no_fault_of_postgres_is_an_error_of_the_graph(store: Store) -> None:
    """Full, stopping, starting, too slow, read-only: all may succeed later."""
    await store.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE EXCEPTION 'no' USING ERRCODE = (SELECT state FROM fault); END$$"
    )
    await store.sql("CREATE TABLE fault (state text)")
    await store.sql("INSERT INTO fault VALUES ('')")
    await store.sql("CREATE TRIGGER refuse BEFORE INSERT ON checkpoints EXECUTE FUNCTION refuse()")
    saver = FencedSaver(store.pool, await store.run(), 1, patience_s=0.01)
    for state in ["53300", "57P01", "57P03", "57014", "40P01", "25006", "25P03", "55P03", "08006"]:
        await store.sql("UPDATE fault SET state = %s", state)
        with pytest.raises(Unavailable):
            await put(saver, "conv_1", messages=["a"])


async def test_a_busy_pool_is_unavailable_and_recovers(store: Store) -> None:
    async with Sessions(store.url, **{**NAMED, "size": 1, "timeout_s": 0.05}) as sessions:
        async with sessions.connection():
            with pytest.raises(Unavailable):
                async with sessions.connection():
                    pass
        async with sessions.connection() as session:
            await session.execute("SELECT 1")


async def test_the_fence_reads_rows_as_they_are(store: Store) -> None:
    """A saver is made for one epoch: that of another run's same number does not count."""
    mine, other = await store.run(epoch=3), await store.run(epoch=1)
    await put(FencedSaver(store.pool, other, 1), "conv_1", messages=["a"])
    with pytest.raises(LeaseLost) as refused:
        await put(FencedSaver(store.pool, mine, 1), "conv_1", messages=["a"])
    assert (refused.value.run_id, refused.value.epoch) == (mine, 1)
