"""The approval inbox over HTTP: what the caller may decide, as a decision would find it."""

from threading import Event
from typing import Any

from common.db.interrupts import Interrupt
from gateway.auth import Principal
from gateway.services.hooks import Hooks
from gateway.services.inbox import Inbox
from tests.support import rows
from tests.support.deciding import ask, code, edge, graphs, hooks
from tests.support.edge import Edge, bearer
from tests.support.fake_runner import FakeRunner

__all__ = ["edge", "graphs", "hooks"]

NEEDED = {"required_permission": "pumps.restart"}


async def listed(edge: Edge, headers: dict[str, str] | None = None, **query: Any) -> list[str]:
    """Ids of all pages."""
    found: list[str] = []
    while True:
        answer = await edge.client.get("/api/interrupts", params=query, headers=headers or {})
        assert answer.status_code == 200, answer.text
        found += [item["id"] for item in answer.json()["items"]]
        if (cursor := answer.json()["nextCursor"]) is None:
            return found
        query["cursor"] = cursor


def newest_first(questions: list[Interrupt]) -> list[str]:
    return [row.id for row in reversed(questions)]


async def test_what_the_guard_forbids_is_not_in_the_inbox(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, NEEDED, NEEDED, {})
    first, second, own = (question.id for question in asked.questions)
    hooks.permitted["authorize"] = lambda principal, card: (
        (card["id"], principal.user) in {(second, "boss"), (own, rows.USER)}
    )
    boss = bearer("boss", "pumps.restart")
    assert await listed(edge, boss) == [second]
    assert await listed(edge) == [own]
    assert await listed(edge, bearer(rows.USER, "pumps.restart")) == [own]
    assert code(await asked.decide(headers=boss)) == (403, "PERMISSION_REVOKED")
    assert first not in await listed(edge, boss)


async def test_pages_are_filled_over_what_is_left_out(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, *[{}] * 9)
    every_third = asked.questions[::3]
    allowed = {row.id for row in every_third}
    hooks.permitted["authorize"] = lambda principal, card: card["id"] in allowed
    answer = (await edge.client.get("/api/interrupts", params={"limit": 2})).json()
    assert [item["id"] for item in answer["items"]] == newest_first(every_third)[:2]
    assert await listed(edge, limit=2) == newest_first(every_third)
    hooks.permitted["authorize"] = False
    assert await listed(edge, limit=1) == []


async def test_a_guard_that_fails_hides_its_cards_and_fails_no_inbox(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, {}, {}, {})

    def failing(principal: Any, card: Any) -> bool:
        raise RuntimeError("the fleet's password is hunter2")

    hooks.permitted["authorize"] = failing
    answer = await edge.client.get("/api/interrupts")
    assert (answer.status_code, answer.json()["items"]) == (200, [])
    assert "hunter2" not in answer.text
    asked_for = hooks.calls.count("authorize")
    await listed(edge)
    assert hooks.calls.count("authorize") == asked_for  # it rests
    assert code(await asked.decide()) == (503, "UNAVAILABLE")


async def test_what_one_has_decided_stays_in_ones_list(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, NEEDED, NEEDED)
    mine, other = (question.id for question in asked.questions)
    boss = bearer("boss", "pumps.restart")
    await asked.decide(headers=boss)
    await asked.decide(headers=bearer("chief", "pumps.restart"), interruptId=other)
    hooks.permitted["authorize"] = False
    assert await listed(edge, boss, status="resolved") == [mine]


async def test_a_card_that_the_guard_cannot_judge_hides_no_other(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, {}, {}, {})
    bad = asked.questions[2].id  # the newest, which is asked about first

    def failing(principal: Any, card: Any) -> bool:
        if card["id"] == bad:
            raise KeyError("amount")
        return True

    hooks.permitted["authorize"] = failing
    others = newest_first(asked.questions[:2])
    for _ in range(3):
        assert await listed(edge, limit=1) == others
    assert await listed(edge) == others


async def test_a_card_at_which_the_guard_hangs_hides_others_for_a_moment_only(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, NEEDED, NEEDED, NEEDED)
    bad, leave, about = asked.questions[2].id, Event(), []

    def hanging(principal: Any, card: Any) -> bool:
        about.append(card["id"])
        return card["id"] != bad or leave.wait()

    hooks.permitted["authorize"] = hanging
    inbox = Inbox(edge.gateway.db, Hooks(edge.gateway.graphs, timeout_s=0.5), rest_s=1e-9)
    boss, chief = (Principal(user, frozenset(["pumps.restart"])) for user in ("boss", "chief"))
    try:
        await inbox.page(boss, "pending", None, 50)
        found = await inbox.page(chief, "pending", None, 50)
    finally:
        leave.set()
    assert [item.id for item in found.items] == newest_first(asked.questions[:2])
    assert about.count(bad) == 1


async def test_a_slow_guard_makes_pages_short_and_nothing_is_skipped(
    edge: Edge, runner: FakeRunner, hooks: Any
) -> None:
    asked = await ask(edge, runner, *[{}] * 5)
    inbox = Inbox(edge.gateway.db, Hooks(edge.gateway.graphs, timeout_s=5.0), page_s=0.0)
    cursor, found = None, []
    for _ in asked.questions:
        page = await inbox.page(Principal(rows.USER, frozenset()), "pending", cursor, 50)
        found.append([item.id for item in page.items])
        cursor = page.next_cursor
    assert found == [[question] for question in newest_first(asked.questions)]
    assert cursor is None
    assert hooks.calls.count("authorize") == 5
