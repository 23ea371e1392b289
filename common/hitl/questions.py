"""Reading questions: which format a payload has, and what may be answered to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from common.graphfile import GraphSpec, OnExpire, OnReject
from common.hitl import langchain, ours
from common.hitl.kinds import Call, Format, InterruptType, Question, ToolSchemas
from common.hitl.parts import args_of, is_action, text_of
from common.hitl.plain import plain
from common.masking import Masker

PAYLOAD_BYTES_MAX = 64 << 10
_OPAQUE = ("approve", "reject", "edit", "select", "fill")


def question(
    value: Any,
    spec: GraphSpec,
    masker: Masker,
    *,
    schemas: ToolSchemas | None = None,
    response_schema: Mapping[str, Any] | None = None,
    calls: Sequence[Call] = (),
) -> Question:
    """Read what a graph asked. `response_schema` is the native interrupt's, where it has one;
    `calls` are those that an approval may be about: LangChain names none in its batched ones.
    """
    reader = _Reader(value, spec, masker, schemas or {}, response_schema, calls)
    for wanted, read in _READERS:
        if spec.interrupt_format in ("auto", wanted):
            with suppress(*_UNREADABLE):
                if (found := read(reader)) is not None:
                    return found
    return reader.opaque()


_UNREADABLE = (TypeError, ValueError, AttributeError, RecursionError)
"""What parts of an unforeseen kind raise: such a question is opaque, and never fails its run."""


@dataclass(frozen=True, slots=True)
class _Reader:
    value: Any
    spec: GraphSpec
    masker: Masker
    schemas: ToolSchemas
    response_schema: Mapping[str, Any] | None
    calls: Sequence[Call] = ()

    def ours(self) -> Question | None:
        asked = self.value
        if not ours.is_ours(asked):
            return None
        kind: InterruptType = asked["steadyrun"]
        cancels: OnReject = "cancel" if kind == "confirm_action" else "continue"
        rejectable = asked.get("rejectable", True)
        return self._question(
            kind,
            "steadyrun",
            allowed=ours.allowed(asked),
            actions=ours.actions(asked),
            on_reject=asked.get("onReject") or self.spec.on_reject or cancels,
            on_expire=asked.get("onExpire") or (None if rejectable else "cancel"),
            required_permission=asked.get("requiredPermission") or None,
            answer_schema=plain(ours.schema(asked)),
            expires_in_s=asked.get("expiresInS", self.spec.interrupt_ttl_s),
        )

    def batched(self) -> Question | None:
        asked = self.value
        if not langchain.is_batched(asked):
            return None
        requests = asked[langchain.ACTIONS]
        allowed = [langchain.decisions_for(one, asked["review_configs"]) for one in requests]
        ids = langchain.calls_of(requests, self.calls)
        return self._question(
            "confirm_action",
            "langchain-hitl",
            allowed=langchain.allowed_for_all(allowed),
            answerable=all(allowed),
            payload={
                **asked,
                langchain.ACTIONS: langchain.named(requests, "tool_call_id", ids),
            },
            actions=langchain.named(requests, "toolCallId", ids),
            answer_schema={
                "args": [self.schemas.get(one["name"]) for one in requests],
                "allowed": allowed,
            },
        )

    def per_call(self) -> Question | None:
        asked = self.value
        if not langchain.is_per_call(asked):
            return None
        call = {"toolCallId": asked.get("tool_call_id"), "name": asked["name"], **args_of(asked)}
        allowed = langchain.decisions_in(self.response_schema)
        args = langchain.args_in(self.response_schema) or self.schemas.get(asked["name"])
        return self._question(
            "confirm_action",
            "langchain-hitl",
            allowed=allowed,
            actions=[call | text_of(asked, "description")],
            answer_schema={
                "args": [args],
                "allowed": [allowed],
                "per_call": True,
            },
        )

    def inbox(self) -> Question | None:
        asked = self.value
        if isinstance(asked, Sequence) and not isinstance(asked, str) and len(asked) == 1:
            asked = asked[0]
        if not _is_inbox(asked):
            return None
        request, config = asked["action_request"], asked["config"]
        action = {"name": request["action"], **args_of(request), **text_of(asked, "description")}
        allowed = [name for name, key in _INBOX.items() if config.get(key)]
        return self._question(
            "confirm_action",
            "agent-inbox",
            allowed=allowed,
            answerable=bool(allowed),
            actions=[action],
            answer_schema={"args": [self.schemas.get(request["action"])]},
        )

    def opaque(self) -> Question:
        """One of ours that could not be read keeps its permission: a mistake of its author must
        not let others decide."""
        asked = self.value if isinstance(self.value, Mapping) else {}
        permission = asked.get("requiredPermission") if "steadyrun" in asked else None
        schema = _plain_or_none(self.response_schema)
        return self._question(
            "provide_input",
            "opaque",
            allowed=list(_OPAQUE),
            actions=[],
            required_permission=self.masker.text(str(permission)) if permission else None,
            answer_schema=None if schema is None else {"value": schema},
        )

    def _question(
        self,
        type_: InterruptType,
        format_: Format,
        *,
        allowed: list[str],
        actions: list[dict[str, Any]],
        on_reject: OnReject | None = None,
        on_expire: OnExpire | None = None,
        required_permission: str | None = None,
        answer_schema: dict[str, Any] | None = None,
        expires_in_s: float | Literal["graph"] | None = "graph",
        payload: Any = None,
        answerable: bool = True,
    ) -> Question:
        """Not `answerable`: its author allows no decision, and its graph would refuse every
        answer. A person can still end the run, which would wait for ever otherwise."""
        ttl_s = self.spec.interrupt_ttl_s if expires_in_s == "graph" else expires_in_s
        if not answerable:
            allowed, on_reject, on_expire = ["reject"], "cancel", "cancel"
        return Question(
            type=type_,
            format=format_,
            payload=self.masker.value(
                self.value if payload is None else payload, PAYLOAD_BYTES_MAX
            ),
            allowed_decisions=allowed,
            actions=[self._shown(action) for action in actions],
            on_reject=on_reject or self.spec.on_reject or "continue",
            on_expire=on_expire or self.spec.on_expire,
            required_permission=required_permission,
            resource=self._resource(),
            answer_schema=answer_schema or {},
            expires_in_s=ttl_s,
        )

    def _shown(self, action: Mapping[str, Any]) -> Any:
        """Its name comes first: where there is too much of an action, the rest is left out."""
        return self.masker.value({"name": action["name"], **action}, PAYLOAD_BYTES_MAX)

    def _resource(self) -> Any:
        """What the question is about, as its author saw it. What JSON cannot hold is noted as it is
        shown: it will look changed, and a person has to accept that."""
        noted = self.value.get("resource") if isinstance(self.value, Mapping) else None
        try:
            return plain(noted)
        except _UNREADABLE:
            return self.masker.value(noted)


def _plain_or_none(schema: Mapping[str, Any] | None) -> Any:
    with suppress(*_UNREADABLE):
        return plain(schema)
    return None


_INBOX = {
    "approve": "allow_accept",
    "edit": "allow_edit",
    "fill": "allow_respond",
    "reject": "allow_ignore",
}
_READERS: tuple[tuple[str, Callable[[_Reader], Question | None]], ...] = (
    ("auto", _Reader.ours),
    ("langchain-hitl", _Reader.batched),
    ("langchain-hitl", _Reader.per_call),
    ("agent-inbox", _Reader.inbox),
)


def _is_inbox(asked: Any) -> bool:
    return (
        isinstance(asked, Mapping)
        and isinstance(asked.get("config"), Mapping)
        and is_action(asked.get("action_request"), "action")
    )
