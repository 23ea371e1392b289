"""An interrupt on a terminal: what is asked, and the decision of the person (contract §5).

No I/O of its own: `ask` prints a prompt and returns one line; at the end of the input it raises
EOFError, which means "not now".
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from deploy.paper import brief

Json = dict[str, Any]
Ask = Callable[[str], str]

_SHOWN_CHARACTERS = 2000
_SHOWN_ELSEWHERE = frozenset(
    {"title", "action", "args", "options", "schema", "requiredPermission", "expiresInS"}
)
_FOR_MACHINES = frozenset(
    {"steadyrun", "callId", "editable", "rejectable", "onReject", "onExpire", "review_configs",
     "action_requests", "action_request", "config"}
)  # fmt: skip
_HIDDEN = _SHOWN_ELSEWHERE | _FOR_MACHINES


def describe(interrupt: Json) -> list[str]:
    """The card: what would be done, to what, how risky, until when."""
    payload = interrupt["payload"]
    shown = payload if isinstance(payload, Mapping) else {"question": payload}
    lines = [f"┌ {_title(interrupt, shown)}"]
    for action in interrupt["actions"]:
        lines += _lines(action.get("args", {}))
    hidden = _HIDDEN | ({"fill", "reject"} if interrupt["type"] == "select_option" else set())
    lines += _lines({name: v for name, v in shown.items() if name not in hidden and v})
    if permission := interrupt.get("requiredPermission"):
        lines.append(f"│ needs the permission {permission}")
    until = interrupt.get("expiresAt")
    return [*lines, f"└ open until {until}" if until else "└"]


def _lines(fields: Mapping[str, Any]) -> list[str]:
    """Whole as far as a terminal can bear it: somebody decides by this."""
    return [f"│ {name}: {brief(value, _SHOWN_CHARACTERS)}" for name, value in fields.items()]


def decide(interrupt: Json, ask: Ask, *, yes: bool) -> Json | None:
    """The part of the resume body that carries the decision; None: the person will decide later.

    `yes` approves what can be approved and asks for the rest.
    """
    try:
        if interrupt["type"] == "confirm_action":
            decision = "approve" if yes else _confirm(interrupt, ask)
        elif interrupt["format"] == "opaque":
            return _resume_value(interrupt, ask)
        elif interrupt["type"] == "select_option":
            decision = _select(interrupt, ask)
        else:
            decision = _input(interrupt, ask)
    except EOFError:
        return None
    return None if decision is None else {"interruptId": interrupt["id"], "decision": decision}


def _title(interrupt: Json, payload: Mapping[str, Any]) -> str:
    names = ", ".join(action["name"] for action in interrupt["actions"])
    title = brief(payload.get("title") or "")
    return " · ".join(part for part in (interrupt["type"], names, title) if part)


def _confirm(interrupt: Json, ask: Ask) -> Any:
    """Asks until the answer is one of those allowed. None: later."""
    words = {"y": "approve", "n": "reject", "e": "edit"}
    allowed = {key: word for key, word in words.items() if word in interrupt["allowedDecisions"]}
    prompt = ", ".join(f"[{key}] {word}" for key, word in allowed.items())
    while True:
        answer = ask(f"{prompt}, [l] later > ").strip().lower()[:1]
        if answer == "l":
            return None
        if allowed.get(answer) == "edit":
            return {"edit": _edit(interrupt["actions"][0]["args"], ask)}
        if answer in allowed:
            return _reject(ask) if answer == "n" else allowed[answer]


def _reject(ask: Ask) -> Any:
    message = ask("why? (may be empty) > ").strip()
    return {"reject": {"message": message}} if message else "reject"


def _edit(args: Json, ask: Ask) -> Json:
    """Every argument once; an empty line keeps it."""
    return {name: _typed(ask(f"{name} [{brief(v)}] > "), v) for name, v in args.items()}


def _select(interrupt: Json, ask: Ask) -> Any:
    """An option by number or text, or what else is allowed instead of one. None: later."""
    options = interrupt["payload"]["options"]
    values = [o.get("value", o) if isinstance(o, Mapping) else o for o in options]
    labels = [o.get("label", v) if isinstance(o, Mapping) else o
              for o, v in zip(options, values, strict=True)]  # fmt: skip
    by_text = {str(i): v for i, v in enumerate(values, 1)} | {str(v): v for v in values}
    rows = [*enumerate(labels, 1), *_instead(interrupt).items(), ("l", "later")]
    listing = "\n".join(f"  {sign}  {brief(text, _SHOWN_CHARACTERS)}" for sign, text in rows)
    while True:
        answer = ask(f"{listing}\nwhich? > ").strip()
        if answer in by_text:
            return {"select": by_text[answer]}
        if answer == "l":
            return None
        if answer in _instead(interrupt):
            return _reject(ask) if answer == "n" else {"fill": _fill(_schema(interrupt), ask)}


def _instead(interrupt: Json) -> dict[str, str]:
    """By letter; what each means stands in the payload, where whoever asks has said it."""
    words = {"f": ("fill", "fill in a form instead"), "n": ("reject", "decline")}
    return {
        letter: interrupt["payload"].get(word) or plain
        for letter, (word, plain) in words.items()
        if word in interrupt["allowedDecisions"]
    }


def _input(interrupt: Json, ask: Ask) -> Any:
    """The form at once, unless it may be declined. None: later."""
    answer = "f" if "reject" not in interrupt["allowedDecisions"] else ""
    while answer not in ("f", "n", "l"):
        answer = ask("[f] fill in, [n] decline, [l] later > ").strip().lower()[:1]
    if answer == "l":
        return None
    return _reject(ask) if answer == "n" else {"fill": _fill(_schema(interrupt), ask)}


def _fill(schema: Json, ask: Ask) -> Json:
    """Each property of the JSON schema; an empty line takes the default or leaves it out."""
    filled = {}
    for name, rule in schema.get("properties", {}).items():
        default = rule.get("default")
        hint = rule.get("title") or rule.get("description") or name
        answer = ask(f"{hint}{'' if default is None else f' [{brief(default)}]'} > ")
        value = _typed(answer, default, rule.get("type"))
        if value is not None:
            filled[name] = value
    return filled


def _schema(interrupt: Json) -> Json:
    schema = interrupt["payload"].get("schema")
    return dict(schema) if isinstance(schema, Mapping) else {}


def _resume_value(interrupt: Json, ask: Ask) -> Json | None:
    """A graph's own question: it gets what is typed, as JSON where it is JSON."""
    answer = ask("answer (JSON or text; empty: later) > ")
    return {"resume": {interrupt["id"]: _typed(answer, None)}} if answer.strip() else None


def _typed(answer: str, default: Any, type_: str | None = None) -> Any:
    """What was typed, as JSON where it is JSON and no text is wanted."""
    answer = answer.strip()
    if not answer:
        return default
    if type_ == "string" or isinstance(default, str):
        return answer
    try:
        return json.loads(answer)
    except ValueError:
        return answer
