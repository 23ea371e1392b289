"""Placeholder of the drill's graph."""

from langgraph.graph import END, START, MessagesState, StateGraph


def _say(state: MessagesState) -> dict[str, object]:
    return {"messages": [("ai", "word")]}


graph: StateGraph[MessagesState, None, MessagesState, MessagesState] = StateGraph(MessagesState)
graph.add_node("say", _say)
graph.add_edge(START, "say")
graph.add_edge("say", END)
