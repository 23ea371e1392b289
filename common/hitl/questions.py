"""Reading questions: which format a payload has, and what may be answered to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from common.graphfile import GraphSpec, OnExpire, OnReject
from common.hitl.kinds import (
    LANGCHAIN_DECISIONS,
    Call,
    Format,
    InterruptType,
    Question,
    ToolSchemas,
)
from common.hitl.plain import plain
from common.hitl.schemas import validator_of
from common.masking import Masker

PAYLOAD_BYTES_MAX = 64 << 10
_KINDS: tuple[InterruptType, ...] = ("confirm_action", "select_option", "provide_input")
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
        kind = asked.get("steadyrun") if isinstance(asked, Mapping) else None
        if kind not in _KINDS or not _is_ours(asked):
            return None
        cancels: OnReject = "cancel" if kind == "confirm_action" else "continue"
        rejectable = asked.get("rejectable", True)
        return self._question(
            kind,
            "steadyrun",
            allowed=_allowed_of_ours(asked),
            actions=_actions_of_ours(asked),
            on_reject=asked.get("onReject") or self.spec.on_reject or cancels,
            on_expire=asked.get("onExpire") or (None if rejectable else "cancel"),
            required_permission=asked.get("requiredPermission") or None,
            answer_schema=plain(_schema_of_ours(asked)),
            expires_in_s=asked.get("expiresInS", self.spec.interrupt_ttl_s),
        )

    def batched(self) -> Question | None:
        asked = self.value
        if not _is_batched(asked):
            return None
        allowed = [_decisions_for(action, asked["review_configs"]) for action in asked[_ACTIONS]]
        ids = _calls_of(asked[_ACTIONS], self.calls)
        return self._question(
            "confirm_action",
            "langchain-hitl",
            allowed=_allowed_for_all(allowed),
            answerable=all(allowed),
            payload={**asked, _ACTIONS: _named(asked[_ACTIONS], "tool_call_id", ids)},
            actions=_named(asked[_ACTIONS], "toolCallId", ids),
            answer_schema={
                "args": [self.schemas.get(action["name"]) for action in asked[_ACTIONS]],
                "allowed": allowed,
            },
        )

    def per_call(self) -> Question | None:
        asked = self.value
        if not _is_per_call(asked):
            return None
        call = {"toolCallId": asked.get("tool_call_id"), "name": asked["name"], **_args(asked)}
        allowed = _decisions_in(self.response_schema)
        return self._question(
            "confirm_action",
            "langchain-hitl",
            allowed=allowed,
            actions=[call | _text(asked, "description")],
            answer_schema={
                "args": [_args_in(self.response_schema) or self.schemas.get(asked["name"])],
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
        action = {"name": request["action"], **_args(request), **_text(asked, "description")}
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


_ACTIONS = "action_requests"
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


# recognising questions


def _is_ours(asked: Mapping[str, Any]) -> bool:
    """Whether the payload keeps to the convention of the module's text."""
    needs = {
        "confirm_action": isinstance(asked.get("action"), str),
        "select_option": isinstance(asked.get("options"), list) and bool(asked["options"]),
        "provide_input": True,
    }
    return needs[asked["steadyrun"]] and all(
        asked.get(key) is None or fits(asked[key]) for key, fits in _FITS.items()
    )


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


_FITS: Mapping[str, Callable[[Any], bool]] = {
    "args": lambda value: isinstance(value, Mapping),
    "schema": lambda value: isinstance(value, Mapping) and validator_of(value) is not None,
    "requiredPermission": lambda value: isinstance(value, str),
    "expiresInS": _is_positive,
    "onReject": lambda value: value in ("cancel", "continue"),
    "onExpire": lambda value: value in ("cancel", "reject"),
    "editable": lambda value: isinstance(value, bool),
    "rejectable": lambda value: isinstance(value, bool),
}


def _allowed_of_ours(asked: Mapping[str, Any]) -> list[str]:
    kind = asked["steadyrun"]
    answers = {"confirm_action": ["approve"], "select_option": ["select"]}.get(kind, ["fill"])
    if kind == "confirm_action" and (asked.get("editable") or asked.get("schema")):
        answers = [*answers, "edit"]
    return answers + (["reject"] if asked.get("rejectable", True) else [])


