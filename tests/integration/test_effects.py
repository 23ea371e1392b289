"""Guarded effects in a whole runner: performed at most once, whatever is executed again (I5)."""

import json
from pathlib import Path
from typing import Any

import pytest

from common.db.runs import Run
from tests.integration.test_runner import Serving, World, runner, types, world
from tests.support.until import until

__all__ = ["runner", "world"]  # fixtures


class Asked:
    """A message for the graphs of tests/support/graphs/effects.py, and the file they write to."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "outside"

    def content(self, **fields: Any) -> str:
        return json.dumps({"file": str(self.file), **fields})

    @property
    def lines(self) -> list[str]:
        return self.file.read_text().split() if self.file.exists() else []

    @property
    def executions(self) -> int:
        return len(self.file.with_suffix(".executed").read_text().split())


@pytest.fixture
def asked(folder: Path) -> Asked:
    return Asked(folder)


async def ended(world: World, graph: str, content: str) -> Run:
    return await world.until_status(await world.start(graph, content), "completed", "failed")


async def taken_up_with_intent(world: World, content: str) -> Run:
    """A runner has died after it stored the intent; another one takes the run up."""
    run_id = await world.start("effects", content)
    async with world.db.connect() as conn:
        await conn.rows("INSERT INTO effects (run_id, key, epoch) VALUES ($1, 'append', 0)", run_id)
    serving = Serving(world.settings)
    run = await world.until_status(run_id, "completed", "failed", "interrupted")
    await serving.stop()
    return run


async def is_begun(world: World, run_id: str) -> bool:
    async with world.db.connect() as conn:
        return bool(await conn.value("SELECT count(*) FROM effects WHERE run_id = $1", run_id))


@pytest.mark.parametrize("fn", ["async", "sync", "made"])
async def test_a_node_that_is_executed_again_does_not_perform_its_effect_again(
    world: World, runner: Serving, asked: Asked, fn: str
) -> None:
    content = asked.content(fn=fn, executions=3, returns={"n": 1})
    run = await ended(world, "effects", content)
    assert run.output["said"] == [{"n": 1}]
    assert asked.executions == 3
    assert len(asked.lines) == 1


async def test_a_sync_node_performs_its_effect_in_its_thread(
    world: World, runner: Serving, asked: Asked
) -> None:
    run = await ended(world, "effects_in_a_thread", asked.content(fn="sync", returns=7))
    assert run.output["said"] == [7]
    assert len(asked.lines) == 1


async def test_of_branches_with_one_key_at_once_one_performs_and_the_others_wait(
    world: World, runner: Serving, asked: Asked
) -> None:
    run = await ended(world, "effects_at_once", asked.content(pause_s=0.05, returns="once"))
    assert run.output["said"] == ["once"] * 3
    assert len(asked.lines) == 1


async def test_the_first_execution_returns_what_every_later_one_does(
    world: World, runner: Serving, asked: Asked
) -> None:
    run = await ended(world, "effects", asked.content(returns="tuple"))
    assert run.output["said"] == [[1, 2]]


@pytest.mark.parametrize("returns", ["object", "nan", "big", "nul"])
async def test_what_cannot_be_kept_fails_the_run_and_the_effect_counts_as_performed(
    world: World, runner: Serving, asked: Asked, returns: str
) -> None:
    run = await ended(world, "effects", asked.content(returns=returns))
    assert run.error == {"code": "GRAPH_ERROR", "message": "The agent failed (OutcomeRefused)."}
    assert len(asked.lines) == 1
    async with world.db.connect() as conn:
        outcome = await conn.value("SELECT outcome FROM effects WHERE run_id = $1", run.id)
    assert list(outcome) == ["refused"]


@pytest.mark.parametrize("catches", [False, True])
@pytest.mark.parametrize("verify", [None, "unknown"])
async def test_an_intent_of_a_dead_runner_that_nobody_can_verify_is_asked_about(
    world: World, asked: Asked, catches: bool, verify: str | None
) -> None:
    run = await taken_up_with_intent(world, asked.content(catches=catches, verify=verify))
    assert run.status == "interrupted"
    [card] = await world.interrupts(run.id)
    assert "'append'" in card.payload["title"]
    assert asked.lines == []


@pytest.mark.parametrize("fn", ["async", "sync"])
async def test_an_intent_of_a_dead_runner_is_performed_when_verify_says_it_was_not(
    world: World, asked: Asked, fn: str
) -> None:
    run = await taken_up_with_intent(world, asked.content(verify=True, fn=fn, returns=1))
    assert run.output["said"] == [1]
    assert len(asked.lines) == 1
    async with world.db.connect() as conn:
        row = await conn.row("SELECT epoch, outcome FROM effects WHERE run_id = $1", run.id)
    assert row is not None
    assert tuple(row) == (1, {"value": 1})


async def test_an_effect_that_failed_is_not_tried_again_without_verify(
    world: World, runner: Serving, asked: Asked
) -> None:
    """Its error may have come after the effect: the retry policy meets the intent."""
    run_id = await world.start("effects", asked.content(fails="after"))
    await world.until_status(run_id, "interrupted")
    [card] = await world.interrupts(run_id)
    assert card.payload["effect"]["epoch"] == 1
    assert len(asked.lines) == 1


async def test_an_effect_that_failed_after_it_happened_is_found_by_verify(
    world: World, runner: Serving, asked: Asked
) -> None:
    run = await ended(world, "effects", asked.content(fails="after", verify=True))
    assert run.output["said"] == ["found"]
    assert len(asked.lines) == 1


async def test_an_effect_that_says_it_was_not_performed_is_tried_again(
    world: World, runner: Serving, asked: Asked
) -> None:
    run = await ended(world, "effects", asked.content(fails="before", returns=1))
    assert run.output["said"] == [1]
    assert len(asked.lines) == 1


@pytest.mark.parametrize("fn", ["async", "sync"])
async def test_an_effect_under_way_is_noted_when_its_runner_drains(
    world: World, asked: Asked, fn: str
) -> None:
    settings = world.settings.model_copy(update={"drain_timeout_s": 1.5})
    first = Serving(settings)
    run_id = await world.start("effects", asked.content(fn=fn, pause_s=1.0, returns=1))
    await until(lambda: is_begun(world, run_id), within_s=20)
    await first.stop()
    assert (await world.find(run_id)).status == "queued"
    second = Serving(world.settings)
    run = await world.until_status(run_id, "completed", "failed")
    await second.stop()
    assert run.output["said"] == [1]
    assert len(asked.lines) == 1


async def test_no_effect_begins_after_a_cancellation_that_nobody_has_told_the_runner(
    world: World, asked: Asked
) -> None:
    run_id = await world.start("effects", asked.content())
    serving = Serving(world.settings)
    async with world.db.connect() as conn:
        await conn.rows(
            "UPDATE runs SET cancel_requested = 'user' WHERE id = $1 AND finished_at IS NULL",
            run_id,
        )
    run = await world.until_status(run_id, "cancelled", "completed")
    await serving.stop()
    assert run.status == "cancelled"
    assert asked.lines == []
    assert types(await world.events(run_id))[-1] == "cancelled"
