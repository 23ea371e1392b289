"""The article's list of what to test about people's decisions: tests named after its lines, over
HTTP on two gateways and two runners, with the sample agent.

    HITL: double-click "confirm", confirmation expiry, permission revoked before resume, instance
    changed by someone else while waiting, cancel then resume.

Every test has a service of its own, whose second instance is out of order.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg
import pytest

from tests.support.api import Api, Json
from tests.support.cluster import Cluster

RESTART = "ops.restart"


@dataclass
class Card:
    """A question that waits, as a person has it before them."""

    run_id: str
    conversation_id: str
    interrupt: Json

    @property
    def id(self) -> str:
        return str(self.interrupt["id"])

    async def decide(self, api: Api, decision: Any = "approve", **more: Any) -> httpx.Response:
        return await api.resume(self.run_id, interruptId=self.id, decision=decision, **more)


class House:
    """The whole system, and a service in it."""

    def __init__(self, cluster: Cluster, opened: AsyncExitStack) -> None:
        self.topology, self._opened = cluster.topology, opened
        self.service = f"sandbox-{uuid.uuid4().hex[:12]}"
        self.gateways = [p.url for p in self.topology.processes if p.role == "gateway" and p.url]
        assert len(self.gateways) == 2

    async def person(self, user: str, *permissions: str, gateway: int = 0) -> Api:
        url, secret = self.gateways[gateway], self.topology.jwt_secret
        api = Api(url, secret, user=user, permissions=permissions)
        return await self._opened.enter_async_context(api)

    async def card(self, api: Api) -> Card:
        """Ask for the restart; returns when the agent asks back."""
        said = f"Restart the abnormal instance of {self.service}"
        run_id = (await api.start(said, graph="opspilot"))["id"]
        await api.read(run_id, until="interrupt")
        run = await api.run(run_id)
        assert run["status"] == "interrupted"
        [interrupt] = run["pendingInterrupts"]
        return Card(run_id, run["conversationId"], interrupt)

    async def instance(self) -> tuple[int, int]:
        """Version and number of restarts of the one that is out of order, as the fleet has it."""
        async with await psycopg.AsyncConnection.connect(self.topology.database_url) as connection:
            wanted = "SELECT version, restarts FROM opspilot.instances WHERE id = %s"
            row = await (await connection.execute(wanted, [f"{self.service}-2"])).fetchone()
        assert row is not None
        return row[0], row[1]

    async def expire(self, card: Card) -> None:
        async with await psycopg.AsyncConnection.connect(self.topology.database_url) as connection:
            await connection.execute(
                "UPDATE interrupts SET expires_at = clock_timestamp() WHERE id = %s", [card.id]
            )


@pytest.fixture
async def house(cluster: Cluster) -> AsyncIterator[House]:
    async with AsyncExitStack() as opened:
        yield House(cluster, opened)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, str(answer.json().get("code"))


def restarts(events: list[Json]) -> int:
    """How many the stream tells of; a call that was closed with its run is none."""
    ended = [e for e in events if e["type"] == "tool_finished" and e["status"] == "success"]
    return sum(e["tool"] == "restart_instance" for e in ended)


def resolved(events: list[Json]) -> list[tuple[str, Any, Any]]:
    told = (e for e in events if e["type"] == "interrupt_resolved")
    return [(e["status"], e.get("decision"), e.get("resolvedBy")) for e in told]


# "double-click confirm"


async def test_double_click_confirm_restarts_once(house: House) -> None:
    """Three clicks at once on both gateways, and one more later: the same answer each time."""
    ada = await house.person("ada", RESTART)
    elsewhere = await house.person("ada", RESTART, gateway=1)
    card = await house.card(ada)
    tabs = (ada, elsewhere, ada)
    clicks = await asyncio.gather(*(card.decide(t, idempotencyKey=card.id) for t in tabs))
    history = await elsewhere.read(card.run_id)
    clicks.append(await card.decide(elsewhere, idempotencyKey=card.id))
    assert {click.status_code for click in clicks} == {202}
    assert all(click.json()["run"] == clicks[0].json()["run"] for click in clicks)
    assert resolved(history.events) == [("resolved", "approve", "ada")]
    assert restarts(history.events) == 1
    assert await house.instance() == (2, 1)


async def test_double_click_confirm_in_two_tabs_restarts_once(house: House) -> None:
    """Two tabs have keys of their own: the second is told who decided, and both close the card."""
    ada = await house.person("ada", RESTART)
    elsewhere = await house.person("ada", RESTART, gateway=1)
    card = await house.card(ada)
    clicks = await asyncio.gather(card.decide(ada), card.decide(elsewhere))
    histories = await asyncio.gather(ada.read(card.run_id), elsewhere.read(card.run_id))
    lost, won = sorted(clicks, key=lambda click: -click.status_code)
    assert won.status_code == 202
    assert code(lost) == (409, "INTERRUPT_NOT_PENDING")
    assert (lost.json()["decision"], lost.json()["resolvedBy"]) == ("approve", "ada")
    for history in histories:
        assert resolved(history.events) == [("resolved", "approve", "ada")]
    assert await house.instance() == (2, 1)


# "confirmation expiry"


async def test_confirmation_expiry_cannot_be_approved_and_restarts_nothing(house: House) -> None:
    ada = await house.person("ada", RESTART)
    elsewhere = await house.person("ada", RESTART, gateway=1)
    card = await house.card(ada)
    assert card.interrupt["expiresAt"]
    await house.expire(card)
    assert code(await card.decide(elsewhere)) == (410, "INTERRUPT_EXPIRED")
    history = await ada.read(card.run_id)
    assert resolved(history.events) == [("expired", None, None)]
    last = history.events[-1]
    assert (last["type"], last["reason"]) == ("cancelled", "expired")
    assert code(await card.decide(ada)) == (410, "INTERRUPT_EXPIRED")
    assert restarts(history.events) == 0
    assert await house.instance() == (1, 0)


# "permission revoked before resume"


async def test_permission_revoked_before_resume_refuses_and_the_card_waits(house: House) -> None:
    ada = await house.person("ada", RESTART)
    card = await house.card(ada)
    assert card.interrupt["requiredPermission"] == RESTART
    revoked = await house.person("ada", "ops.view", gateway=1)
    refused = await card.decide(revoked, idempotencyKey=card.id)
    assert code(refused) == (403, "PERMISSION_REVOKED")
    assert refused.json()["requiredPermission"] == RESTART
    run = await ada.run(card.run_id)
    assert (run["status"], len(run["pendingInterrupts"])) == ("interrupted", 1)
    assert await house.instance() == (1, 0)
    given_back = await card.decide(ada, idempotencyKey=card.id)
    assert given_back.status_code == 202
    await ada.read(card.run_id)
    assert await house.instance() == (2, 1)


async def test_permission_revoked_before_resume_leaves_it_to_a_colleague_who_holds_it(
    house: House,
) -> None:
    """The colleague sees the question, in the inbox and the answer, and nothing else."""
    ada, bob = await house.person("ada"), await house.person("bob", RESTART, gateway=1)
    card = await house.card(ada)
    assert code(await card.decide(ada)) == (403, "PERMISSION_REVOKED")
    inbox = (await bob.http.get("/api/interrupts?status=pending")).json()["items"]
    assert card.id in [item["id"] for item in inbox]
    own = (await ada.http.get("/api/interrupts?status=pending")).json()["items"]
    assert card.id not in [item["id"] for item in own]
    decided = await card.decide(bob)
    assert (decided.status_code, set(decided.json())) == (202, {"interrupt"})
    for path in (
        f"/api/conversations/{card.conversation_id}",
        f"/api/conversations/{card.conversation_id}/messages",
        f"/api/runs/{card.run_id}",
        f"/api/runs/{card.run_id}/events",
    ):
        assert code(await bob.http.get(path)) == (404, "NOT_FOUND"), path
    history = await ada.read(card.run_id)
    assert resolved(history.events) == [("resolved", "approve", "bob")]
    assert history.events[-1]["type"] == "done"
    assert await house.instance() == (2, 1)


# "instance changed by someone else while waiting"


async def test_instance_changed_by_someone_else_while_waiting_is_told_and_not_restarted(
    house: House,
) -> None:
    ada, bob = await house.person("ada", RESTART), await house.person("bob", RESTART, gateway=1)
    card, his = await house.card(ada), await house.card(bob)
    assert (await his.decide(bob)).status_code == 202
    await bob.read(his.run_id)
    refused = await card.decide(ada, idempotencyKey=card.id)
    assert code(refused) == (409, "RESOURCE_CHANGED")
    [changed] = refused.json()["changed"]
    assert (changed["field"], changed["was"], changed["is"]) == ("version", 1, 2)
    assert refused.json()["resource"]["state"] == "running"
    assert (await ada.run(card.run_id))["status"] == "interrupted"
    assert await house.instance() == (2, 1)
    assert (await card.decide(ada, "reject")).json()["run"]["status"] == "cancelled"
    assert await house.instance() == (2, 1)


async def test_instance_changed_by_someone_else_while_waiting_can_be_accepted_as_it_is(
    house: House,
) -> None:
    """A confirmation is for what was shown: changed once more, it is refused once more."""
    ada, bob = await house.person("ada", RESTART), await house.person("bob", RESTART, gateway=1)
    card, his = await house.card(ada), await house.card(bob)
    await his.decide(bob)
    await bob.read(his.run_id)
    shown = (await card.decide(ada)).json()["confirmVersion"]
    broken = await bob.start(f"Break {house.service}", graph="opspilot")
    await bob.read(broken["id"])
    again = await card.decide(ada, confirmVersion=shown)
    assert code(again) == (409, "RESOURCE_CHANGED")
    assert [change["is"] for change in again.json()["changed"]] == [3]
    accepted = await card.decide(ada, confirmVersion=again.json()["confirmVersion"])
    assert accepted.status_code == 202
    history = await ada.read(card.run_id)
    assert restarts(history.events) == 1
    assert history.events[-1]["type"] == "done"
    assert await house.instance() == (4, 2)


# "cancel then resume"


async def test_cancel_then_resume_is_refused_and_restarts_nothing(house: House) -> None:
    ada = await house.person("ada", RESTART)
    elsewhere = await house.person("ada", RESTART, gateway=1)
    card = await house.card(ada)
    cancelled = await ada.http.post(f"/api/runs/{card.run_id}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (202, "cancelled")
    refused = await card.decide(elsewhere)
    assert code(refused) == (409, "INTERRUPT_NOT_PENDING")
    assert refused.json()["interruptStatus"] == "cancelled"
    history = await elsewhere.read(card.run_id)
    assert resolved(history.events) == [("cancelled", None, None)]
    assert history.events[-1]["type"] == "cancelled"
    assert await house.instance() == (1, 0)


async def test_resume_then_cancel_ends_the_run_once_and_restarts_at_most_once(
    house: House,
) -> None:
    ada = await house.person("ada", RESTART)
    elsewhere = await house.person("ada", RESTART, gateway=1)
    card = await house.card(ada)
    assert (await card.decide(ada)).status_code == 202
    cancelled = await elsewhere.http.post(f"/api/runs/{card.run_id}/cancel")
    assert cancelled.status_code == 202
    history = await ada.read(card.run_id)
    assert resolved(history.events) == [("resolved", "approve", "ada")]
    assert history.events[-1]["type"] in ("cancelled", "done")
    version, times = await house.instance()
    assert (version, times) in ((1, 0), (2, 1))
    assert restarts(history.events) <= times
