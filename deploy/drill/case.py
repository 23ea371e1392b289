"""One run of a workload: what its clients have learned of it so far."""

import asyncio
from typing import Literal

from common.events import TERMINAL
from deploy.drill.frames import Cut, body

Choice = Literal["confirm", "select"]
Phase = Literal["beginning", "streaming", "waiting", "ended"]


class Case:
    """`see` takes whatever any client receives; the newest event counts."""

    def __init__(self, run: str, user: str) -> None:
        self.run = run
        self.user = user
        self.phase: Phase = "beginning"
        self.sequence = 0
        self.ended = asyncio.Event()
        self.questions: asyncio.Queue[tuple[str, Choice] | None] = asyncio.Queue()
        self._known: set[str] = set()

    def see(self, frame: Cut) -> None:
        if frame.type == "interrupt":
            asked = body(frame.raw)
            about_an_effect = asked.get("interruptType") == "select_option"
            self._ask(asked.get("interruptId"), "select" if about_an_effect else "confirm")
        if frame.sequence > self.sequence:
            self.sequence = frame.sequence
            self.phase = _phase(frame.type)
        if self.phase == "ended":
            self.ended.set()

    def close(self) -> None:
        """Nothing more is asked."""
        self.questions.put_nowait(None)

    def _ask(self, interrupt: str | None, choice: Choice) -> None:
        if interrupt is not None and interrupt not in self._known:
            self._known.add(interrupt)
            self.questions.put_nowait((interrupt, choice))


def _phase(type_: str) -> Phase:
    if type_ in TERMINAL:
        return "ended"
    return "waiting" if type_ in ("interrupt", "run_paused") else "streaming"
