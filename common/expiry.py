"""Expiring a run's questions: one transaction, as the run's owner (contract §5 and §8, design §3).

Any number of processes may do it at once, and people may decide meanwhile. The run's row is locked
first, as for every decision, and the database's clock alone says what is overdue: a decision wins
only before `expires_at`, an expiry only from then on. Whose row is locked is passed over; the next
sweep finds what is left.

What becomes of the run is its questions' `on_expire`. `reject`: the graph gets a rejection, also
where a person's reject would end the run, and the run goes on; other questions stay as they are.
`cancel` ends the run, also when only one of several questions says so, or when a format has no
word for the rejection that is wanted.
"""

from dataclasses import dataclass

from common import hitl
from common.db import interrupts, runs
from common.db.engine import Connection
from common.db.interrupts import Interrupt
from common.db.runs import Run
from common.ending import end
from common.ownership import Act, OwnerActs


@dataclass(frozen=True, slots=True)
class Expired:
    """What is to be told after the commit: `act`, or `order` to the runner that holds the run."""

    run: Run
    questions: list[Interrupt]
    act: Act | None
    order: str


async def expire(
    connection: Connection, owner: OwnerActs, run_id: str, *, at_once: bool = True
) -> Expired | None:
    """In a transaction of its own. None: nothing is overdue, or somebody else is at the run.

    Raises Unavailable where the run is to be ended and a dead runner's tail is in a Redis that is
    away. Not `at_once` asks for the end instead: whoever takes the run up ends it.
    """
    run = await runs.try_lock(connection, run_id)
    questions = await interrupts.overdue_of(connection, run_id) if run is not None else []
    if run is None or not questions:
        return None
    answers = {question.id: _answer(question) for question in questions}
    if any(answer is None for answer in answers.values()):
        await interrupts.expire_overdue(connection, run_id)
        act = await end(connection, owner, run, "expired", at_once=at_once)
        return Expired(run, questions, act, "cancel")
    for question_id, answer in answers.items():
        await interrupts.decide(
            connection, question_id, decision=None, answer=answer, status="expired", by=None
        )
    return Expired(run, questions, await owner.resolve(connection, run), "decided")


def _answer(question: Interrupt) -> dict[str, object] | None:
    """What the graph gets; None ends the run."""
    if question.on_expire == "cancel":
        return None
    rejection = hitl.rejection(question)
    return None if rejection is None else {"value": rejection.value}
