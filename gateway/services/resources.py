"""The resources that a decision is about, read anew (contract §5, step 6).

A question may name one. An approval of LangChain or Agent Inbox has no place for it, so there the
graph's guard names one for each action that the decision carries out, by what the action is called
with. Actions that are not done need no look.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from common import hitl
from gateway.services.cases import Case, Choice, Looked
from gateway.services.hooks import Hooks
from gateway.services.refusals import wire


async def look(hooks: Hooks, case: Case, choices: Sequence[Choice]) -> list[Looked]:
    """In the order of the questions and of their actions."""
    graph = case.run.graph
    named = [one for choice in choices for one in await _named(hooks, graph, choice)]
    now = await asyncio.gather(*(hooks.reload(graph, noted) for _, _, noted in named))
    return [
        Looked(interrupt_id, noted, found, action)
        for (interrupt_id, action, noted), found in zip(named, now, strict=True)
    ]


async def _named(hooks: Hooks, graph: str, choice: Choice) -> list[tuple[str, int | None, Any]]:
    """Interrupt, index of the action or None, and what is to be compared."""
    row = choice.interrupt
    if row.resource is not None:
        return [(row.id, None, row.resource)]
    if choice.answer is None or not hooks.names_resources(graph):
        return []
    done = hitl.carried_out(row, choice.answer["value"])
    shown = wire(row)
    found = await asyncio.gather(*(hooks.resource(graph, dict(act), shown) for _, act in done))
    pairs = zip(done, found, strict=True)
    return [(row.id, index, noted) for (index, _), noted in pairs if noted is not None]
