"""Calls three tools: one answers, one fails, and one is called only if a person approves."""

from itertools import pairwise
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: rain"


@tool
def sensor(city: str) -> str:
    """Always fails."""
    raise ValueError("no such sensor")


def _calling(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    named = [{"name": name, "args": args, "id": f"call_{name}"} for name, args in calls]
    return {"messages": [AIMessage("", tool_calls=named)]}


def look(state: MessagesState) -> dict[str, Any]:
    return _calling(("weather", {"city": "Bremen"}), ("sensor", {"city": "Bremen"}))


def draft(state: MessagesState) -> dict[str, Any]:
    return _calling(("send_mail", {"to": "ada@example.org"}))


def mail(state: MessagesState) -> dict[str, Any]:
    review = {"action_name": "send_mail", "allowed_decisions": ["approve", "reject"]}
    action = {"name": "send_mail", "args": {"to": "ada@example.org"}}
    answer = interrupt({"action_requests": [action], "review_configs": [review]})
    declined = answer["decisions"][0]["type"] == "reject"
    content, status = ("No mail was sent.", "error") if declined else ("sent", "success")
    result = ToolMessage(content, tool_call_id="call_send_mail", name="send_mail", status=status)
    return {"messages": [result, AIMessage("That is all.")]}


building = StateGraph(MessagesState)
for step in (look, draft, mail):
    building.add_node(step)
building.add_node("tools", ToolNode([weather, sensor], handle_tool_errors=True))
for before, after in pairwise([START, "look", "tools", "draft", "mail"]):
    building.add_edge(before, after)
graph = building.compile()
