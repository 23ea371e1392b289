"""One run of a workload: what its clients have learned of it so far."""

import asyncio
from typing import Literal

from common.events import TERMINAL
from deploy.drill.frames import Cut, body

Phase = Literal["beginning", "streaming", "waiting", "ended"]


class Case:
    """`see` takes whatever any client receives; the newest event counts."""

    def __init__(self, run: str, user: str) -> None:
        self.run = run
        self.user = user
        self.phase: Phase = "beginning"
        self.sequence = 0
        self.ended = asyncio.Event()
        self.questions: asyncio.Queue[str | None] = asyncio.Queue()
        self._known: set[str] = set()

    def see(self, frame: Cut) -> None:
        if frame.type == "interrupt":
            self._ask(body(frame.raw).get("interruptId"))
        if frame.sequence > self.sequence:
            self.sequence = frame.sequence
            self.phase = _phase(frame.type)
        if self.phase == "ended":
            self.ended.set()

    def close(self) -> None:
        """Nothing more is asked."""
        self.questions.put_nowait(None)

    def _ask(self, interrupt: str | None) -> None:
        if interrupt is not None and interrupt not in self._known:
            self._known.add(interrupt)
            self.questions.put_nowait(interrupt)


def _phase(type_: str) -> Phase:
    if type_ in TERMINAL:
        return "ended"
    return "waiting" if type_ in ("interrupt", "run_paused") else "streaming"
