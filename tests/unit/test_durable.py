"""A process dies between any two writes of LangGraph's checkpointer: what the state says then."""

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from runner import durable
from runner.breakpoints import Breakpoints
from runner.steps import Steps, run_config
from tests.support.graphs.small import Text

RUN = "run_1"


class Died(BaseException):
    """Instead of SIGKILL."""


class Mortal(InMemorySaver):
    """Dies before its n-th write of a checkpoint or of a step's result."""

    def __init__(self, lives: int) -> None:
        super().__init__()
        self.lives = lives

    def _live(self) -> None:
        self.lives -= 1
        if self.lives == 0:
            raise Died

    async def aput(self, *args: Any, **options: Any) -> Any:
        self._live()
        return await super().aput(*args, **options)

    async def aput_writes(self, *args: Any, **options: Any) -> None:
        self._live()
        await super().aput_writes(*args, **options)


def build(saver: Mortal, executed: list[str]) -> Any:
    def node(name: str) -> Any:
        def execute(state: Text) -> Text:
            executed.append(name)
            return {"said": [name]}

        return execute

    graph = StateGraph(Text).add_node("one", node("one")).add_node("two", node("two"))
    return graph.add_edge(START, "one").add_edge("one", "two").compile(checkpointer=saver)


@pytest.mark.parametrize("lives", range(1, 9))
async def test_a_run_is_finished_only_when_its_last_step_is_in_the_state(lives: int) -> None:
    executed: list[str] = []
    saver = Mortal(lives)
    graph = build(saver, executed)
    config = run_config(thread_id="t", run_id=RUN, steps=Steps())
    given: Any = {"input": "go"}
    for _ in range(4):
        snapshot = await graph.aget_state(config, subgraphs=True)
        state = durable.read(snapshot, RUN, Breakpoints.of_run(graph, {}))
        if state.finished:
            break
        try:
            await graph.ainvoke(None if state.input_applied else given, config, durability="sync")
        except Died:
            continue
    assert state.finished
    assert state.values["said"] == ["one", "two"]
