"""Turns what a graph's `interrupt()` asked, and what nobody knows of its effects, into rows of
`interrupts` (contract §8)."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from langchain_core.messages import ToolCall
from langgraph.types import Interrupt as Native

from common import hitl
from common.db.interrupts import Interrupt, NewInterrupt
from common.db.runs import ClaimedRun
from common.ids import stable_id
from common.masking import Masker
from runner import effectcard
from runner.asking import Unknown
from runner.durable import Durable
from runner.registry import Graph, Registry
from runner.toolschemas import tool_schemas


class Questions:
    def __init__(self, registry: Registry, masker: Masker) -> None:
        self._registry = registry
        self._masker = masker

    def new(
        self,
        run: ClaimedRun,
        graph: Graph,
        state: Durable,
        known: list[Interrupt],
        now: datetime,
        unknown: Sequence[Unknown] = (),
    ) -> list[NewInterrupt]:
        """The questions that are pending in the durable state, and those about effects, which have
        no open row yet.

        One native id can be asked again after its answer was taken; `asked` counts that.
        """
        rows = []
        for native_id, question in self._asked(run, graph, state, unknown):
            earlier = [row for row in known if row.native_id == native_id]
            if not any(_open(row) for row in earlier):
                rows.append(_row(run, native_id, len(earlier), question, now))
        return rows

    def _asked(
        self, run: ClaimedRun, graph: Graph, state: Durable, unknown: Sequence[Unknown]
    ) -> Iterator[tuple[str, hitl.Question]]:
        for native_id, native in state.pending.items():
            asker = state.askers.get(native_id)
            calls = asker.calls if asker else []
            yield native_id, self._question(run, graph, native, calls)
        spec = self._registry.spec(run.graph)
        for effect in unknown:
            card = effectcard.question(effect, spec, self._masker)
            yield effectcard.native_id(run.id, effect.key), card

    def _question(
        self, run: ClaimedRun, graph: Graph, native: Native[Any], calls: Sequence[ToolCall]
    ) -> hitl.Question:
        schema = native.response_schema
        return hitl.question(
            native.value,
            self._registry.spec(run.graph),
            self._masker,
            schemas=tool_schemas(graph),
            response_schema=schema if isinstance(schema, dict) else None,
            calls=[(call["id"], call["name"], call["args"]) for call in calls],
        )


def _row(
    run: ClaimedRun, native_id: str, asked: int, question: hitl.Question, now: datetime
) -> NewInterrupt:
    return NewInterrupt(
        id=stable_id("int", run.id, native_id, str(asked)),
        native_id=native_id,
        asked=asked,
        type=question.type,
        format=question.format,
        payload=question.payload,
        allowed_decisions=question.allowed_decisions,
        actions=question.actions,
        on_reject=question.on_reject,
        on_expire=question.on_expire,
        required_permission=question.required_permission,
        expires_at=expires_at(now, question.expires_in_s),
        resource=question.resource,
        answer_schema=question.answer_schema,
    )


def expires_at(now: datetime, in_s: float | None) -> datetime | None:
    """None: never, and so is what no calendar has a day for."""
    try:
        return None if in_s is None else now + timedelta(seconds=in_s)
    except OverflowError:
        return None


def _open(row: Interrupt) -> bool:
    """It waits for a decision, or its answer is still to be taken."""
    return row.status == "pending" or (row.answer is not None and not row.taken)
