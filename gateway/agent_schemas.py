"""The wire of the session facade (contract §6): snake_case, else as gateway.schemas."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

from common.hitl import ResponseType
from gateway.schemas import Json, Moment, Name, Text, storable_text

Mode = Literal["sync", "async"]
SessionStatus = Literal["idle", "running", "interrupted", "completed", "error"]
TaskStatus = Literal["running", "interrupted", "completed", "error"]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    user_id: Name | None = None
    mode: Mode = "sync"


class InvokeRequest(_Request):
    """`graph` is the one of a new session, by default the installation's first."""

    query: Annotated[str, StringConstraints(min_length=1), AfterValidator(storable_text)]
    system_message: Text | None = None
    graph: Name | None = None


class AgentResumeRequest(_Request):
    """`interrupt_id` names the question that the person saw: without it the oldest pending one is
    answered. `confirm_version` accepts what a 409 has shown (contract §5, step 7)."""

    session_id: Name
    response_type: ResponseType
    args: Json = None
    interrupt_id: Name | None = None
    confirm_version: Name | None = None


class InterruptData(BaseModel):
    """What is asked. `type` is `breakpoint` where the graph stands still and asks nothing."""

    interrupt_id: str | None
    type: Literal["confirm_action", "select_option", "provide_input", "breakpoint"]
    payload: Any
    actions: list[dict[str, Any]]
    allowed_response_types: list[ResponseType]
    required_permission: str | None
    expires_at: Moment | None
    pending: int
    next: list[str]


class AgentAnswer(BaseModel):
    """`result` is the graph's final state; its `messages` are those of this run. `cancelled_by`:
    the user who cancelled it, or whose reject did."""

    session_id: str
    task_id: str
    status: TaskStatus
    message: str | None = None
    result: dict[str, Any] | None = None
    interrupt_data: InterruptData | None = None
    cancelled_by: str | None = None


class SessionAnswer(BaseModel):
    session_id: str
    task_id: str | None
    status: SessionStatus
    last_query: str | None
    last_response: AgentAnswer | None
    last_updated: Moment
