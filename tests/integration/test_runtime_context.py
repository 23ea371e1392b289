"""A graph's runtime context is made anew at every take-up, by the last request, and never stored
(contract §8); nothing secret gets into what LangGraph stores of a config.
"""

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from common.db.engine import Database
from tests.support import rows
from tests.support.edge import bearer
from tests.support.whole import Talk, Whole, whole

pytestmark = pytest.mark.timeout(120)

SECRET = "correct-horse-battery-staple"
MARK = "a-mark-that-the-state-keeps"
AGENT = f'''
import operator
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt

made, seen = [], []


@dataclass
class Context:
    password: str
    user: str
    permissions: list[str]


class State(TypedDict, total=False):
    input: Any
    said: Annotated[list[Any], operator.add]


def context(run, principal):
    made.append(run["id"])
    return Context("{SECRET}", principal["user"], principal["permissions"])


def ask(state: State, runtime: Runtime[Context]) -> State:
    seen.append(runtime.context)
    assert runtime.context.password == "{SECRET}"
    return {{"said": ["{MARK}", interrupt("go on?")]}}


inner = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile()
graph = StateGraph(State, context_schema=Context).add_node("inner", inner).add_edge(START, "inner")
'''
FILE = """{"graphs": {"agent": "./agent.py:graph"},
           "steadyrun": {"graphs": {"agent": {"context": "./agent.py:context"}}}}"""
TABLES = """
SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables
 WHERE schemaname NOT IN ('pg_catalog', 'information_schema')
"""


@pytest.fixture
async def system(
    database_url: str, redis_url: str, redis_prefix: str, tmp_path: Path
) -> AsyncIterator[Whole]:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "langgraph.json").write_text(FILE)
    graphs = tmp_path / "langgraph.json"
    async with whole(database_url, redis_url, redis_prefix, graphs) as running:
        yield running


@pytest.fixture
def agent(system: Whole, tmp_path: Path) -> ModuleType:
    """The author's module, as the runner has loaded it."""
    file = str(tmp_path / "agent.py")
    return next(m for m in sys.modules.values() if getattr(m, "__file__", "") == file)


async def asked(system: Whole, *permissions: str) -> Talk:
    body = {"message": {"content": "go"}, "graph": "agent"}
    headers = {"Accept": "application/json", **bearer(rows.USER, *permissions)}
    made = (await system.edge.client.post("/api/chat", json=body, headers=headers)).json()["run"]
    talk = Talk(system.edge, made["id"], made["conversationId"])
    await talk.asked()
    return talk


async def found(database: Database, needle: str) -> set[str]:
    """The tables that hold the text in any row, also inside of bytes."""
    places = set()
    async with database.connect() as connection:
        for (table,) in await connection.rows(TABLES):
            held = await connection.value(
                f"SELECT EXISTS (SELECT FROM {table} AS t"
                " WHERE position($1 IN t::text) > 0 OR position($2 IN t::text) > 0)",
                needle,
                needle.encode().hex(),
            )
            places |= {table} if held else set()
    return places


async def test_the_context_is_made_at_every_take_up_from_the_last_request(
    system: Whole, agent: Any
) -> None:
    talk = await asked(system, "a")
    [question] = await talk.asked()
    body = {"interruptId": question["id"], "decision": "approve"}
    assert (await talk.send(body, **bearer(rows.USER, "b", "c"))).status_code == 202
    assert await talk.said() == [MARK, {"type": "approve"}]
    assert agent.made == [talk.id, talk.id]
    assert [(c.user, c.permissions) for c in agent.seen] == [
        (rows.USER, ["a"]),
        (rows.USER, ["b", "c"]),
    ]


async def test_neither_context_nor_token_is_in_any_row_or_checkpoint(
    system: Whole, agent: Any, database: Database
) -> None:
    talk = await asked(system, "a")
    [question] = await talk.asked()
    body = {"interruptId": question["id"], "decision": "approve"}
    headers = bearer(rows.USER, "b")
    assert (await talk.send(body, **headers)).status_code == 202
    await talk.said()
    assert {"public.checkpoints", "public.checkpoint_writes"} & await found(database, MARK)
    assert "public.runs" in await found(database, talk.id)
    for secret in (SECRET, headers["Authorization"].removeprefix("Bearer ")):
        assert await found(database, secret) == set()
