"""What the user speaks about: what is named in the sentence, else what "it" refers to.

"It" is not guessed from words. It is what the conversation last dealt with for certain: what stands
in the known facts, which tools write that had a good result and the user may correct. Without facts
(outside of Steadyrun) it is what the newest tool call with a good result was about. A call that
failed or was refused names nothing; so a mistyped service never becomes "it".
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage

_NAME = re.compile(r"(?<![\w-])(?:[a-z][a-z0-9]*(?:-[a-z0-9]+)+|search)(?![\w-])", re.ASCII)
_FACTS = re.compile(r"<facts [^>]*>\n(.*)\n</facts>")
_INSTANCE = re.compile(r"(?P<service>(?!sandbox-\d+$).+)-\d+")


@dataclass(frozen=True, slots=True)
class Subject:
    service: str | None = None
    instance: str | None = None

    @property
    def name(self) -> str:
        return self.instance or self.service or ""


def named_in(text: str) -> Subject:
    """The first service or instance that the sentence names, else an empty subject."""
    found = _NAME.search(text.lower())
    return _subject(found[0]) if found else Subject()


def last_dealt_with(messages: Sequence[BaseMessage]) -> Subject:
    """What "it" is after these messages."""
    if (known := known_subject(messages)).service is not None:
        return known
    good = {m.tool_call_id for m in messages if isinstance(m, ToolMessage) and succeeded(m)}
    for call in reversed(list(_calls(messages))):
        args = call["args"]
        name = args.get("instance") or args.get("service")
        if call["id"] in good and isinstance(name, str):
            return _subject(name)
    return Subject()


def known_subject(messages: Sequence[BaseMessage]) -> Subject:
    """As the facts say that the model is told; empty where there are none. An instance of another
    service than the one that is known is out of date: the user has changed the service."""
    said = "\n".join(str(m.text) for m in messages if isinstance(m, SystemMessage))
    blocks = _FACTS.findall(said)  # the last one is ours: what stands before it are instructions
    facts = json.loads(blocks[-1]) if blocks else {}
    service, instance = facts.get("service"), facts.get("instance")
    if not isinstance(service, str):
        return Subject()
    named = _subject(instance) if isinstance(instance, str) else Subject()
    return named if named.service == service else Subject(service)


def result_of(message: ToolMessage) -> dict[str, Any]:
    """The tool's JSON; what is none counts as an error text."""
    try:
        result = json.loads(str(message.content))
    except ValueError:
        return {"error": str(message.content)}
    return result if isinstance(result, dict) else {"error": str(message.content)}


def succeeded(message: ToolMessage) -> bool:
    return message.status != "error" and "error" not in result_of(message)


def _subject(name: str) -> Subject:
    instance = _INSTANCE.fullmatch(name)
    return Subject(instance["service"], name) if instance else Subject(name)


def _calls(messages: Iterable[BaseMessage]) -> Iterable[dict[str, Any]]:
    for message in messages:
        if isinstance(message, AIMessage):
            yield from (dict(call) for call in message.tool_calls)
