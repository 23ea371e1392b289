"""Which messages of a run are stored: what its thread holds and what else stands on its page.

Pure. A message is stored under the id that its `text_delta`s named (contract §3), so a client that
watched and one that reads the history later agree, however the run ended.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from common.db.messages import NewMessage
from common.ids import stable_id
from common.masking import Masker
from common.page import Page, bounded, tool_message_id


def of_run(
    run_id: str, user_message_id: str, values: Any, page: Page, masker: Masker
) -> list[NewMessage]:
    """In the order in which they arose. The thread's version of a message counts: a graph may have
    changed it after it was shown.
    """
    durable = {m.id: m for m in _durable(run_id, user_message_id, values, masker)}
    ordered: dict[str, NewMessage] = {}
    rest = iter(durable.values())
    for message in page.messages(run_id).values():
        if message.id in durable:
            _take_until(message.id, rest, ordered)
        else:
            ordered[message.id] = message
    ordered.update((m.id, m) for m in rest)
    return list(ordered.values())


def unshown(messages: Iterable[NewMessage], page: Page) -> list[NewMessage]:
    """Answers that nobody was shown: returned by a node in a form LangGraph does not stream."""
    shown = page.texts
    return [m for m in messages if m.role == "assistant" and m.id not in shown]


def last_assistant(messages: Iterable[NewMessage]) -> str | None:
    return next((m.id for m in reversed([*messages]) if m.role == "assistant"), None)


def _take_until(
    message_id: str, rest: Iterator[NewMessage], ordered: dict[str, NewMessage]
) -> None:
    if message_id not in ordered:
        for message in rest:
            ordered[message.id] = message
            if message.id == message_id:
                return


def _durable(
    run_id: str, user_message_id: str, values: Any, masker: Masker
) -> Iterator[NewMessage]:
    for message in _after(user_message_id, _messages(values)):
        if isinstance(message, ToolMessage):
            yield _tool(run_id, message, masker)
        elif isinstance(message, AIMessage) and (text := str(message.text)):
            message_id = stable_id("msg", run_id, message.id or text)
            yield NewMessage(message_id, "assistant", bounded(masker.text(text)))


def _messages(values: Any) -> list[BaseMessage]:
    found = values.get("messages") if isinstance(values, Mapping) else None
    return [m for m in found if isinstance(m, BaseMessage)] if isinstance(found, list) else []


def _after(user_message_id: str, messages: list[BaseMessage]) -> list[BaseMessage]:
    """What followed the run's input; nothing where the graph has removed that."""
    positions = [i for i, message in enumerate(messages) if message.id == user_message_id]
    return messages[positions[-1] + 1 :] if positions else []


def _tool(run_id: str, message: ToolMessage, masker: Masker) -> NewMessage:
    return NewMessage(
        tool_message_id(run_id, message.tool_call_id),
        "tool",
        bounded(masker.text(str(message.text))),
        tool_call_id=message.tool_call_id,
        tool_name=message.name,
    )