def _actions_of_ours(asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    if asked["steadyrun"] != "confirm_action":
        return []
    call = {} if asked.get("callId") is None else {"toolCallId": asked["callId"]}
    action = {"name": asked["action"], "args": dict(asked.get("args") or {})}
    return [call | action | _text(asked, "description")]


def _schema_of_ours(asked: Mapping[str, Any]) -> dict[str, Any]:
    schema = asked.get("schema")
    if asked["steadyrun"] == "select_option":
        return {"options": [_option(option) for option in asked["options"]]}
    return {"args": [schema]} if asked["steadyrun"] == "confirm_action" else {"values": schema}


def _option(option: Any) -> Any:
    return option["value"] if isinstance(option, Mapping) and "value" in option else option


def _is_batched(asked: Any) -> bool:
    if not isinstance(asked, Mapping):
        return False
    actions, configs = asked.get(_ACTIONS), asked.get("review_configs")
    return (
        isinstance(actions, list)
        and isinstance(configs, list)
        and bool(actions)
        and all(_is_action(action, "name") for action in actions)
        and all(_is_review(config) for config in configs)
        and {a["name"] for a in actions} <= {c.get("action_name") for c in configs}
    )


def _is_review(config: Any) -> bool:
    return isinstance(config, Mapping) and isinstance(config.get("allowed_decisions"), list)


def _is_action(action: Any, name: str) -> bool:
    return (
        isinstance(action, Mapping)
        and isinstance(action.get(name), str)
        and isinstance(action.get("args", {}), Mapping)
    )


def _is_per_call(asked: Any) -> bool:
    kind = asked.get("type") if isinstance(asked, Mapping) else None
    return kind == "tool_approval" and _is_action(asked, "name")


def _is_inbox(asked: Any) -> bool:
    return (
        isinstance(asked, Mapping)
        and isinstance(asked.get("config"), Mapping)
        and _is_action(asked.get("action_request"), "action")
    )


def _args(action: Mapping[str, Any]) -> dict[str, Any]:
    return {"args": dict(action.get("args") or {})}


def _text(asked: Mapping[str, Any], key: str) -> dict[str, str]:
    return {key: asked[key]} if isinstance(asked.get(key), str) else {}


def _calls_of(actions: Sequence[Mapping[str, Any]], calls: Sequence[Call]) -> list[str | None]:
    """The call that each action is about: the same tool and arguments, in order, each once."""
    left, found = list(calls), []
    for action in actions:
        same = (c for c in left if c[1:] == (action["name"], action.get("args", {})))
        if (call := next(same, None)) is not None:
            left.remove(call)
        found.append(None if call is None else call[0])
    return found


def _named(
    actions: Sequence[Mapping[str, Any]], key: str, ids: Sequence[str | None]
) -> list[dict[str, Any]]:
    pairs = zip(actions, ids, strict=True)
    return [({} if id_ is None else {key: id_}) | {**action} for action, id_ in pairs]


def _allowed_for_all(allowed: Sequence[Sequence[str]]) -> list[str]:
    """What one decision can say about all actions; an edit can only be of one."""
    names = [name for name in LANGCHAIN_DECISIONS if all(name in each for each in allowed)]
    return names if len(allowed) == 1 else [name for name in names if name != "edit"]


def _decisions_for(action: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the middleware allows for one action; it lists one config an action, by name."""
    for config in configs:
        if config.get("action_name") == action["name"]:
            return [name for name in LANGCHAIN_DECISIONS if name in config["allowed_decisions"]]
    return []


def _decisions_in(schema: Mapping[str, Any] | None) -> list[str]:
    """The decisions that a per-call question's response schema allows; all where it tells none."""
    names = [name for name in LANGCHAIN_DECISIONS if _branch(schema, name) is not None]
    return names or list(LANGCHAIN_DECISIONS)


def _args_in(schema: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The tool's argument schema inside the edit branch, with the definitions it refers to."""
    edit = _branch(schema, "edit")
    if schema is None or edit is None:
        return None
    action = _resolved(schema, edit.get("properties", {}).get("edited_action"))
    args = _resolved(schema, (action or {}).get("properties", {}).get("args"))
    return None if args is None else {**args, "$defs": schema.get("$defs", {})}


def _branch(schema: Mapping[str, Any] | None, decision: str) -> Mapping[str, Any] | None:
    if schema is None:
        return None
    for part in schema.get("oneOf") or schema.get("anyOf") or [schema]:
        branch = _resolved(schema, part) or {}
        kind = branch.get("properties", {}).get("type", {})
        if decision in (kind.get("const"), *(kind.get("enum") or ())):
            return branch
    return None


def _resolved(schema: Mapping[str, Any], part: Any) -> Mapping[str, Any] | None:
    if not isinstance(part, Mapping):
        return None
    name = str(part.get("$ref", "")).removeprefix("#/$defs/")
    found = schema.get("$defs", {}).get(name) if "$ref" in part else part
    return found if isinstance(found, Mapping) else None
