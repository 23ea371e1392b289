"""The answers of people on their way into a graph, and those that a graph cannot use (contract §5).

A stored answer is sent, by native id, until the durable state shows that it was taken: one that was
sent dies with its runner.

LangGraph keeps an answer also when the node fails with it, and from then on the node fails with
every later answer: the thread is lost (langgraph-facts §1). Answers are checked before they are
stored, but what a plain `interrupt()` expects only its node knows. So the saver drops the answers
of a step that failed, which leaves the thread as it was before, and a question for a *value* is
asked again, as a new interrupt, instead of failing the run, at most `ANSWERS_MAX` times in all.
Not so

* a permission (`confirm_action`) that was given as its format wants it: the act that it permitted
  may have failed, half done;
* a rejection, or an expiry: a node that fails then says that it cannot go on;
* where a guarded effect was begun meanwhile: it is not asked for again what was done already;
* where the node failed before it came to the answer.

These fail the run, as any failure of a graph does; the conversation goes on with the next input.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
from langgraph.errors import is_invalid_resume

from common import hitl
from common.db import interrupts
from common.db.interrupts import Interrupt
from common.db.runs import ClaimedRun
from common.errors import LeaseLost
from runner.durable import Durable
from runner.kit import Kit

log = structlog.get_logger(__name__)

ANSWERS_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class _Failure:
    """Of a step; `given`: the answers that its questions had returned before."""

    error: BaseException
    given: Sequence[Any]


class Answers:
    """Of one take-up of a run."""

    def __init__(self, kit: Kit, run: ClaimedRun) -> None:
        self._kit, self._run = kit, run
        self.given: Sequence[str] = ()
        """The interrupts whose answers were last sent, or lay ready for an effect to ask for."""
        self._sent: Mapping[str, Interrupt] = {}
        self._failures: dict[str, _Failure] = {}

    async def to_send(self, state: Durable) -> dict[str, Any]:
        """Stored answers to what is pending; what no longer is pending was taken. Fenced."""
        async with self._kit.db.connect() as conn:
            rows = await interrupts.untaken(conn, self._run.id)
        taken = [row for row in rows if self._is_taken(row, state)]
        await self._mark_taken(taken)
        self.given = [row.id for row in rows if row not in taken]
        self._sent = {row.native_id: row for row in rows if row.native_id in state.pending}
        self._failures.clear()
        return {native_id: row.answer_value for native_id, row in self._sent.items()}

    def _is_taken(self, row: Interrupt, state: Durable) -> bool:
        """What is said of an effect is taken in the ledger (common/db/effects). Where the graph was
        executed with it and no effect has asked for it, none will."""
        if not row.is_of_effect:
            return row.native_id not in state.pending
        return row.id in self.given

    @property
    def have_failed(self) -> bool:
        """Some step has failed since the last answers were read."""
        return bool(self._failures)

    def note_failure(self, step_id: str, error: BaseException, given: Sequence[Any]) -> None:
        """From the saver, which has dropped what was given."""
        self._failures[step_id] = _Failure(error, given)

    async def take_back(self, state: Durable) -> bool:
        """After a graph has failed: whether that was for answers that can be asked for again. They
        are never sent again then. Fenced."""
        refused = [
            (row, failure) for row in self._sent.values() if (failure := self._of(state, row))
        ]
        if not refused or not all(_can_be_asked_again(row, failure) for row, failure in refused):
            return False
        await self._mark_taken([row for row, _ in refused])
        log.warning("answers_unusable", interrupts=[row.id for row, _ in refused])
        return True

    def _of(self, state: Durable, row: Interrupt) -> _Failure | None:
        """The failure of the step that had just got this answer."""
        asker = state.askers.get(row.native_id)
        failure = None if asker is None else self._failures.get(asker.step_id)
        if failure is None or is_invalid_resume(failure.error):
            return failure
        return failure if row.answer_value in failure.given else None

    async def _mark_taken(self, rows: Sequence[Interrupt]) -> None:
        run, ids = self._run, [row.id for row in rows]
        if not ids:
            return
        async with self._kit.db.connect() as conn:
            if not await interrupts.mark_taken(conn, run.id, run.epoch, ids):
                raise LeaseLost(run.id, run.epoch)


def _can_be_asked_again(row: Interrupt, failure: _Failure) -> bool:
    if row.status == "expired" or row.asked + 1 >= ANSWERS_MAX or _is_reject(row):
        return False
    if is_invalid_resume(failure.error) or row.type != "confirm_action":
        return True
    return hitl.validate_raw(row, _without_by(row)) is not None


def _is_reject(row: Interrupt) -> bool:
    """By a decision, or by the graph's own value (so the session facade rejects opaque ones)."""
    decision, value = row.decision, row.answer_value
    if decision == "reject" or (isinstance(decision, Mapping) and "reject" in decision):
        return True
    return isinstance(value, Mapping) and value.get("type") == "reject"


def _without_by(row: Interrupt) -> Any:
    """Who decided is ours and no part of what a format knows."""
    value = row.answer_value
    if row.format != "steadyrun" or not isinstance(value, Mapping):
        return value
    return {name: part for name, part in value.items() if name != "by"}
