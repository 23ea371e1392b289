"""The values of this package: what was asked, and what an answer amounts to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from common.graphfile import OnExpire, OnReject

InterruptType = Literal["confirm_action", "select_option", "provide_input"]
Format = Literal["opaque", "steadyrun", "langchain-hitl", "agent-inbox"]

LANGCHAIN_DECISIONS = ("approve", "edit", "reject", "respond")


@dataclass(frozen=True, slots=True)
class Question:
    """What is stored of a question. `payload` and `actions` are masked and bounded.

    `answer_schema` keeps what a validation needs and may hold the unmasked values of options, never
    arguments: `args` and `allowed` (schema and decisions for each action), `values` (schema),
    `options` (values), `value` (schema of an opaque question's answer), `per_call` (one answer
    instead of a list of decisions).
    """

    type: InterruptType
    format: Format
    payload: Any
    allowed_decisions: list[str]
    actions: list[dict[str, Any]]
    on_reject: OnReject
    on_expire: OnExpire
    required_permission: str | None = None
    resource: Any = None
    answer_schema: dict[str, Any] = field(default_factory=dict)
    expires_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What `interrupt()` returns in the graph."""

    value: Any


@dataclass(frozen=True, slots=True)
class CancelRun:
    """A reject under the policy `cancel`: the graph gets nothing, the run ends."""

    message: str | None


@dataclass(frozen=True, slots=True)
class Invalid:
    """Refused with 422; nothing is stored."""

    detail: str


class Asked(Protocol):
    """The parts of a stored interrupt that answers are checked against."""

    @property
    def format(self) -> str: ...
    @property
    def allowed_decisions(self) -> list[str]: ...
    @property
    def actions(self) -> list[dict[str, Any]]: ...
    @property
    def on_reject(self) -> Literal["cancel", "continue"]: ...
    @property
    def answer_schema(self) -> Any: ...


ToolSchemas = Mapping[str, Mapping[str, Any]]
"""JSON schemas of arguments by the tool's name."""

Call = tuple[str | None, str, Mapping[str, Any]]
"""A tool call of a model's message: id, name, arguments."""
