"""What a person has on the page of a conversation, by who has watched and by who has just come.

`Watched` folds what a client has sent and the events that it saw from the first one on. `fresh`
knows nothing and asks: resume-state, messages, and the log of the run that resume-state names.
Both give a `View`, and the two must be equal (contract §4, resume-state).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx

from deploy.client.transcript import Transcript

Json = dict[str, Any]
_WAITS = ("interrupt", "run_paused")
_ENDS = {"done": "completed", "cancelled": "cancelled", "error": "failed"}


@dataclass(frozen=True, slots=True)
class View:
    """`history`: what has been said, by message id, in order, tools left out; `progress`: the calls
    of the newest run and how they ended; `cards`: questions that can be decided."""

    status: str
    history: list[tuple[str, str, str]]
    progress: list[tuple[str, str, str | None]]
    cards: list[tuple[str, str, Any]]
    resumable: bool


class Page:
    """The page of one run, folded from its events."""

    def __init__(self) -> None:
        self.transcript = Transcript()
        self.cards: dict[str, Json] = {}
        self.status = "queued"

    def apply(self, event: Json) -> None:
        self.transcript.apply(event)
        kind = event["type"]
        if kind == "interrupt":
            self.cards[event["interruptId"]] = event
        elif kind == "interrupt_resolved":
            self.cards.pop(event["interruptId"], None)
            self.status = "queued" if not self.cards else self.status
        if kind in _WAITS:
            self.status = "interrupted"
        elif kind in ("run_started", "run_resumed"):
            self.status = "running"
        elif kind in _ENDS:
            self.status = _ENDS[kind]

    def texts(self) -> list[tuple[str, str, str]]:
        said: dict[str, str] = {}
        for piece in self.transcript.pieces:
            if piece.kind == "text":
                said[piece.key] = said.get(piece.key, "") + piece.text
        return [(message_id, "assistant", text) for message_id, text in said.items()]

    def progress(self) -> list[tuple[str, str, str | None]]:
        calls = [piece for piece in self.transcript.pieces if piece.kind == "tool"]
        return [(c.key, str(c.fields["tool"]), c.fields.get("status")) for c in calls]


@dataclass
class Watched:
    """One conversation, watched from its beginning."""

    said: list[Json] = field(default_factory=list)
    pages: list[Page] = field(default_factory=list)

    def begin(self, run: Json, content: str) -> None:
        """The client has sent a message, and knows of its run."""
        self.said.append({"id": run["userMessageId"], "content": content})
        self.pages.append(Page())

    def view(self, events: Iterable[Json]) -> View:
        """`events`: all that came of the newest run."""
        page = self.pages[-1]
        for event in events:
            page.apply(event)
        history = []
        for said, run in zip(self.said, self.pages, strict=True):
            history += [(said["id"], "user", said["content"]), *run.texts()]
        cards = [(c["interruptId"], c["interruptType"], c["payload"]) for c in page.cards.values()]
        resumable = page.status == "interrupted"
        return View(page.status, history, page.progress(), cards, resumable)


async def fresh(client: httpx.AsyncClient, conversation: str) -> tuple[View, Json]:
    """The view of a browser that has just been opened, and the resume-state it began with."""
    url = f"/api/conversations/{conversation}"
    state: Json = (await client.get(f"{url}/resume-state")).json()
    stored: list[Json] = (await client.get(f"{url}/messages?limit=200")).json()["items"]
    run_id = state["run"]["id"]
    log = await client.get(
        f"/api/runs/{run_id}/events?after=0&limit=1000", headers={"Accept": "application/json"}
    )
    page = Page()
    for event in log.json()["events"]:
        if event["sequence"] <= state["lastSequence"]:
            page.apply(event)
    shown = [m for m in stored if m["role"] != "tool"]
    before = [(m["id"], m["role"], m["content"]) for m in shown if not _of(m, run_id)]
    history = [*before, *page.texts()]
    cards = [(i["id"], i["type"], i["payload"]) for i in state["pendingInterrupts"]]
    status, resumable = state["run"]["status"], state["resumable"]
    return View(status, history, page.progress(), cards, resumable), state


def _of(message: Json, run_id: str) -> bool:
    """What the log of the run tells as well."""
    return bool(message["runId"] == run_id and message["role"] == "assistant")
