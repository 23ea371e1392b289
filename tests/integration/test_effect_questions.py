"""Effects of which nobody knows whether they happened: a person is asked, and obeyed once (I5)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from common.db import audit
from common.db.interrupts import Interrupt
from common.db.runs import Run
from tests.integration.test_runner import Serving, World, types, world

__all__ = ["world"]  # fixtures

AGAIN = {"type": "select", "value": "again", "by": "ada"}
DONE = {"type": "select", "value": "done", "by": "ada"}
WITH_RESULT = {"type": "fill", "values": {"result": {"receipt": 7}}, "by": "ada"}


@dataclass
class Scene:
    """Runs whose first runner died with intents, and the folder that their effects write to."""

    world: World
    folder: Path

    async def start(self, graph: str, keys: Sequence[str] = ("a",), **asked: Any) -> str:
        content = json.dumps({"file": str(self.folder), **asked})
        run_id = await self.world.start(f"asking_{graph}", content)
        for key in keys:
            await self.lose_outcome(run_id, key)
        return run_id

    async def lose_outcome(self, run_id: str, key: str) -> None:
        async with self.world.db.connect() as conn:
            await conn.rows(
                "INSERT INTO effects (run_id, key, epoch, runner_id) VALUES ($1, $2, 0, 'rnr_gone')"
                " ON CONFLICT (run_id, key) DO UPDATE SET outcome = NULL, finished_at = NULL",
                run_id,
                key,
            )

    async def asked(self, run_id: str) -> list[Interrupt]:
        """The open questions of a run that waits."""
        await self.world.until_status(run_id, "interrupted")
        return [row for row in await self.world.interrupts(run_id) if row.status == "pending"]

    async def ended(self, run_id: str) -> Run:
        return await self.world.until_status(run_id, "completed", "failed", "cancelled")

    def times(self, name: str) -> int:
        file = self.folder / name
        return len(file.read_text().split()) if file.exists() else 0


@pytest.fixture
def scene(world: World, folder: Path) -> Scene:
    return Scene(world, folder)


@pytest.fixture
async def runner(world: World) -> Any:
    serving = Serving(world.settings)
    yield serving
    await serving.stop()


async def test_the_card_says_which_effect_when_by_whom_and_what_the_answers_mean(
    scene: Scene, runner: Serving
) -> None:
    run_id = await scene.start("catches")
    [card] = await scene.asked(run_id)
    assert (card.type, card.format) == ("select_option", "steadyrun")
    assert card.allowed_decisions == ["select", "fill", "reject"]
    assert "'a'" in card.payload["title"]
    assert card.payload["effect"]["begunBy"] == "rnr_gone"
    assert card.payload["effect"]["begunAt"] in card.payload["description"]
    assert [option["value"] for option in card.payload["options"]] == ["again", "done"]
    assert "cancelled" in card.payload["reject"]
    assert card.expires_at is not None
    assert (card.on_reject, card.on_expire) == ("cancel", "cancel")
    events = await scene.world.events(run_id)
    assert types(events)[-1] == "interrupt"
    finished = [e["status"] for e in events if e["type"] == "step_finished"]
    assert finished == ["interrupted"]
    assert scene.times("a") == 0


@pytest.mark.parametrize(
    ("answer", "said", "times"),
    [(AGAIN, "did a", 1), (DONE, None, 0), (WITH_RESULT, {"receipt": 7}, 0)],
)
async def test_the_answer_is_followed_once_and_noted_with_who_and_when(
    scene: Scene, runner: Serving, answer: Any, said: Any, times: int
) -> None:
    run_id = await scene.start("catches")
    [card] = await scene.asked(run_id)
    await scene.world.decide(run_id, card, answer)
    run = await scene.ended(run_id)
    assert run.output["said"] == [said]
    assert scene.times("a") == times
    [row] = await scene.world.interrupts(run_id)
    assert row.taken
    async with scene.world.db.connect() as conn:
        [effect] = await audit.effects_of(conn, run_id)
    assert effect.finished
    [noted] = effect.decisions
    assert (noted["interruptId"], noted["by"]) == (card.id, "ada")
    assert noted["at"]


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        ("catches_in_a_thread", ["did a"]),
        ("impatient", ["in time"]),
        ("calls_a_task", ["did a"]),
        ("nested", ["beside", "did a"]),
        ("sends", ["did a"]),
        ("beside", ["beside", "did a"]),
    ],
)
async def test_wherever_the_effect_stands_nothing_goes_on_without_an_answer(
    scene: Scene, runner: Serving, graph: str, said: list[str]
) -> None:
    run_id = await scene.start(graph)
    [card] = await scene.asked(run_id)
    assert scene.times("a") == 0
    await scene.world.decide(run_id, card, AGAIN)
    run = await scene.ended(run_id)
    assert run.status == "completed", run.error
    assert sorted(run.output["said"]) == said
    assert scene.times("a") == 1


async def test_a_tool_asks_as_a_node_does(scene: Scene, runner: Serving) -> None:
    run_id = await scene.start("in_a_tool")
    [card] = await scene.asked(run_id)
    await scene.world.decide(run_id, card, DONE)
    run = await scene.ended(run_id)
    assert run.status == "completed", run.error
    events = await scene.world.events(run_id)
    resumed = max(n for n, e in enumerate(events) if e["type"] == "run_resumed")
    assert types(events[resumed:]).count("tool_started") == 1
    assert types(events[resumed:]).count("tool_finished") == 1
    assert scene.times("a") == 0


async def test_what_works_beside_is_waited_for_and_not_executed_again(
    scene: Scene, runner: Serving
) -> None:
    run_id = await scene.start("beside", pause_s=0.5)
    [card] = await scene.asked(run_id)
    assert scene.times("beside") == 1
    await scene.world.decide(run_id, card, DONE)
    await scene.ended(run_id)
    assert scene.times("beside") == 1


async def test_a_node_that_does_not_wait_so_long_does_not_go_on_either(
    scene: Scene, runner: Serving
) -> None:
    """What works beside would be waited for; the node's own time limit is over sooner."""
    run_id = await scene.start("impatient_beside", pause_s=1.0)
    [card] = await scene.asked(run_id)
    await scene.world.decide(run_id, card, DONE)
    run = await scene.ended(run_id)
    assert run.status == "completed", run.error
    assert scene.times("went on") == 0


