"""The lines on conversation context of the list of tests in
`seeds/000_f85b8e53bd89419d.txt`, "How to test": whether "it / the one just now" is identified
correctly, and whether a failed tool call mistakenly writes to state.
"""

import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api, Json
from tests.support.cluster import Cluster

CONTEXT_TOKENS = 1500  # so that a summary is made after some turns


@pytest.fixture(scope="module")
def system() -> Iterator[Cluster]:
    """The sample agent, which quickly has too much to tell its model."""
    with tempfile.TemporaryDirectory(prefix="steadyrun-") as name:
        Path(name).chmod(0o755)
        environment = {
            "STEADYRUN_OPSPILOT_DELAY_MS": "0",
            "STEADYRUN_OPSPILOT_CONTEXT_TOKENS": str(CONTEXT_TOKENS),
        }
        with Cluster(Path(name) / "state", environment=environment).running() as running:
            yield running


@dataclass
class Talk:
    """A conversation with the sample agent. `calls`: tools and inputs of the last turn."""

    api: Api
    id: str
    calls: list[tuple[str, Json]] = field(default_factory=list)

    async def say(self, text: str, decision: Any = None) -> Json:
        """The run, at its end or at its question; there the decision is sent."""
        run = await self.api.start(text, conversation=self.id)
        history = await self.api.read(run["id"], until="interrupt")
        if decision is not None:
            [asked] = (await self.api.run(run["id"]))["pendingInterrupts"]
            answer = await self.api.resume(run["id"], interruptId=asked["id"], decision=decision)
            assert answer.status_code == 202, answer.text
            history = await self.api.read(run["id"], history=history)
        started = [e for e in history.events if e["type"] == "tool_started"]
        self.calls = [(event["tool"], event["input"]) for event in started]
        return await self.api.run(run["id"])

    async def found(self) -> Json:
        answer = await self.api.http.get(f"/api/conversations/{self.id}")
        found: Json = answer.json()
        return found

    async def facts(self) -> Json:
        found: Json = (await self.found())["facts"]
        return found

    async def until_summed_up(self, text: str) -> None:
        for _ in range(12):
            await self.say(text)
            if (await self.found())["summary"]:
                return
        raise AssertionError("there is no summary after 12 turns")


@pytest.fixture
async def talk(system: Cluster) -> AsyncIterator[Talk]:
    secret = system.topology.jwt_secret
    async with Api(system.url, secret, permissions=("ops.restart",)) as api:
        yield Talk(api, await api.conversation())


ENGLISH = {
    "errors": "Look at the recent errors of payment-api",
    "instances": "Show the instances of {}",
    "restart": "Restart the abnormal instance of {}",
    "it": "Keep investigating it",
    "just now": "Look at the one just now again",
}
CHINESE = {
    "errors": "看看 payment-api 最近的错误",
    "instances": "{} 的实例",
    "restart": "重启 {} 的异常实例",
    "it": "继续排查它",
    "just now": "再看看刚才那个",
}


@pytest.mark.parametrize(
    ("words", "sandbox"), [(ENGLISH, "sandbox-en"), (CHINESE, "sandbox-zh")], ids=["en", "zh"]
)
async def test_it_and_the_one_just_now_are_identified_correctly(
    talk: Talk, words: dict[str, str], sandbox: str
) -> None:
    """Over several services, and for an instance that was restarted in between."""
    await talk.say(words["errors"])
    await talk.say(words["it"])
    assert talk.calls == [("read_errors", {"service": "payment-api"})]
    await talk.say(words["instances"].format("order-api"))
    await talk.say(words["just now"])
    assert talk.calls == [("read_errors", {"service": "order-api"})]
    await talk.say(words["restart"].format(sandbox), decision="approve")
    restarted = {"service": sandbox, "instance": f"{sandbox}-2"}
    assert await talk.facts() == restarted
    for text in (words["it"], words["just now"]):
        await talk.say(text)
        assert talk.calls == [("read_errors", restarted)]


@pytest.mark.parametrize("words", [ENGLISH, CHINESE], ids=["en", "zh"])
async def test_it_and_the_one_just_now_are_identified_correctly_after_a_summary(
    talk: Talk, words: dict[str, str]
) -> None:
    """What "it" is was said before all that the model still sees word for word."""
    await talk.say(words["instances"].format("order-api"))
    await talk.say(words["errors"])
    await talk.until_summed_up("services?")
    assert await talk.facts() == {"service": "payment-api"}
    for text in (words["it"], words["just now"]):
        await talk.say(text)
        assert talk.calls == [("read_errors", {"service": "payment-api"})]


async def test_it_is_what_the_user_has_corrected_the_facts_to(talk: Talk) -> None:
    await talk.say(ENGLISH["errors"])
    found = await talk.found()
    changed = await talk.api.http.patch(
        f"/api/conversations/{talk.id}/facts",
        json={"set": {"service": "search"}, "version": found["factsVersion"]},
    )
    assert changed.status_code == 200, changed.text
    await talk.say(ENGLISH["it"])
    assert talk.calls == [("read_errors", {"service": "search"})]


async def test_a_failed_tool_call_does_not_write_to_state(talk: Talk) -> None:
    await talk.say(ENGLISH["errors"])
    before = await talk.found()
    assert before["facts"] == {"service": "payment-api"}
    await talk.say("Look at the recent errors of no-such-api")
    assert talk.calls == [("read_errors", {"service": "no-such-api"})]
    after = await talk.found()
    assert (after["facts"], after["factsVersion"]) == (before["facts"], before["factsVersion"])
    await talk.say(ENGLISH["it"])
    assert talk.calls == [("read_errors", {"service": "payment-api"})]


async def test_a_rejected_tool_call_does_not_write_to_state(talk: Talk) -> None:
    """What was read before the question stands; what was not done does not."""
    run = await talk.say(ENGLISH["restart"].format("sandbox-no"), decision="reject")
    assert run["status"] == "cancelled"
    read = {"service": "sandbox-no", "instance": "sandbox-no-2"}
    found = await talk.found()
    assert (found["facts"], found["factsVersion"]) == (read, 3)
