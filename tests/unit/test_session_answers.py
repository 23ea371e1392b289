"""What the session facade says of a run is said for every status and reason (contract §6)."""

from typing import get_args

from common.runs import STATUSES, TERMINAL_STATUSES, CancelReason
from gateway.services.answers import CANCELLED, STATUS


def test_every_status_of_a_run_is_one_of_the_facades() -> None:
    assert set(STATUS) == set(STATUSES)
    stopped = {status for status in STATUSES if STATUS[status] in ("completed", "error")}
    assert stopped == TERMINAL_STATUSES


def test_a_cancelled_run_says_so_whatever_the_reason() -> None:
    assert set(CANCELLED) == set(get_args(CancelReason))
    assert all(text.startswith("cancelled") for text in CANCELLED.values())
