"""How often a reaper looks."""

import pytest

from runner.reaper import LastLook, pause_s


def test_a_few_runners_look_at_the_interval_that_is_set() -> None:
    assert pause_s(0.5, 2, 0.5) == pytest.approx(0.5)


def test_many_runners_look_less_often_each_so_that_the_load_stays_the_same() -> None:
    assert pause_s(0.5, 200, 0.5) == pytest.approx(2.0)


@pytest.mark.parametrize(("chance", "expected"), [(0.0, 0.4), (0.999999, 0.6)])
def test_pauses_differ_so_that_reapers_do_not_fall_into_step(
    chance: float, expected: float
) -> None:
    assert pause_s(0.5, 1, chance) == pytest.approx(expected, rel=1e-3)


def test_only_who_has_looked_before_and_then_could_not_knows_of_a_gap() -> None:
    now = 100.0
    last = LastLook(lambda: now)
    assert last.was_within(3.0)  # a process that has just started
    last.note()
    now = 102.0
    assert last.was_within(3.0)
    now = 104.0
    assert not last.was_within(3.0)
