"""The load graph, alone and in the process that it is compared with."""

from typing import Any, cast

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from deploy.load.client import Order
from deploy.load.measures import Bare
from runner.graphs.load.graph import graph


def said(order: Order) -> Any:
    return {"messages": [("user", order.content)]}


async def streamed(compiled: Any, given: Any, thread: str) -> list[str]:
    config = {"configurable": {"thread_id": thread}}
    parts = compiled.astream(given, config, stream_mode=["messages", "custom"])
    return [kind async for kind, part in parts if kind == "custom" or part[0].text]


@pytest.mark.parametrize(("kind", "mode"), [("tokens", "messages"), ("custom", "custom")])
async def test_as_many_events_are_emitted_as_ordered(kind: str, mode: str) -> None:
    compiled = cast(Any, graph).compile(checkpointer=InMemorySaver())
    kinds = await streamed(compiled, said(Order(kind, 30)), "t")
    assert kinds.count(mode) == 30


async def test_a_held_run_emits_nothing_before_it_is_released() -> None:
    compiled = cast(Any, graph).compile(checkpointer=InMemorySaver())
    assert await streamed(compiled, said(Order("custom", 5, hold=True)), "t") == []
    assert (await streamed(compiled, Command(resume=True), "t")).count("custom") == 5


def test_the_bare_graph_tells_what_it_costs(database_url: str) -> None:
    with Bare.opened(database_url) as bare:
        costs = [bare.run(2, Order(kind, 10)) for kind in ("tokens", "custom")]
    assert all(cost > 0 for cost in costs)
