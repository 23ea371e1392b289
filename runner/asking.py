"""Effects that wait for a person, and when the execution may stop to ask (I5).

An effect whose outcome nobody knows does not raise anything that user code could catch: its call
does not return. What else the run does at that moment goes on (a sibling that streams, another
effect in its middle), since stopping it would waste it or leave one more outcome unknown. Once all
that is left stands in such calls, the graph is stopped and the questions are stored; the run waits
for them as it does for any interrupt. They are known by the effect's key and not by their place in
the node, so that they cannot be mistaken for what the node asks itself by `interrupt()`.

Nobody is waited for where that would be in vain or could go on for ever: a caller that does not
wait any longer (`asyncio.wait_for`), an effect inside another one, a `@task` (its caller stands
still without a sign of it), and whoever needs more than `PATIENCE_S`.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from langgraph.config import get_config

from runner.authoring.effects import outside
from runner.gate import Gate
from runner.steps import Steps

PATIENCE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Unknown:
    """An effect that was begun by `runner_id` under `epoch`, and nobody knows whether it happened.
    `permission`: who may say so; None: the owner of the conversation."""

    key: str
    epoch: int
    runner_id: str | None
    started_at: datetime
    permission: str | None


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """`steps`: those that stand still while it waits, its node and what that is nested in; None:
    that cannot be told."""

    key: str
    steps: frozenset[str] | None


class Asking:
    """Of one execution, in its loop. `over` is set when the graph is to be stopped."""

    def __init__(self, gate: Gate) -> None:
        self.over = asyncio.Event()
        self._gate = gate
        self._steps = Steps()
        self._announced: set[str] = set()
        self._calls: set[_Call] = set()
        self._unknown: dict[str, Unknown] = {}
        self._patience: asyncio.TimerHandle | None = None
        gate.on_saved = self._look

    @property
    def is_over(self) -> bool:
        return self.over.is_set()

    @property
    def unknown(self) -> tuple[Unknown, ...]:
        return tuple(self._unknown.values())

    def reset(self) -> None:
        """The graph is about to be executed."""
        self.over.clear()
        self._unknown, self._announced = {}, set()
        self._stop_patience()

    def open(self, steps: Steps) -> None:
        """A stream begins."""
        self._steps, self._announced = steps, set()

    def note(self, chunk: Mapping[str, Any]) -> None:
        """After a chunk of the stream was translated."""
        if chunk["type"] == "tasks":
            step = chunk["data"]["id"]
            begins = "triggers" in chunk["data"]
            (self._announced.add if begins else self._announced.discard)(step)
            self._look()

    @contextmanager
    def inside(self, key: str) -> Iterator[None]:
        """Around all of a call of `guarded`."""
        call = _Call(key, _steps_of_here())
        self._calls.add(call)
        try:
            yield
        finally:
            self._calls.discard(call)
            self._look()

    def ask(self, unknown: Unknown) -> None:
        """From inside a call, which does not go on after this."""
        self._unknown[unknown.key] = unknown
        if any(call.steps is None for call in self._asking()):
            self.rest()
        elif self._patience is None:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(PATIENCE_S, self._lose_patience)
        self._look()

    def asks(self, key: str) -> bool:
        return key in self._unknown

    def rest(self) -> bool:
        """Stops the graph now. From here on nothing that its steps give is saved. False: it has
        been stopped before."""
        if self.is_over:
            return False
        self._stop_patience()
        self.over.set()
        self._gate.close()
        return True

    def _asking(self) -> list[_Call]:
        return [call for call in self._calls if call.key in self._unknown]

    def _look(self) -> None:
        """Rest, if nothing is left that could go on."""
        if not self._unknown or self.is_over or self._gate.is_saving or self._is_busy:
            return
        standing = {step for call in self._asking() for step in call.steps or ()}
        # a step that LangGraph announces and does not execute has never begun
        executed = {step for step in self._announced if self._steps.starts[step]}
        if executed <= standing:
            self.rest()

    @property
    def _is_busy(self) -> bool:
        return any(call.key not in self._unknown for call in self._calls)

    def _lose_patience(self) -> None:
        self._patience = None
        if not self._is_busy:
            self.rest()
        else:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(PATIENCE_S, self._lose_patience)

    def _stop_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def _steps_of_here() -> frozenset[str] | None:
    try:
        config = get_config()
    except RuntimeError:
        return None
    path: Sequence[Any] = (config.get("metadata") or {}).get("langgraph_path") or ()
    is_task = path[-1:] == (True,)  # langgraph.pregel._algo: whether it is a call
    namespace = config.get("configurable", {}).get("checkpoint_ns", "")
    if is_task or not namespace or outside.get(None) is not None:
        return None
    return frozenset(part.rpartition(":")[2] for part in namespace.split("|"))
