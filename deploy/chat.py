"""`steadyrun chat`: one question to an agent, from a terminal (contract §7).

Shows the run as it happens, asks for the decisions that it needs, and goes on after any broken
connection. When nobody is there to decide (the input has ended) it says how to go on and leaves:
the run waits, and `steadyrun chat --conversation ID` takes it up again from anywhere.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TextIO
from urllib.parse import quote

from common.errors import Misconfigured, Refused
from common.settings import DEMO_PERMISSIONS
from deploy.arguments import address, bearer
from deploy.card import Ask, decide, describe
from deploy.client.transcript import Transcript
from deploy.paper import Paper, brief, clean
from deploy.signing import sign, signing_secret
from deploy.topology import Topology
from deploy.wire import Json, Wire

Connect = Callable[[str, str, Callable[[str], object]], Wire]

_TOKEN_TTL_S = 12 * 3600.0
_SETTLED = frozenset({"INTERRUPT_NOT_PENDING", "INTERRUPT_EXPIRED", "RUN_NOT_RESUMABLE"})


def _connect(url: str, token: str, told: Callable[[str], object]) -> Wire:
    return Wire(url, token, told=told)


def chat(
    url: str | None,
    text: str | None,
    user: str = "demo",
    conversation: str | None = None,
    yes: bool = False,
    token: str | None = None,
    *,
    state: Path = Path(".steadyrun"),
    graph: str | None = None,
    out: TextIO | None = None,
    ask: Ask | None = None,
    connect: Connect = _connect,
) -> int:
    """The exit status: 0 done, cancelled or waiting for a decision; 1 when the run failed, or the
    text could not be sent because an earlier run of the conversation waits.

    What is None is looked up: the address in STEADYRUN_URL or the topology of a running `up`, the
    token in STEADYRUN_TOKEN or signed with the secret of that `up`, with the demo's permissions.
    Without `text` the conversation's active run is joined. Raises SteadyrunError with a line for
    the person.
    """
    out = out or sys.stdout
    paper = Paper(out, styled=out.isatty() and "NO_COLOR" not in os.environ)
    body = _body(text, conversation, graph)
    at, signed = url or _find_url(state), token or _find_token(state, user)
    wire = connect(at, signed, lambda cause: paper.note(f"{cause}; still trying"))
    again = "" if user == "demo" else f" --user {user}"
    talk = _Chat(wire, paper, ask or ask_at(out), yes=yes, again=again)
    try:
        return talk.talk(body, conversation)
    except KeyboardInterrupt:
        talk.leave()
        return 0
    finally:
        talk.tell_unsent()
        wire.close()


class _Chat:
    """One visit: perhaps an older run of the conversation first, then the one for the text."""

    def __init__(self, wire: Wire, paper: Paper, ask: Ask, *, yes: bool, again: str = "") -> None:
        self._wire = wire
        self._paper = paper
        self._ask = ask
        self._yes = yes
        self._again = again  # options that the same person has to give the next time
        self._unsent: str | None = None  # a text that waits for the end of an earlier run
        self._transcript = Transcript()

    def talk(self, body: Json | None, conversation: str | None) -> int:
        if body is None:
            return self._close(conversation, self._join(conversation or ""))
        while True:
            try:
                return self._converse(self._wire.chat(body))
            except Refused as refusal:
                if refusal.code != "CONVERSATION_BUSY" or conversation is None:
                    raise
            self._paper.note("the conversation has a run that has not ended; joining it first")
            self._unsent = body["message"]["content"]
            joined = self._join(conversation)
            if joined is not None and joined.end is None:
                return 1
            self._unsent = None

    def leave(self) -> None:
        """In the middle of it."""
        conversation = self._transcript.conversation_id
        if conversation is None:
            self._paper.say("left before anything was answered")
            return
        self._paper.say(f"left; the run goes on: {self._command(conversation)} joins it again")

    def tell_unsent(self) -> None:
        """A text that nobody has got is not forgotten without a word."""
        if self._unsent is not None:
            self._paper.say(f"not sent, say it again when the run has ended: {self._unsent}")

    def _command(self, conversation: str) -> str:
        return f"`steadyrun chat{self._again} --conversation {conversation}`"

    def _join(self, conversation: str) -> Transcript | None:
        """Follow the active run to its end, or to a decision that has to wait. None: no run."""
        place = f"/api/conversations/{quote(conversation, safe='')}"
        run = self._wire.get(place)["activeRun"]
        if run is None:
            return None
        transcript = Transcript()
        self._follow(transcript, self._wire.follow(run["id"], 0), run["id"])
        return transcript

    def _converse(self, stream: Iterable[Json]) -> int:
        transcript = Transcript()
        self._follow(transcript, stream)
        return self._close(transcript.conversation_id, transcript)

    def _close(self, conversation: str | None, transcript: Transcript | None) -> int:
        end = transcript.end if transcript else None
        if transcript and end and end["type"] == "done" and not transcript.text:
            self._show_output(end["runId"])
        if conversation:
            self._paper.say(f"conversation {conversation}")
        return 1 if end is not None and end["type"] == "error" else 0

    def _show_output(self, run_id: str) -> None:
        """What a graph gives that says nothing to people (contract §6, `output`)."""
        output = self._wire.get(f"/api/runs/{run_id}").get("output")
        if output is not None:
            self._paper.say(json.dumps(output, ensure_ascii=False))

    def _follow(
        self, transcript: Transcript, stream: Iterable[Json], run_id: str | None = None
    ) -> None:
        """Show and decide until the run has ended, or somebody has to decide later."""
        self._transcript = transcript
        while True:
            for event in stream:
                run_id = event["runId"]
                for change in transcript.apply(event):
                    self._paper.draw(change)
            if transcript.end is not None or run_id is None:
                return
            if not self._decide_all(run_id):
                return
            stream = self._wire.follow(run_id, transcript.sequence)

    def _decide_all(self, run_id: str) -> bool:
        """Every question that is open; False: not now."""
        run = self._wire.get(f"/api/runs/{run_id}")
        if run["status"] != "interrupted":
            return True  # somebody else was quicker
        if not run["pendingInterrupts"]:
            return self._continue(run)
        return all(self._decide(run, interrupt) for interrupt in run["pendingInterrupts"])

    def _continue(self, run: Json) -> bool:
        try:
            go_on = self._yes or self._ask("paused; go on? [y/l] > ").strip().lower() == "y"
        except EOFError:
            go_on = False
        if not go_on:
            return self._later(run)
        refusal = self._resume(run, {"continue": True})
        return refusal is None or refusal.code in _SETTLED  # somebody else did

    def _decide(self, run: Json, interrupt: Json) -> bool:
        """Ask until a decision is accepted, or it is settled by somebody else; False: not now.

        `--yes` answers once: what was refused is for a person to look at.
        """
        for line in describe(interrupt):
            self._paper.say(line)
        refusal: Refused | None = None
        while refusal is None or refusal.code not in _SETTLED:
            decision = decide(interrupt, self._ask, yes=self._yes and refusal is None)
            if decision is None:
                return self._later(run)
            refusal = self._resume(run, decision | _confirmation(refusal))
            if refusal is None:
                return True
        return True

    def _resume(self, run: Json, body: Json) -> Refused | None:
        """None: accepted. A refusal that a person can do nothing about is raised."""
        try:
            self._wire.post(f"/api/runs/{run['id']}/resume", body)
        except Refused as refusal:
            self._paper.note(f"refused: {refusal.detail} ({refusal.code})")
            for name, value in refusal.extra.items():
                self._paper.note(f"  {name}: {brief(value)}")
            if refusal.code in _SETTLED | {"VALIDATION", "RESOURCE_CHANGED", "VERSION_CONFLICT"}:
                return refusal
            raise
        return None

    def _later(self, run: Json) -> bool:
        self._paper.say(
            f"the run waits for a decision: go on with {self._command(run['conversationId'])},"
            f" or decide by POST /api/runs/{run['id']}/resume"
        )
        return False


def ask_at(out: TextIO) -> Ask:
    """Lines of the standard input; echoed where no terminal does it."""

    def ask(prompt: str) -> str:
        try:
            line = input(clean(prompt))  # it may hold what a model has written
        except EOFError:
            out.write("\n")
            raise
        if not sys.stdin.isatty():
            out.write(f"{line}\n")
        return line

    return ask


def _confirmation(refusal: Refused | None) -> Json:
    """What makes the next decision accept the values that the refusal has shown (contract §5)."""
    version = refusal.extra.get("confirmVersion") if refusal else None
    return {} if version is None else {"confirmVersion": version}


def _body(text: str | None, conversation: str | None, graph: str | None) -> Json | None:
    if text is None:
        if conversation is None:
            raise Misconfigured("nothing to say: give a text, or a conversation to go on with")
        return None
    named = {"conversationId": conversation, "graph": graph}
    return {"message": {"content": text}} | {k: v for k, v in named.items() if v is not None}


def _find_url(state: Path) -> str:
    if url := os.environ.get("STEADYRUN_URL"):
        return address(url, "STEADYRUN_URL")
    try:
        return Topology.read(state / "topology.json").url
    except (OSError, ValueError):
        raise Misconfigured(
            f"nothing to talk to: start `steadyrun up`, or name an address by --url (looked in"
            f" {state})"
        ) from None


def _find_token(state: Path, user: str) -> str:
    if token := os.environ.get("STEADYRUN_TOKEN"):
        return bearer(token)
    return sign(signing_secret(state), user, DEMO_PERMISSIONS, ttl_s=_TOKEN_TTL_S)
