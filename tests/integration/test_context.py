"""`assemble` in a whole runner: facts, a summary that is made once, what a model is not told."""

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from common.db import conversations, runs
from common.db.conversations import Conversation
from common.db.runs import Run
from common.loading import Reference, load_object
from runner.authoring import assemble
from runner.authoring import context as authoring
from runner.authoring.context import Rehearsed
from tests.acceptance.conftest import GRAPHS
from tests.integration.test_runner import Serving, World, runner, world
from tests.support import rows

__all__ = ["runner", "world"]  # fixtures


class Talk:
    """One conversation with a graph of tests/support/graphs/remembering.py. What the graph gave to
    its model is read in the modules that the runner loaded."""

    def __init__(self, world: World, conversation_id: str, graph: str) -> None:
        self.world, self.id, self.graph = world, conversation_id, graph

    async def say(self, permissions: list[str] | None = None, **content: Any) -> Run:
        text = json.dumps(content)
        async with self.world.db.begin() as connection:
            run = await runs.create(
                connection,
                rows.new_run(
                    self.id,
                    graph=self.graph,
                    content=text,
                    input={"content": text},
                    principal={"user": rows.USER, "permissions": permissions or []},
                ),
            )
        assert run is not None
        return await self.world.until_status(run.id, "completed", "failed")

    async def set(self, **facts: Any) -> None:
        async with self.world.db.begin() as connection:
            found = await self.found()
            version = found.facts_version
            assert await conversations.set_facts(connection, self.id, rows.USER, facts, [], version)

    async def found(self) -> Conversation:
        async with self.world.db.connect() as connection:
            conversation = await conversations.find(connection, self.id, rows.USER)
        assert conversation is not None
        return conversation


@pytest.fixture
async def talk(world: World, request: Any) -> Talk:
    async with world.db.connect() as connection:
        conversation_id = await rows.conversation(connection)
    return Talk(world, conversation_id, getattr(request, "param", "assembles"))


Given = list[list[BaseMessage]]


def made(name: str) -> Given:
    """A list in the graph's module, as the runner of this process has loaded it."""
    folder = GRAPHS.parent
    found: Given = load_object(Reference(folder / "remembering.py", name, (folder,)))
    return found


@pytest.fixture
def assembled() -> Given:
    """What the graph gave to its model, one list a run."""
    found = made("assembled")
    found.clear()
    return found


@pytest.fixture
def summaries() -> Given:
    """What the model that sums up was asked."""
    found = made("summaries")
    found.clear()
    return found


def system(messages: list[BaseMessage]) -> str:
    assert isinstance(messages[0], SystemMessage)
    return str(messages[0].content)


async def test_facts_stand_before_the_recent_turns(
    talk: Talk, runner: Serving, assembled: Given
) -> None:
    await talk.set(service="payment-api")
    await talk.say()
    await talk.say()
    first, second = assembled
    assert '<facts version="2">\n{"service": "payment-api"}\n</facts>' in system(first)
    assert [m.type for m in first] == ["system", "human"]
    assert [m.type for m in second] == ["system", "human", "ai", "human"]


async def test_facts_that_the_caller_may_not_see_are_left_out(
    talk: Talk, runner: Serving, assembled: Given
) -> None:
    """By the graph file's `factPermissions`, and the permissions of the run's last request."""
    await talk.set(service="payment-api", salary_ann=100)
    await talk.say()
    await talk.say(permissions=["hr.view"])
    hidden, shown = map(system, assembled)
    assert "salar" not in hidden
    assert "payment-api" in hidden
    assert "salary_ann" in shown


async def test_a_summary_is_made_when_the_budget_asks_for_it_and_then_kept(
    talk: Talk, runner: Serving, assembled: Given, summaries: Given
) -> None:
    covered: list[str | None] = []
    for _ in range(14):
        await talk.say(budget=500, words=60, model=True)
        found = await talk.found()
        covered.append(found.summary_covers)
    assert covered[0] is None
    assert found.summary == "the model's summary"
    assert 2 <= len(summaries) <= 7  # of 14 turns
    assert len({*covered} - {None}) == len(summaries)
    assert "the model's summary" in system(assembled[-1])
    assert all(m.type != "system" for m in assembled[-1][1:])
    assert "the model's summary" in str(summaries[-1][1].content)  # the one before goes in


async def test_the_words_of_a_model_that_sums_up_are_not_streamed(
    talk: Talk, runner: Serving, summaries: Given
) -> None:
    for _ in range(5):
        run = await talk.say(budget=300, words=60, model=True)
        said = [e.get("delta", "") for e in await talk.world.events(run.id)]
        assert "summary" not in "".join(said)
    assert summaries


@pytest.mark.parametrize("talk", ["assembles_in_a_thread"], indirect=True)
async def test_a_sync_node_assembles_in_its_thread(
    talk: Talk, runner: Serving, assembled: Given
) -> None:
    await talk.set(service="payment-api")
    for _ in range(4):
        run = await talk.say(budget=200, words=60)
        assert run.status == "completed", run.error
    assert (await talk.found()).summary is not None
    assert "payment-api" in system(assembled[-1])


async def test_secrets_are_hidden_from_the_model_where_nothing_else_is_asked_for(
    talk: Talk, runner: Serving, assembled: Given
) -> None:
    secret = "postgresql://ann:hunter2@db/orders"
    await talk.set(database=secret)
    await talk.say(note=secret)
    await talk.say(note=secret, mask=False)
    hidden, shown = (str([m.content for m in messages]) for messages in assembled)
    assert "hunter2" not in hidden
    assert shown.count("hunter2") == 3


async def test_outside_of_a_run_there_are_no_facts_and_nothing_is_kept() -> None:
    messages = [HumanMessage("a" * 3000), AIMessage("b" * 3000), HumanMessage("now")]
    shown = await assemble(messages, budget=1000)
    assert [m.type for m in shown] == ["system", "human"]
    assert "User: aaa" in system(shown)


async def test_system_messages_of_the_thread_come_first_with_the_instructions() -> None:
    messages = [SystemMessage("Answer in verse."), HumanMessage("a"), AIMessage("b")]
    shown = await assemble([*messages, HumanMessage("now")], instructions="Be brief.")
    assert system(shown) == "Be brief.\n\nAnswer in verse."
    assert [m.type for m in shown[1:]] == ["human", "ai", "human"]


async def test_a_hook_of_the_author_sums_up_and_counts() -> None:
    async def sum_up(previous: str | None, earlier: Any) -> str:
        return f"{previous}, then {len(earlier)}"

    token = authoring.current.set(Rehearsed())
    messages = [HumanMessage(str(n), id=str(n)) for n in range(9)]
    shown = await assemble(
        messages, budget=10, count=lambda m: m.type != "system", summarize=sum_up
    )
    assert len(shown) == 9
    shown = await assemble(messages, budget=7, count=lambda m: m.type != "system", summarize=sum_up)
    assert "None, then 7" in system(shown)
    assert [m.content for m in shown[1:]] == ["7", "8"]
    authoring.current.reset(token)
