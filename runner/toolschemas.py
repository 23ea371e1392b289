"""The schemas of a graph's tools, so that edited arguments are checked before they are stored."""

from collections.abc import Iterator
from typing import Any

from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode
from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema

from runner.registry import Graph

Schema = dict[str, Any]


def tool_schemas(graph: Graph) -> dict[str, Schema]:
    """JSON schema of the arguments that a model gives, by tool; nested graphs' tools too."""
    return {tool.name: schema for tool in _tools(graph) if (schema := _schema(tool)) is not None}


def _tools(graph: Graph) -> Iterator[BaseTool]:
    for inner in (graph, *(subgraph for _, subgraph in graph.get_subgraphs(recurse=True))):
        for node in getattr(inner, "nodes", {}).values():
            if isinstance(bound := getattr(node, "bound", None), ToolNode):
                yield from bound.tools_by_name.values()


def _schema(tool: BaseTool) -> Schema | None:
    """None where the tool has none, or one that JSON cannot say."""
    model = tool.tool_call_schema
    if isinstance(model, dict):
        return model
    try:
        return model.model_json_schema() if issubclass(model, BaseModel) else None
    except PydanticInvalidForJsonSchema:
        return None