async def test_an_effect_beside_ends_before_the_run_stops_to_ask(
    scene: Scene, runner: Serving
) -> None:
    run_id = await scene.start("effect_beside", pause_s=0.5)
    [card] = await scene.asked(run_id)
    assert "'a'" in card.payload["title"]
    assert scene.times("b") == 1
    await scene.world.decide(run_id, card, DONE)
    run = await scene.ended(run_id)
    assert sorted(run.output["said"], key=str) == [None, "did b"]
    assert scene.times("b") == 1


async def test_a_nodes_own_questions_before_and_after_keep_their_answers(
    scene: Scene, runner: Serving
) -> None:
    run_id = await scene.start("between")
    for answer, times in (("first", 0), (AGAIN, 0), ("last", 1)):
        [card] = await scene.asked(run_id)
        assert scene.times("a") == times
        assert card.is_of_effect is isinstance(answer, dict)
        await scene.world.decide(run_id, card, answer)
    run = await scene.ended(run_id)
    assert run.output["said"] == ["first", "did a", "last"]
    assert scene.times("a") == 1


@pytest.mark.parametrize("graph", ["both_at_once", "two_nodes"])
@pytest.mark.parametrize("first", [0, 1])
async def test_two_effects_are_two_questions_and_each_gets_its_own_answer(
    scene: Scene, runner: Serving, first: int, graph: str
) -> None:
    """At once, in one node or two, answered in any order."""
    run_id = await scene.start(graph, keys=("a", "b"))
    both = sorted(await scene.asked(run_id), key=lambda row: row.payload["title"])
    assert len(both) == 2
    answers = [{**WITH_RESULT, "values": {"result": name}} for name in ("A", "B")]
    await scene.world.decide(run_id, both[first], answers[first])
    [other] = await scene.asked(run_id)
    assert other.id == both[1 - first].id
    await scene.world.decide(run_id, other, answers[1 - first])
    run = await scene.ended(run_id)
    assert sorted(run.output["said"]) == ["A", "B"]


