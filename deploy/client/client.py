"""The API of Steadyrun from Python: one method a call (contract §4 and §5).

    async with Client("https://agents.example", token) as client:
        stream = client.chat("Restart the abnormal instance of payment-api")
        async for event in stream:              # each event once, whatever breaks
            ...
        run = await client.run(stream.run_id)   # perhaps it waits for a person
        for question in run["pendingInterrupts"]:
            await client.resume(run["id"], question["id"], "approve")
        async for event in client.follow(run["id"], after=stream.cursor):
            ...

Every method raises Refused with the problem's code (contract §4) and what it carries in `extra`,
or Unreachable once nothing has answered for some tens of seconds. A POST that got no answer is
repeated with its key and is done once. Cancelling a call leaves open whether it was done; a stream
may be left at any moment.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack, cast
from urllib.parse import quote

import httpx

from deploy.client.calls import Caller, Json, Patience, TokenSource
from deploy.client.objects import (
    Conversation,
    Interrupt,
    Message,
    OnConflict,
    OnDisconnect,
    ResumeState,
    Run,
    Ticket,
)
from deploy.client.stream import RunStream, Until


class RunOptions(TypedDict, total=False):
    """How a run is started; `key` is its idempotency key, one of its own when left out."""

    on_conflict: OnConflict
    on_disconnect: OnDisconnect
    input_format: str
    interrupt_before: Sequence[str]
    interrupt_after: Sequence[str]
    metadata: Json
    key: str


class Client:
    """`url` is nginx's or any gateway's. `token`: the bearer's JWT, or what gives it anew once it
    was refused. Many tasks may share a client, of one event loop."""

    def __init__(
        self,
        url: str,
        token: str | TokenSource,
        *,
        patience: Callable[[int], Patience] = Patience,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._caller = Caller(url, token, patience=patience, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._caller.aclose()

    # conversations

    async def create_conversation(
        self, *, title: str | None = None, graph: str | None = None, facts: Json | None = None
    ) -> Conversation:
        body = _known(title=title, graph=graph, facts=facts)
        return cast(Conversation, await self._post("/api/conversations", body))

    def conversations(self) -> AsyncIterator[Conversation]:
        """All of the caller's, newest first."""
        return cast(AsyncIterator[Conversation], self._listed("/api/conversations"))

    async def conversation(self, conversation_id: str) -> Conversation:
        return cast(Conversation, await self._get(_path("conversations", conversation_id)))

    async def delete_conversation(self, conversation_id: str) -> None:
        path = _path("conversations", conversation_id)
        await self._caller.answered(self._caller.request("DELETE", path))

    def messages(self, conversation_id: str) -> AsyncIterator[Message]:
        """Oldest first."""
        path = _path("conversations", conversation_id, "messages")
        return cast(AsyncIterator[Message], self._listed(path))

    async def set_facts(
        self, conversation_id: str, facts: Json, *, version: int, unset: Sequence[str] = ()
    ) -> Conversation:
        """Raises Refused `VERSION_CONFLICT` unless `version` is the current one."""
        path = _path("conversations", conversation_id, "facts")
        body = {"set": facts, "unset": list(unset), "version": version}
        return cast(
            Conversation,
            await self._caller.answered(self._caller.request("PATCH", path, body=body)),
        )

    async def resume_state(self, conversation_id: str) -> ResumeState:
        return cast(
            ResumeState, await self._get(_path("conversations", conversation_id, "resume-state"))
        )

    # runs

    async def create_run(
        self, conversation_id: str, content: str, **options: Unpack[RunOptions]
    ) -> Run:
        """Does not wait for it: `follow` it."""
        path = _path("conversations", conversation_id, "runs")
        body = {"message": {"content": content}} | _wire(options)
        answer = await self._post(path, body, key=options.get("key"))
        return cast(Run, answer["run"])

    def chat(
        self,
        content: str,
        *,
        conversation_id: str | None = None,
        graph: str | None = None,
        **options: Unpack[RunOptions],
    ) -> RunStream:
        """Starts a run, in a new conversation where none is named: the stream to its pause."""
        named = _known(conversationId=conversation_id, graph=graph)
        body = {"message": {"content": content}} | named | _wire(options)
        return self.stream("/api/chat", body, key=options.get("key"))

    def stream(self, path: str, body: Json, *, key: str | None = None) -> RunStream:
        """Any streaming POST."""
        headers = {"Accept": "text/event-stream"}
        first = self._caller.request("POST", path, body=body, key=key, headers=headers)
        return RunStream(self._caller, first=first, until="interrupt")

    def follow(self, run_id: str, *, after: int = 0, until: Until = "end") -> RunStream:
        """Its events after `after`, then live."""
        return RunStream(self._caller, run_id=run_id, after=after, until=until)

    async def run(self, run_id: str) -> Run:
        return cast(Run, await self._get(_path("runs", run_id)))

    async def cancel(self, run_id: str) -> Run:
        """Idempotent. A running run ends a moment later: follow it."""
        return cast(Run, await self._post(_path("runs", run_id, "cancel"), None))

    async def ticket(self, run_id: str) -> Ticket:
        return cast(Ticket, await self._post(_path("runs", run_id, "ticket"), None))

    # deciding

    async def resume(
        self,
        run_id: str,
        interrupt_id: str,
        decision: Any,
        *,
        confirm_version: str | int | None = None,
        key: str | None = None,
    ) -> Json:
        """`decision`: "approve", "reject", {"edit": …}, {"select": …}, {"fill": …} (contract §5).

        The answer is `{run, streamUrl}`, for an approver who is not the owner `{interrupt}`.
        """
        body = {"interruptId": interrupt_id, "decision": decision}
        confirmed = _known(confirmVersion=confirm_version)
        return await self._post(_path("runs", run_id, "resume"), body | confirmed, key=key)

    async def answer(self, run_id: str, values: Json, *, key: str | None = None) -> Json:
        """The graph's own values, by interrupt; taken as a whole or not at all."""
        return await self._post(_path("runs", run_id, "resume"), {"resume": values}, key=key)

    async def go_on(self, run_id: str, *, key: str | None = None) -> Json:
        """Past a static breakpoint."""
        return await self._post(_path("runs", run_id, "resume"), {"continue": True}, key=key)

    def interrupts(self, status: str = "pending") -> AsyncIterator[Interrupt]:
        """The inbox: all that the caller may decide."""
        listed = self._listed("/api/interrupts", status=status)
        return cast(AsyncIterator[Interrupt], listed)

    # any call

    async def get(self, path: str, **params: Any) -> Json:
        """For what has no method here."""
        return await self._get(path, **params)

    async def post(self, path: str, body: Json | None, *, key: str | None = None) -> Json:
        """For what has no method here."""
        return await self._post(path, body, key=key)

    async def _get(self, path: str, **params: Any) -> Json:
        return await self._caller.answered(self._caller.request("GET", path, params=params))

    async def _post(self, path: str, body: Any, *, key: str | None = None) -> Json:
        return await self._caller.answered(self._caller.request("POST", path, body=body, key=key))

    async def _listed(self, path: str, **params: Any) -> AsyncIterator[Json]:
        cursor = None
        while True:
            page = await self._get(path, cursor=cursor, limit=200, **params)
            for item in page["items"]:
                yield item
            if (cursor := page["nextCursor"]) is None:
                return


def _path(*parts: str) -> str:
    return "/api/" + "/".join(quote(part, safe="") for part in parts)


def _known(**fields: Any) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _wire(options: RunOptions) -> Json:
    """As the request names them (contract §4); the key goes by header."""
    names = {
        "on_conflict": "onConflict",
        "on_disconnect": "onDisconnect",
        "input_format": "inputFormat",
        "interrupt_before": "interruptBefore",
        "interrupt_after": "interruptAfter",
        "metadata": "metadata",
    }
    given = cast(Json, options)
    return {names[name]: value for name, value in given.items() if name in names}
