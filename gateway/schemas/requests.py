"""What clients send (contract §4, §5). No text becomes a number; unknown fields are refused."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel

from common import facts
from common.runs import OnConflict, OnDisconnect
from gateway.schemas.texts import (
    INTEGER_MAX,
    FactKey,
    Facts,
    Json,
    Name,
    Object,
    Title,
    storable_json,
    storable_text,
)

_TEXT = {"type": "string"}


def _one_key(key: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {key: value}, "required": [key]}


class Request(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", strict=True, populate_by_name=False
    )


class ConversationRequest(Request):
    title: Title | None = None
    graph: Name | None = None
    facts: Facts = {}


class FactsRequest(Request):
    set: Facts = {}
    unset: Annotated[list[FactKey], Field(max_length=facts.FACTS_MAX)] = []
    version: Annotated[int, Field(ge=1, le=INTEGER_MAX)]


class UserMessage(Request):
    content: Annotated[str, StringConstraints(min_length=1), AfterValidator(storable_text)]


class RunRequest(Request):
    message: UserMessage
    input_format: Literal["text", "json"] = "text"
    idempotency_key: Name | None = None
    on_disconnect: OnDisconnect | None = None
    on_conflict: OnConflict = "reject"
    interrupt_before: list[Name] | Literal["*"] = []
    interrupt_after: list[Name] | Literal["*"] = []
    metadata: Object = {}


class ChatRequest(RunRequest):
    conversation_id: Name | None = None
    graph: Name | None = None


# any JSON here: what fits is decided after the interrupt was found (contract §5, step 4)
Decision = Annotated[
    Any,
    AfterValidator(storable_json),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["approve", "reject"]},
                _one_key("reject", {"type": "object", "properties": {"message": _TEXT}}),
                _one_key("edit", {"type": "object"}),
                _one_key("select", {}),
                _one_key("fill", {"type": "object"}),
            ]
        }
    ),
]


class DecisionRequest(Request):
    interrupt_id: Name
    decision: Decision
    idempotency_key: Name | None = None
    confirm_version: Name | None = None


class ValuesRequest(Request):
    resume: Annotated[dict[Name, Json], Field(min_length=1, max_length=100)]
    idempotency_key: Name | None = None
    confirm_version: Name | None = None


class ContinueRequest(Request):
    go_on: Annotated[Literal[True], Field(alias="continue")]
    idempotency_key: Name | None = None


def _kind(body: Any) -> str:
    if isinstance(body, Mapping):
        return next((key for key in ("continue", "resume") if key in body), "decision")
    return "decision"


ResumeRequest = Annotated[
    Annotated[DecisionRequest, Tag("decision")]
    | Annotated[ValuesRequest, Tag("resume")]
    | Annotated[ContinueRequest, Tag("continue")],
    Discriminator(_kind),
]
