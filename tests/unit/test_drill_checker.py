"""The drill's checker: for each invariant forged histories that violate it, and it says so."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.db.audit import EffectBegun, Saved
from deploy.drill.checker import Verdict, check, summed
from deploy.drill.dossier import Dossier
from deploy.drill.invariants.folding import folded_history
from deploy.drill.invariants.gapless import no_silent_gap
from deploy.drill.invariants.history import exact_history
from deploy.drill.invariants.owner import one_owner
from deploy.drill.record import Act, FaultNote, Frame, Record, Weight
from deploy.drill.truth import Question, Stored, Truth
from tests.support.drill_histories import (
    MIB,
    SECRET,
    Forged,
    Story,
    Told,
    right,
    told_otherwise,
)

ALL = ("I1", "I1f", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9")


def violated(forged: Forged) -> dict[str, list[str]]:
    verdicts = check(forged.record, forged.truth)
    return {v.invariant: v.violations for v in verdicts if v.violations}


def test_a_right_history_holds_and_every_invariant_was_checked() -> None:
    forged = right()
    verdicts = check(forged.record, forged.truth)
    assert [v.invariant for v in verdicts] == list(ALL)
    assert violated(forged) == {}
    assert all(v.outcome == "held" and v.checks > 0 for v in verdicts)


def test_without_evidence_nothing_has_passed() -> None:
    verdicts = check(Record(), Truth())
    assert {v.outcome for v in verdicts} == {"not checked"}


def test_verdicts_of_many_rounds_add_up() -> None:
    rounds = [[Verdict("I1", "a", 3, ["x"])], [Verdict("I1", "a", 2), Verdict("I2", "b")]]
    assert summed(rounds) == [Verdict("I1", "a", 5, ["x"]), Verdict("I2", "b")]
    assert [v.outcome for v in summed(rounds)] == ["violated", "not checked"]


# what one client has seen, Postgres holds, or somebody was answered

Damage = Callable[[Forged], object]


def drop(forged: Forged) -> None:
    del forged.client("steady").frames[4]


def drop_the_end(forged: Forged) -> None:
    del forged.client("steady").frames[-1]


def drop_before_the_newcomer(forged: Forged) -> None:
    del forged.client("newcomer").frames[0]


def double(forged: Forged) -> None:
    frames = forged.client("restless").frames
    frames.insert(5, frames[4])


def swap(forged: Forged) -> None:
    frames = forged.client("restless").frames
    frames[4], frames[5] = frames[5], frames[4]


def alter(forged: Forged) -> None:
    frames = forged.client("pages").frames
    frames[3] = replace(frames[3], raw=frames[3].raw.replace(b"2026", b"2027"))


def invent(forged: Forged) -> None:
    frames = forged.client("pages").frames
    frames.append(replace(frames[-1], sequence=9_999))


def lose_a_row_of_the_archive(forged: Forged) -> None:
    forged.change("run_a", batches=[*forged.truth.runs["run_a"].batches][1:])


def store_another_text(forged: Forged) -> None:
    messages = [*forged.truth.runs["run_a"].messages]
    forged.change("run_a", messages=[replace(messages[0], content="else"), *messages[1:]])


def store_too_little(forged: Forged) -> None:
    forged.change("run_a", messages=forged.truth.runs["run_a"].messages[:-1])


def store_too_much(forged: Forged) -> None:
    more = Stored("m-x", "assistant", "never said")
    forged.change("run_b", messages=[*forged.truth.runs["run_b"].messages, more])


def forget_a_run(forged: Forged) -> None:
    del forged.truth.runs["run_b"]


def end_otherwise(forged: Forged) -> None:
    forged.change("run_a", status="cancelled", cancel_reason="user")


def name_no_message(forged: Forged) -> None:
    forged.change("run_a", message_id=None)


def look_too_early(forged: Forged) -> None:
    look = next(look for look in forged.record.looks if look.type == "done")
    look.found["status"] = "running"


def look_at_an_old_sequence(forged: Forged) -> None:
    look = next(look for look in forged.record.looks if look.type == "interrupt")
    look.found["lastSequence"] = 0


def look_at_an_old_epoch(forged: Forged) -> None:
    forged.record.looks[0].found["epoch"] = 0


def look_for_the_question_in_vain(forged: Forged) -> None:
    look = next(look for look in forged.record.looks if look.type == "interrupt")
    look.found["pendingInterrupts"] = []


def look_while_its_epoch_runs(forged: Forged) -> None:
    look = next(look for look in forged.record.looks if look.type == "interrupt")
    look.found.update(pendingInterrupts=[], status="running")


def look_at_a_card_that_stays_open(forged: Forged) -> None:
    look = next(look for look in forged.record.looks if look.type == "interrupt_resolved")
    look.found["pendingInterrupts"] = [{"id": look.event["interruptId"]}]


def fork_a_checkpoint(forged: Forged) -> None:
    saved = [*forged.truth.runs["run_a"].checkpoints, Saved("c3", "c1", "run_a")]
    forged.change("run_a", checkpoints=saved)


def save_for_a_stranger(forged: Forged) -> None:
    saved = [*forged.truth.runs["run_a"].checkpoints, Saved("c3", "c2", "run_x")]
    forged.change("run_a", checkpoints=saved)


def begin_an_effect_in_the_future(forged: Forged) -> None:
    key = forged.record.ordered["run_a"].order.key
    forged.change("run_a", effects=[EffectBegun(key, 99, True)])


def be_behind_the_log(forged: Forged) -> None:
    forged.change("run_a", epoch=1)


def decides(forged: Forged, status: int) -> list[int]:
    acts = forged.record.acts
    return [n for n, a in enumerate(acts) if a.what == "decide" and a.status == status]


def lose_the_decision(forged: Forged) -> None:
    forged.change("run_a", questions=[Question("int_a", "cancelled")])


def lose_the_question(forged: Forged) -> None:
    forged.change("run_a", questions=[])


def let_two_win(forged: Forged) -> None:
    forged.record.acts[decides(forged, 409)[0]].status = 202


def answer_a_key_anew(forged: Forged) -> None:
    forged.record.acts[decides(forged, 202)[1]].answer = {"run": {"id": "run_a", "status": "x"}}


def tell_the_loser_something_else(forged: Forged) -> None:
    forged.record.acts[decides(forged, 409)[0]].answer["decision"] = "reject"


def refuse_strangely(forged: Forged) -> None:
    forged.record.acts[decides(forged, 409)[0]].status = 404


def decide_by_itself(forged: Forged) -> None:
    forged.record.acts = [act for act in forged.record.acts if act.what != "decide"]


def start_two_by_one_key(forged: Forged) -> None:
    act = copy.deepcopy(next(act for act in forged.record.acts if act.what == "create"))
    act.answer = {"run": {"id": "run_other"}}
    forged.record.acts.append(act)


def go_on_after_a_rejection(forged: Forged) -> None:
    forged.change("run_b", status="completed")


def perform_twice(forged: Forged) -> None:
    forged.truth.performed["drill-a"].append("again")


def perform_what_was_rejected(forged: Forged) -> None:
    forged.truth.performed["drill-b"].append("line")


def perform_nothing(forged: Forged) -> None:
    forged.truth.performed["drill-a"].clear()


def look_nowhere_for_effects(forged: Forged) -> None:
    forged.truth.performed.clear()


def leave_it_running(forged: Forged) -> None:
    forged.change("run_a", status="running")


def fail_for_no_reason(forged: Forged) -> None:
    forged.change("run_a", status="failed", error_code="GRAPH_ERROR")


def give_up_for_dead_runners(forged: Forged) -> None:
    forged.change("run_b", status="failed", error_code="RUNNER_LOST", epoch=9)


def stay_behind(forged: Forged) -> None:
    forged.client("steady").finished = False


def answer_nothing(forged: Forged) -> None:
    for act in forged.record.acts:
        act.status = None


def break_down(forged: Forged) -> None:
    forged.record.acts[0].status = 500


def end_too_early(forged: Forged) -> None:
    forged.client("restless").links[0].ended = "clean"


def end_before_the_pause(forged: Forged) -> None:
    link = forged.client("restless").links[0]
    link.ended, link.until = "clean", "interrupt"


def say_204_too_early(forged: Forged) -> None:
    forged.client("restless").links[1].status = 204


def say_complete_too_early(forged: Forged) -> None:
    forged.client("pages").links[0].complete = True


def expire(forged: Forged) -> None:
    forged.client("steady").links[0].status = 410


def grow(forged: Forged) -> None:
    weights = forged.record.weights
    weights[:] = [replace(w, resident_bytes=int((90 + 5 * w.at) * MIB)) for w in weights]


def be_huge(forged: Forged) -> None:
    weights = forged.record.weights
    weights[:] = [replace(w, resident_bytes=2_000 * MIB) for w in weights]


def leak_into_a_frame(forged: Forged) -> None:
    frames = forged.client("steady").frames
    frames[2] = replace(frames[2], raw=frames[2].raw + SECRET.encode())


def leak_into_an_answer(forged: Forged) -> None:
    forged.record.acts[0].answer["detail"] = f"the key is {SECRET}"


def leak_a_stack_trace(forged: Forged) -> None:
    forged.record.acts[0].answer["detail"] = "Traceback (most recent call last): …"


def leak_into_a_message(forged: Forged) -> None:
    forged.change("run_a", messages=[Stored("m", "assistant", SECRET)])


def let_a_stranger_in(forged: Forged) -> None:
    forged.record.knocks[0] = replace(forged.record.knocks[0], status=200)


DAMAGES: list[tuple[str, Damage]] = [
    *(("I1", d) for d in (drop, drop_the_end, drop_before_the_newcomer, double, swap, alter)),
    *(("I1", d) for d in (invent, lose_a_row_of_the_archive)),
    *(("I1f", d) for d in (store_another_text, store_too_little, store_too_much, drop)),
    *(("I2", d) for d in (forget_a_run, end_otherwise, name_no_message, lose_the_question)),
    *(("I2", d) for d in (look_too_early, look_at_an_old_sequence, look_at_an_old_epoch)),
    *(("I2", d) for d in (look_for_the_question_in_vain, look_while_its_epoch_runs)),
    ("I2", look_at_a_card_that_stays_open),
    *(("I3", d) for d in (fork_a_checkpoint, save_for_a_stranger, be_behind_the_log)),
    ("I3", begin_an_effect_in_the_future),
    *(("I4", d) for d in (lose_the_decision, lose_the_question, let_two_win, answer_a_key_anew)),
    *(("I4", d) for d in (tell_the_loser_something_else, refuse_strangely, decide_by_itself)),
    *(("I4", d) for d in (start_two_by_one_key, go_on_after_a_rejection)),
    *(("I5", d) for d in (perform_twice, perform_what_was_rejected, perform_nothing)),
    ("I5", look_nowhere_for_effects),
    *(("I6", d) for d in (leave_it_running, fail_for_no_reason, give_up_for_dead_runners)),
    *(("I6", d) for d in (stay_behind, answer_nothing, break_down)),
    *(("I7", d) for d in (end_too_early, end_before_the_pause, say_204_too_early, expire)),
    ("I7", say_complete_too_early),
    *(("I8", d) for d in (grow, be_huge)),
    *(("I9", d) for d in (leak_into_a_frame, leak_into_an_answer, leak_a_stack_trace)),
    *(("I9", d) for d in (leak_into_a_message, let_a_stranger_in)),
]


@pytest.mark.parametrize(
    ("invariant", "damage"), DAMAGES, ids=[f"{i}-{d.__name__}" for i, d in DAMAGES]
)
def test_a_damaged_history_violates_what_it_should(invariant: str, damage: Damage) -> None:
    forged = right()
    damage(forged)
    told = violated(forged).get(invariant, [])
    assert told
    assert all(text.startswith(("run_", "a start", "gateway-1")) for text in told)


# what everybody has seen alike


def end_twice(story: Story) -> None:
    story.events.append(Told("cancelled", 4, {"reason": "user"}, sequence=900))


def go_on_after_the_end(story: Story) -> None:
    late = {"messageId": "m-late", "delta": "late"}
    story.events.append(Told("text_delta", 4, late, "s9", sequence=900))


def not_end(story: Story) -> None:
    del story.events[-1]


def jump_in_a_text(story: Story) -> None:
    story.number(jump_at=story.find("text_delta", 1))


def jump_at_a_decision(story: Story) -> None:
    story.number(jump_at=story.find("run_resumed", 1))


def count_backwards(story: Story) -> None:
    story.events[4].sequence = 2


def let_the_old_owner_write(story: Story) -> None:
    story.find("text_delta", 6).epoch = 1


def take_over_in_silence(story: Story) -> None:
    story.events.remove(story.find("run_resumed", 1))
    story.events.remove(story.find("interrupt_resolved"))
    story.number(jump_at=story.find("run_resumed"))


def discard_too_little(story: Story) -> None:
    story.find("run_resumed").fields["discard"] = []


def discard_too_much(story: Story) -> None:
    story.find("run_resumed").fields["discard"] = ["s1", "s0"]


def forget_the_retry(story: Story) -> None:
    story.find("step_retried").step = "s9"


def say_a_word_twice(story: Story) -> None:
    story.find("text_delta").fields["delta"] *= 2


def show_a_number_twice(story: Story) -> None:
    story.find("custom", 1).fields["data"] = story.find("custom").fields["data"]


def finish_a_tool_never(story: Story) -> None:
    story.find("tool_finished").type = "tool_started"


def tell_another_decision(story: Story) -> None:
    story.find("interrupt_resolved").fields["decision"] = "reject"


def tell_no_decision(story: Story) -> None:
    story.find("interrupt_resolved").fields["interruptId"] = "int_x"


def ask_what_is_not_stored(story: Story) -> None:
    story.find("interrupt").fields["interruptId"] = "int_x"


def finish_with_another_message(story: Story) -> None:
    story.find("done").fields["messageId"] = "m-x"


STORIES: list[tuple[str, Callable[[Story], object]]] = [
    *(("I6", c) for c in (end_twice, go_on_after_the_end, not_end)),
    *(("I1", c) for c in (jump_in_a_text, jump_at_a_decision, count_backwards)),
    *(("I3", c) for c in (let_the_old_owner_write, take_over_in_silence)),
    *(("I1f", c) for c in (discard_too_little, discard_too_much, forget_the_retry)),
    *(("I1f", c) for c in (say_a_word_twice, show_a_number_twice, finish_a_tool_never)),
    *(("I4", c) for c in (tell_another_decision, tell_no_decision)),
    *(("I2", c) for c in (ask_what_is_not_stored, finish_with_another_message)),
]


@pytest.mark.parametrize(
    ("invariant", "change"), STORIES, ids=[f"{i}-{c.__name__}" for i, c in STORIES]
)
def test_a_wrong_history_is_wrong_though_all_have_seen_the_same(
    invariant: str, change: Callable[[Story], object]
) -> None:
    assert violated(told_otherwise(change)).get(invariant)


def asked_about_its_effect(decision: object, *, lines: int) -> Forged:
    """A run whose person approved, and was asked later whether the effect has happened."""
    forged = right()
    about = Question("int_effect", "resolved", decision)
    questions = [*forged.truth.runs["run_a"].questions, about]
    forged.change("run_a", questions=questions)
    forged.truth.performed["drill-a"][:] = forged.truth.performed["drill-a"][:1] * lines
    return forged


@pytest.mark.parametrize(
    ("decision", "right_lines", "wrong_lines"),
    [({"select": "again"}, (1, 2), (0, 3)), ({"select": "done"}, (0, 1), (2,))],
)
def test_a_person_may_have_an_effect_done_again_or_taken_as_done(
    decision: object, right_lines: Sequence[int], wrong_lines: Sequence[int]
) -> None:
    for lines in right_lines:
        assert "I5" not in violated(asked_about_its_effect(decision, lines=lines))
    for lines in wrong_lines:
        assert violated(asked_about_its_effect(decision, lines=lines)).get("I5")


def test_an_unanswered_attempt_to_start_is_healed_by_the_next_that_names_its_run() -> None:
    forged = right()
    start = next(act for act in forged.record.acts if act.what == "create")
    forged.record.acts.insert(0, replace(start, run=None, status=None, answer={}))
    assert violated(forged) == {}


def without_its_tail() -> Forged:
    """Clients have seen an event of a step that is executed again, and the archive never got it."""
    forged = right()
    batches = [*forged.truth.runs["run_a"].batches]
    place = next(n for n, batch in enumerate(batches) if b"m-void" in batch.frames)
    lost, jump = batches[place : place + 2]
    batches[place : place + 2] = [replace(jump, after=lost.after)]
    forged.change("run_a", batches=batches)
    return forged


def test_a_tail_that_redis_lost_with_its_runner_is_no_hole() -> None:
    forged = without_its_tail()
    forged.record.faults.append(FaultNote("redis-empty", "redis", 0.0, 0.1))
    assert violated(forged) == {}


def test_a_tail_is_not_lost_while_nothing_is_done_to_redis() -> None:
    forged = without_its_tail()
    forged.record.faults.append(FaultNote("runner-kill", "runner-1", 0.0, 0.1))
    assert "is in no log" in violated(forged)["I1"][0]


@pytest.mark.parametrize(("old", "new"), [(b"2026", b"2027"), (b'"epoch":1', b'"epoch":2')])
def test_a_lost_tail_is_the_same_for_all_and_of_an_older_epoch(old: bytes, new: bytes) -> None:
    forged = without_its_tail()
    forged.record.faults.append(FaultNote("redis-empty", "redis", 0.0, 0.1))
    frames = forged.client("pages").frames
    place = next(n for n, frame in enumerate(frames) if b"m-void" in frame.raw)
    frames[place] = replace(frames[place], raw=frames[place].raw.replace(old, new))
    assert "I1" in violated(forged)


def test_a_hole_in_a_lost_tail_is_a_hole() -> None:
    forged = without_its_tail()
    forged.record.faults.append(FaultNote("redis-empty", "redis", 0.0, 0.1))
    frames = forged.client("steady").frames
    place = next(n for n, frame in enumerate(frames) if b"m-void" in frame.raw)
    frames[place] = replace(frames[place], sequence=frames[place].sequence + 1)
    assert "I1" in violated(forged)


def test_processes_that_lived_for_seconds_say_nothing_about_memory() -> None:
    forged = right()
    forged.record.weights = forged.record.weights[:9]
    verdict = next(v for v in check(forged.record, forged.truth) if v.invariant == "I8")
    assert verdict.outcome == "not checked"


def test_a_process_that_was_started_meanwhile_may_load_its_code() -> None:
    forged = right()
    forged.record.weights += [
        Weight("runner-1", "runner", 9, 5.0 + n, min(20 + 9 * n, 110) * MIB) for n in range(60)
    ]
    assert "I8" not in violated(forged)


def test_a_start_that_was_answered_at_its_second_attempt_is_answered() -> None:
    forged = right()
    forged.record.acts.insert(0, Act("create", None, "ada", "k-run_a", "http://a", 0.0))
    assert violated(forged) == {}


# any damage, anywhere

anywhere = settings(max_examples=25, deadline=None)


def found(invariant: Callable[[Dossier], Verdict], forged: Forged) -> list[str]:
    return invariant(Dossier.of(forged.record, forged.truth)).violations


@st.composite
def places(draw: st.DrawFn) -> tuple[Forged, list[Frame], int]:
    """A right history, the frames of one of its clients, and one of them."""
    forged = right()
    frames = draw(st.sampled_from([seen.frames for seen in forged.record.clients]))
    return forged, frames, draw(st.integers(0, len(frames) - 1))


@anywhere
@given(places())
def test_any_dropped_event_is_found(place: tuple[Forged, list[Frame], int]) -> None:
    forged, frames, at = place
    gone = frames.pop(at)
    assert any(f"#{gone.sequence}" in text for text in found(exact_history, forged))


@anywhere
@given(places(), st.data())
def test_any_doubled_event_is_found(
    place: tuple[Forged, list[Frame], int], data: st.DataObject
) -> None:
    forged, frames, at = place
    frames.insert(data.draw(st.integers(at + 1, len(frames))), frames[at])
    assert any(f"#{frames[at].sequence}" in text for text in found(exact_history, forged))


@anywhere
@given(places(), st.data())
def test_any_two_swapped_events_are_found(
    place: tuple[Forged, list[Frame], int], data: st.DataObject
) -> None:
    forged, frames, at = place
    if len(frames) > 1:
        other = data.draw(st.integers(0, len(frames) - 1).filter(lambda n: n != at))
        frames[at], frames[other] = frames[other], frames[at]
        assert found(exact_history, forged)


@anywhere
@given(places(), st.data())
def test_any_altered_byte_is_found(
    place: tuple[Forged, list[Frame], int], data: st.DataObject
) -> None:
    forged, frames, at = place
    raw = bytearray(frames[at].raw)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    frames[at] = replace(frames[at], raw=bytes(raw))
    assert any(f"#{frames[at].sequence}" in text for text in found(exact_history, forged))


@anywhere
@given(st.data())
def test_any_event_of_an_older_epoch_is_found(data: st.DataObject) -> None:
    def change(story: Story) -> None:
        after = [pair for pair in pairwise(story.events) if pair[0].epoch > 1]
        before, event = data.draw(st.sampled_from(after))
        event.epoch = data.draw(st.integers(1, before.epoch - 1))

    assert found(one_owner, told_otherwise(change))


@anywhere
@given(st.data())
def test_any_row_missing_in_the_archive_is_found(data: st.DataObject) -> None:
    forged = right()
    batches = [*forged.truth.runs["run_a"].batches]
    del batches[data.draw(st.integers(0, len(batches) - 1))]
    forged.change("run_a", batches=batches)
    assert found(exact_history, forged)


@anywhere
@given(st.data())
def test_any_text_that_is_not_what_was_ordered_is_found(data: st.DataObject) -> None:
    def change(story: Story) -> None:
        texts = [event for event in story.events if event.type == "text_delta"]
        event = data.draw(
            st.sampled_from([t for t in texts if "void" not in t.fields["messageId"]])
        )
        event.fields["delta"] = event.fields["delta"] + "x"

    assert found(folded_history, told_otherwise(change))


@anywhere
@given(st.data())
def test_any_clean_end_before_the_end_is_found(data: st.DataObject) -> None:
    forged = right()
    seen = forged.client("steady")
    count = data.draw(st.integers(0, len(seen.frames) - 1))
    seen.frames = seen.frames[:count]
    assert found(no_silent_gap, forged)
