"""The same graph without Steadyrun: `python -m runner.graphs.load.bare`, for `steadyrun load`.

What a program pays that runs the graph itself, with LangGraph's own saver on Postgres at durability
sync, and takes the streamed parts: the measure of what Steadyrun adds. For every line
`<runs> <kind> <events>` on standard input it prints a line of JSON: `{"cpuS": …, "wallS": …}`, of
this process only.
"""

import asyncio
import json
import os
import sys
import time
import uuid
from dataclasses import asdict
from typing import Any, cast

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph.state import CompiledStateGraph

from runner.graphs.load.graph import Order, graph

CONCURRENT = 4
Compiled = CompiledStateGraph[Any, Any, Any, Any]


async def main(database_url: str) -> None:
    async with AsyncPostgresSaver.from_conn_string(database_url) as saver:
        await saver.setup()
        compiled = cast(Compiled, graph.compile(checkpointer=saver))
        while line := await asyncio.to_thread(sys.stdin.readline):
            runs, kind, events = line.split()
            order = Order(kind=cast(Any, kind), events=int(events))
            sys.stdout.write(json.dumps(await _measure(compiled, order, int(runs))) + "\n")
            sys.stdout.flush()


async def _measure(compiled: Compiled, order: Order, runs: int) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    threads = iter([uuid.uuid4().hex for _ in range(runs)])
    await asyncio.gather(*(_work(compiled, order, threads) for _ in range(CONCURRENT)))
    return {"cpuS": time.process_time() - cpu, "wallS": time.perf_counter() - wall}


async def _work(compiled: Compiled, order: Order, threads: Any) -> None:
    said = {"messages": [("user", json.dumps(asdict(order)))]}
    for thread in threads:
        stream = compiled.astream(
            said,
            {"configurable": {"thread_id": thread}},
            stream_mode=["messages", "custom"],
            durability="sync",
        )
        async for _ in stream:
            pass


if __name__ == "__main__":
    asyncio.run(main(os.environ["DATABASE_URL"]))
