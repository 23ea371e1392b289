"""The pages for users name all that there is: codes, the facade's fields, keys of graph files."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from common import graphfile
from gateway.agent_schemas import (
    AgentAnswer,
    AgentResumeRequest,
    InterruptData,
    InvokeRequest,
    SessionAnswer,
)
from gateway.problems import STATUS

DOCS = Path(__file__).parents[2] / "deploy" / "docs"


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


def test_every_code_has_its_line_with_its_status() -> None:
    lines = re.findall(r"^\| `([A-Z_]+)` \| (\d+) \| ", page("clients"), re.M)
    assert {code: int(status) for code, status in lines} == STATUS
    assert len(lines) == len(STATUS)


@pytest.mark.parametrize(
    "kind", [AgentAnswer, AgentResumeRequest, InterruptData, InvokeRequest, SessionAnswer]
)
def test_every_field_of_the_facade_is_named(kind: type[BaseModel]) -> None:
    facade = page("clients").split("## The session facade")[1]
    named = {word for code in re.findall(r"`([^`]+)`", facade) for word in re.findall(r"\w+", code)}
    assert set(kind.model_fields) <= named


def test_every_key_of_the_graph_file_has_its_line() -> None:
    rows = re.findall(r"^\| (`.+?) \| .+? \| ", page("graphs"), re.M)
    keys = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert keys >= graphfile.KEYS
