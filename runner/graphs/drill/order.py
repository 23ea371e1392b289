"""What one run of a drill is told to do, and so what it must have said in the end; no LangGraph.

The order is the user's message as JSON. All that the graph says follows from it, however often a
step is executed, so that a checker knows the result of a run from its order alone.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, Literal

Effect = Literal["none", "verified", "bare"]
MASK = "***"


@dataclass(frozen=True, slots=True)
class Order:
    """`tag` names the run and its effect. `words` is the length of each text, `pace_ms` the pause
    before each word; `secret` is said in the last text and has to be masked there.

    `question` asks before the effect; `on_reject` is what a rejection does to the run. `effect`:
    guarded with `verify`, or without (`bare`).
    """

    tag: str
    words: int = 6
    pace_ms: int = 20
    question: bool = False
    on_reject: Literal["cancel", "continue"] = "cancel"
    effect: Effect = "none"
    secret: str = ""

    def content(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, content: str) -> "Order":
        return cls(**json.loads(content))

    @property
    def key(self) -> str:
        """Of the guarded effect."""
        return f"drill-{self.tag}"

    def text(self, node: str) -> list[str]:
        """The words that a node says."""
        return [f"{node}{n}-{self._digest(node, n)} " for n in range(self.words)]

    def closing(self) -> list[str]:
        """The last text; the secret comes in two pieces, so that it has to be found across them."""
        half = len(self.secret) // 2
        around = ["the key is ", self.secret[:half], self.secret[half:], " and stays so. "]
        return [*self.text("closing"), *(around if self.secret else [])]

    def _digest(self, node: str, n: int) -> str:
        return blake2b(f"{self.tag}/{node}/{n}".encode(), digest_size=3).hexdigest()


def expected_texts(order: Order, *, performed: bool) -> list[str]:
    """The assistant's messages of a run that completed, in no order; masked. `performed`: the
    effect was ordered, and nobody rejected it."""
    spoken = ["".join(order.text(node)) for node in ("opening", "left", "nested", "shaky")]
    closing = "".join(order.closing())
    masked = closing.replace(order.secret, MASK) if order.secret else closing
    return [*spoken, outcome_text(order, performed=performed), masked]


def outcome_text(order: Order, *, performed: bool) -> str:
    return f"effect {order.key} {'done' if performed else 'not done'}"


def expected_customs(order: Order) -> Mapping[str, list[Any]]:
    """What the streams of custom events hold in the end, by the name each gives."""
    return {name: list(range(order.words)) for name in ("right", "inner")}


def line_of(effect: str, pid: int, at: float) -> str:
    """A performance, as one line of the effect's file."""
    return json.dumps({"effect": effect, "pid": pid, "at": at})