async def test_two_effects_in_turn_are_asked_in_turn(scene: Scene, runner: Serving) -> None:
    run_id = await scene.start("two", keys=("a", "b"))
    for name in "ab":
        [card] = await scene.asked(run_id)
        assert f"'{name}'" in card.payload["title"]
        await scene.world.decide(run_id, card, AGAIN)
    run = await scene.ended(run_id)
    assert run.output["said"] == ["did a", "did b"]
    assert (scene.times("a"), scene.times("b")) == (1, 1)


@pytest.mark.parametrize("effect_first", [True, False])
async def test_a_question_of_the_graph_beside_is_answered_on_its_own(
    scene: Scene, runner: Serving, effect_first: bool
) -> None:
    run_id = await scene.start("asks_beside")
    both = sorted(await scene.asked(run_id), key=lambda row: row.is_of_effect is not effect_first)
    assert [row.is_of_effect for row in both] == [effect_first, not effect_first]
    for row in both:
        await scene.world.decide(run_id, row, AGAIN if row.is_of_effect else "heard")
        await scene.world.until_status(run_id, "interrupted", "completed")
    run = await scene.ended(run_id)
    assert sorted(run.output["said"]) == ["did a", "heard"]
    assert scene.times("a") == 1


async def test_after_another_crash_the_person_is_asked_again(scene: Scene, runner: Serving) -> None:
    """The word counted for the intent that was asked about."""
    run_id = await scene.start("catches")
    [card] = await scene.asked(run_id)
    await scene.world.decide(run_id, card, AGAIN)
    await scene.ended(run_id)
    async with scene.world.db.begin() as conn:  # as if it had died before it noted the outcome
        await conn.rows(
            "UPDATE effects SET outcome = NULL, finished_at = NULL WHERE run_id = $1", run_id
        )
        await conn.rows(
            "UPDATE runs SET status = 'queued', finished_at = NULL, output = NULL WHERE id = $1",
            run_id,
        )
        await conn.rows("DELETE FROM checkpoint_writes")
        await conn.rows("DELETE FROM checkpoints")
    [again] = await scene.asked(run_id)
    assert again.id != card.id
    assert again.asked == 1
    await scene.world.decide(run_id, again, DONE)
    run = await scene.ended(run_id)
    assert run.status == "completed"
    assert scene.times("a") == 1
    async with scene.world.db.connect() as conn:
        [effect] = await audit.effects_of(conn, run_id)
    assert [noted["interruptId"] for noted in effect.decisions] == [card.id, again.id]


async def test_a_rejection_ends_the_run_as_cancelled_and_performs_nothing(
    scene: Scene, runner: Serving
) -> None:
    """An answer that only gives up, however it came there."""
    run_id = await scene.start("catches")
    [card] = await scene.asked(run_id)
    await scene.world.decide(run_id, card, {"type": "reject"})
    run = await scene.ended(run_id)
    assert (run.status, run.cancel_reason) == ("cancelled", "rejected")
    assert scene.times("a") == 0


async def test_what_verify_knows_by_now_counts_more_than_do_it_again(
    scene: Scene, runner: Serving, folder: Path
) -> None:
    asked = {"file": str(folder / "outside"), "verify": "unknown", "returns": 1}
    run_id = await scene.world.start("effects", json.dumps(asked))
    await scene.lose_outcome(run_id, "append")
    [card] = await scene.asked(run_id)
    (folder / "outside").write_text("it happened\n")
    (folder / "outside.known").touch()
    await scene.world.decide(run_id, card, AGAIN)
    run = await scene.ended(run_id)
    assert run.output["said"] == ["found late"]
    assert (folder / "outside").read_text() == "it happened\n"
    [row] = await scene.world.interrupts(run_id)
    assert row.taken
