"""Loading graphs: every kind of variable, our checkpointer, and clear refusals (contract §8)."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from common.errors import Misconfigured
from common.loading import load_module
from runner.registry import Registry

FLOW = """
from typing import TypedDict
from langgraph.graph import StateGraph, START
from langgraph.checkpoint.memory import InMemorySaver

class State(TypedDict, total=False):
    x: int

def step(state):
    return {"x": state.get("x", 0) + 1}

builder = StateGraph(State).add_node("step", step).add_edge(START, "step")
compiled = builder.compile(name="mine", interrupt_after=[])
own_saver = builder.compile(checkpointer=InMemorySaver())
seen = []

def factory():
    return builder

async def async_factory():
    return compiled

def with_config(config):
    seen.append(config)
    return compiled

async def with_optional_config(config=None):
    seen.append(config)
    return builder

def two(a, b): ...
def failing(): raise RuntimeError("no key\\nat all")
def wrong(): return 5
number = 7
broken = StateGraph(State).add_node("a", step)

async def context(run, principal):
    return {"run": run["id"], "user": principal["user"]}
"""


def write(folder: Path, *variables: str, **settings: Any) -> Path:
    (folder / "flow.py").write_text(FLOW)
    graphs = {name: f"./flow.py:{name}" for name in variables}
    ours = {"graphs": dict.fromkeys(variables, settings)}
    path = folder / "langgraph.json"
    path.write_text(json.dumps({"graphs": graphs, "steadyrun": ours}))
    return path


@pytest.mark.parametrize("variable", ["compiled", "builder", "factory", "async_factory"])
async def test_every_kind_of_variable_becomes_a_graph_with_our_checkpointer(
    tmp_path: Path, variable: str
) -> None:
    registry = Registry.load(write(tmp_path, variable))
    await registry.prepare()
    saver = InMemorySaver()
    graph = await registry.graph(variable, saver)
    assert graph.checkpointer is saver
    config: Any = {"configurable": {"thread_id": "t"}}
    assert await graph.ainvoke({"x": 1}, config) == {"x": 2}
    assert saver.get(config) is not None


async def test_attributes_of_a_compiled_graph_are_kept_and_it_is_not_changed(
    tmp_path: Path,
) -> None:
    registry = Registry.load(write(tmp_path, "compiled"))
    one = await registry.graph("compiled", InMemorySaver())
    two = await registry.graph("compiled", InMemorySaver())
    assert one.name == "mine"
    assert one.checkpointer is not two.checkpointer
    assert one.nodes is two.nodes


@pytest.mark.parametrize("variable", ["with_config", "with_optional_config"])
async def test_a_factory_that_takes_the_config_is_called_at_every_take_up(
    tmp_path: Path, variable: str
) -> None:
    registry = Registry.load(write(tmp_path, variable))
    await registry.prepare()
    config: Any = {"configurable": {"thread_id": "conv_1"}}
    await registry.graph(variable, InMemorySaver(), config)
    await registry.graph(variable, InMemorySaver(), config)
    assert load_module(tmp_path / "flow.py", [tmp_path]).seen == [config, config]


async def test_a_graph_with_a_checkpointer_of_its_own_gets_ours_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saver = InMemorySaver()
    with caplog.at_level(logging.WARNING):
        registry = Registry.load(write(tmp_path, "own_saver"))
    assert (await registry.graph("own_saver", saver)).checkpointer is saver
    assert "'own_saver' was compiled with a checkpointer" in caplog.text


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("number", "int is no graph, StateGraph or factory"),
        ("two", "must take no parameter or one"),
        ("broken", "it cannot be compiled: ValueError"),
        ("missing", "has no 'missing'"),
    ],
)
def test_what_is_no_graph_stops_loading_with_name_file_and_cause(
    tmp_path: Path, variable: str, words: str
) -> None:
    with pytest.raises(Misconfigured) as error:
        Registry.load(write(tmp_path, variable))
    text = str(error.value)
    assert words in text
    assert f"graph {variable!r}" in text
    assert str(tmp_path / "flow.py") in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("failing", "its factory failed: RuntimeError: no key at all"),
        ("wrong", "its factory made a int, which is no graph"),
    ],
)
async def test_a_factory_that_fails_stops_preparing(
    tmp_path: Path, variable: str, words: str
) -> None:
    registry = Registry.load(write(tmp_path, variable))
    with pytest.raises(Misconfigured, match=words):
        await registry.prepare()


def test_a_hook_that_does_not_exist_stops_loading(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"graph 'compiled': .*flow.py has no 'gone'"):
        Registry.load(write(tmp_path, "compiled", context="./flow.py:gone"))


async def test_the_context_is_made_from_run_and_principal(tmp_path: Path) -> None:
    registry = Registry.load(write(tmp_path, "compiled", context="./flow.py:context"))
    made = await registry.context("compiled", {"id": "run_1"}, {"user": "ann"})
    assert made == {"run": "run_1", "user": "ann"}


async def test_a_graph_without_the_hook_has_no_context(tmp_path: Path) -> None:
    registry = Registry.load(write(tmp_path, "compiled"))
    assert await registry.context("compiled", {}, {}) is None
    assert registry.names == ("compiled",)
    assert registry.spec("compiled").variable == "compiled"
