"""When a run counts as abandoned (runner/absence.py)."""

from hypothesis import given
from hypothesis import strategies as st

from common.bus.presence import Attended, Look
from runner.absence import Absence, Held

GRACE_S, RELEARN_S = 10.0, 25.0
HELD = {"run": ("run", 1)}
NEVER = Attended(-1, "")
NOBODY = Attended(0, "-1")
SOMEBODY = Attended(1, "-1")


class Watcher:
    """Looks once a second, from long after the first look of its process on."""

    def __init__(self) -> None:
        self.absence = Absence(grace_s=GRACE_S, relearn_s=RELEARN_S)
        self.now = 0.0
        self.see(NEVER, identity="a", held={"other": ("other", 1)})
        self.now = RELEARN_S

    def see(
        self, attended: Attended, *, identity: str = "a", held: dict[str, Held] = HELD
    ) -> list[Held]:
        self.now += 1
        return self.absence.looked(self.now, held, Look(identity, dict.fromkeys(held, attended)))

    def seconds_until_abandoned(self, attended: Attended, *, identity: str = "a") -> int:
        began = self.now
        for _ in range(100):
            if self.see(attended, identity=identity):
                return round(self.now - began)
        return -1


def test_a_run_that_nobody_ever_watched_goes_on() -> None:
    assert Watcher().seconds_until_abandoned(NEVER) == -1


def test_a_run_is_abandoned_when_nobody_came_back_within_the_grace_period() -> None:
    watcher = Watcher()
    assert not watcher.see(SOMEBODY)
    assert watcher.seconds_until_abandoned(NOBODY) == GRACE_S + 1


def test_whoever_comes_back_within_the_grace_period_starts_it_anew() -> None:
    watcher = Watcher()
    for _ in range(5):
        assert not any(watcher.see(NOBODY) for _ in range(9))
        assert not watcher.see(SOMEBODY)


def test_grace_begins_with_the_take_up_whoever_left_while_the_run_waited() -> None:
    watcher = Watcher()
    assert not any(watcher.see(NOBODY) for _ in range(9))
    assert not any(watcher.see(NOBODY, held={"run": ("run", 2)}) for _ in range(10))
    assert watcher.see(NOBODY, held={"run": ("run", 2)}) == [("run", 2)]


def test_another_server_is_not_believed_before_all_have_said_it_again() -> None:
    watcher = Watcher()
    watcher.see(SOMEBODY)
    assert not watcher.see(NOBODY, identity="b")
    assert watcher.seconds_until_abandoned(NOBODY, identity="b") == RELEARN_S


def test_a_server_that_did_not_answer_is_not_believed_either() -> None:
    watcher = Watcher()
    watcher.see(SOMEBODY)
    watcher.absence.unanswered()
    assert not watcher.see(NOBODY)
    assert watcher.seconds_until_abandoned(NOBODY) == RELEARN_S


def test_a_memory_that_began_anew_is_not_believed() -> None:
    """FLUSHALL, and one of two gateways has spoken since: the other may have the streams."""
    watcher = Watcher()
    watcher.see(SOMEBODY)
    assert not watcher.see(Attended(0, "-9"))
    assert watcher.seconds_until_abandoned(Attended(0, "-9")) == RELEARN_S


def test_a_memory_that_is_gone_is_believed_in_the_end() -> None:
    """FLUSHALL after the last client left: nobody says it again, and the run had been watched."""
    watcher = Watcher()
    watcher.see(SOMEBODY)
    assert not watcher.see(NEVER)
    assert watcher.seconds_until_abandoned(NEVER) == RELEARN_S


def test_a_process_that_has_just_begun_believes_nothing_yet() -> None:
    absence = Absence(grace_s=GRACE_S, relearn_s=RELEARN_S)
    look = Look("a", {"run": NOBODY})
    abandoned = [bool(absence.looked(n, HELD, look)) for n in range(40)]
    assert abandoned.index(True) == RELEARN_S


@given(
    seen=st.lists(
        st.tuples(st.sampled_from([NEVER, NOBODY, SOMEBODY, Attended(0, "-2")]), st.booleans()),
        max_size=60,
    )
)
def test_nothing_is_abandoned_without_a_grace_period_of_absence_that_can_be_believed(
    seen: list[tuple[Attended, bool]],
) -> None:
    watcher = Watcher()
    history: list[tuple[Attended, bool]] = []
    for attended, answered in seen:
        if not answered:
            watcher.now += 1
            watcher.absence.unanswered()
        abandoned = answered and watcher.see(attended)
        history.append((attended, answered))
        if abandoned:
            recent = history[-int(GRACE_S) :]
            assert all(one.present <= 0 and known for one, known in recent)
