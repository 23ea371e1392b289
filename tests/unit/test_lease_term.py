"""The local clock's half of the lease: it may only make a runner stop earlier."""

import pytest

from common.errors import Misconfigured
from runner.lease import DeathNotice, Lease, Term


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def term(clock: Clock) -> Term:
    return Term(6.0, 60.0, clock)


def test_nothing_is_held_before_the_first_renewal(term: Term) -> None:
    assert not term.holds
    assert not term.is_over


def test_a_first_renewal_that_never_comes_ends_the_term(term: Term, clock: Clock) -> None:
    clock.now += 5.0
    assert term.is_over


def test_the_deadline_counts_from_before_the_renewal_was_sent(term: Term, clock: Clock) -> None:
    sent_at = clock.now
    clock.now += 3.0  # the answer took so long
    term.renewed(sent_at)
    assert term.deadline == sent_at + 5.0
    assert term.remaining_s == 2.0


def test_the_term_ends_a_second_before_the_lease_does(term: Term, clock: Clock) -> None:
    term.renewed(clock.now)
    clock.now += 4.9
    assert (term.holds, term.is_over) == (True, False)
    clock.now += 0.1
    assert (term.holds, term.is_over) == (False, True)


def test_an_answer_that_comes_after_a_long_stop_proves_nothing(term: Term, clock: Clock) -> None:
    sent_at = clock.now
    clock.now += 20.0
    term.renewed(sent_at)
    assert term.is_over
    assert not term.holds


def test_a_short_lease_keeps_a_margin_of_a_quarter(clock: Clock) -> None:
    assert Term(2.0, 60.0, clock).usable_s == 1.5


def test_a_loop_that_beats_is_not_stalled(term: Term, clock: Clock) -> None:
    clock.now += 50.0
    term.beat()
    clock.now += 50.0
    assert not term.loop_stalled


def test_a_loop_that_stands_still_too_long_is_stalled(term: Term, clock: Clock) -> None:
    clock.now += 60.1
    assert term.loop_stalled


@pytest.mark.parametrize("notice", ["lock", "lease"])
def test_a_renewal_interval_that_leaves_no_second_try_is_refused(notice: DeathNotice) -> None:
    with pytest.raises(Misconfigured, match="STEADYRUN_LEASE_RENEW_INTERVAL_S"):
        Lease(
            database_url="postgresql://localhost/nothing",
            runner_id="rnr_1",
            slot=1,
            ttl_s=6.0,
            renew_interval_s=2.6,
            death_notice=notice,
            on_lost=lambda reason: None,
        )
