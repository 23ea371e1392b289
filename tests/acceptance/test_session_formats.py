"""The session facade's four words, to graphs of each kind, through the whole system."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.api import Api, Json
from tests.support.cluster import Cluster


class Person:
    """One user and the session that it has."""

    def __init__(self, api: Api) -> None:
        self._http = api.http

    async def invoke(self, graph: str, query: str = "go") -> Json:
        return self._answer(
            await self._http.post("/agent/invoke", json={"query": query, "graph": graph})
        )

    async def says(self, asked: Json, word: str, *args: Any) -> httpx.Response:
        body = {
            "session_id": asked["session_id"],
            "interrupt_id": asked["interrupt_data"]["interrupt_id"],
            "response_type": word,
            **({"args": args[0]} if args else {}),
        }
        return await self._http.post("/agent/resume", json=body)

    async def decides(self, asked: Json, word: str, *args: Any) -> Json:
        return self._answer(await self.says(asked, word, *args))

    def _answer(self, response: httpx.Response) -> Json:
        assert response.status_code == 200, response.text
        answer: Json = response.json()
        return answer


@pytest.fixture
async def person(cluster: Cluster) -> AsyncIterator[Person]:
    user = f"user-{uuid.uuid4().hex[:8]}"
    async with Api(cluster.url, cluster.topology.jwt_secret, user=user) as api:
        yield Person(api)


@pytest.mark.parametrize(
    ("word", "args", "said"),
    [
        ("accept", (), "sent to a@example.org"),
        ("edit", ({"to": "b@example.org", "text": "hi"},), "sent to b@example.org"),
        ("response", ("it was sent before",), "it was sent before"),
        ("reject", ("not today",), "not today"),
    ],
)
async def test_langchains_middleware_takes_each_word(
    person: Person, word: str, args: tuple[Any, ...], said: str
) -> None:
    asked = await person.invoke("approving")
    data = asked["interrupt_data"]
    assert data["allowed_response_types"] == ["accept", "edit", "response", "reject"]
    assert [action["name"] for action in data["actions"]] == ["send_mail"]
    done = await person.decides(asked, word, *args)
    assert (done["status"], done["task_id"]) == ("completed", asked["task_id"])
    assert said in done["result"]["messages"][-1]["content"]


async def test_what_does_not_fit_is_refused_and_what_fits_then_works(person: Person) -> None:
    asked = await person.invoke("approving")
    wrong: list[tuple[str, Any]] = [
        ("edit", {"to": 5, "text": "hi"}),
        ("edit", "b@example.org"),
        ("response", 5),
        ("reject", {"why": "no"}),
        ("accept", {"to": "b"}),
    ]
    for word, args in wrong:
        refused = await person.says(asked, word, args)
        assert (refused.status_code, refused.json()["code"]) == (422, "VALIDATION"), (word, args)
    done = await person.decides(asked, "accept")
    assert "sent to a@example.org" in done["result"]["messages"][-1]["content"]


async def test_questions_at_once_are_answered_one_after_the_other(person: Person) -> None:
    asked = await person.invoke("ask_both")
    assert asked["interrupt_data"]["pending"] == 2
    second = await person.decides(asked, "response", 1)
    assert (second["status"], second["interrupt_data"]["pending"]) == ("interrupted", 1)
    done = await person.decides(second, "response", 2)
    answers = {name: said for each in done["result"]["said"] for name, said in each.items()}
    first, other = (a["interrupt_data"]["payload"]["question"] for a in (asked, second))
    assert answers == {
        first: {"type": "response", "args": 1},
        other: {"type": "response", "args": 2},
    }


async def test_a_graph_that_fails_answers_error_and_tells_no_secret(person: Person) -> None:
    failed = await person.invoke("raises")
    assert failed["status"] == "error"
    assert failed["message"]
    assert "hunter2" not in str(failed)
