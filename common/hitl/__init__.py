"""Questions a graph asks a person, and what its `interrupt()` gets as the answer (contract §8).

Pure. A wrong answer is refused here, before anything is stored: LangChain's middleware checks it
only after it was taken, and from then on every correct answer raises the old error again.

Formats, recognised by `auto` in this order:

* our own three questions, `{"steadyrun": <kind>, …}`, as `runner.authoring` raises them (below);
* LangChain's HITL middleware: one question for several tool calls (`action_requests` and
  `review_configs`), or one per call (`{"type": "tool_approval", …}`);
* LangGraph's older `HumanInterrupt` of Agent Inbox (`action_request` and `config`), also in a list;
* opaque: anything else.

**Our questions.** `steadyrun` is the kind; the graph gets back what opaque questions get:

    confirm_action   {"steadyrun": "confirm_action", "action": name, "args"?: {…}}
                     → {"type": "approve"} | {"type": "edit", "args": {…}} | {"type": "reject",
                         "message"?}; `edit` is offered only with "editable": true or a "schema"
    select_option    {"steadyrun": "select_option", "options": [value | {"value", "label"?}, …]}
                     → {"type": "select", "value": v}, or {"type": "reject"} where that is offered
    provide_input    {"steadyrun": "provide_input", "schema"?: JSON schema of the object}
                     → {"type": "fill", "values": {…}}, or {"type": "reject"} where that is offered

All three may have: "title", "description", "risk" (shown); "resource" (read anew before a decision
is accepted), "requiredPermission", "expiresInS" (seconds; null: never), "onReject" ("cancel" |
"continue"), "onExpire" ("cancel" | "reject"), "schema" (JSON schema of `args` or `values`),
"callId" (the tool call it is about), "rejectable" (bool; default true). Other keys are shown too.
A payload with the marker that does not keep to this is treated as opaque, never dropped. Every
answer of ours also has "by", the user who decided, and "resource", as it was when the decision was
accepted, where the caller of `answer` and `accepted` tells them.

**Resources.** Any payload that is an object may name under "resource" what it is about, as the
author has seen it: JSON with what identifies it and what must not have changed. The graph's guard
reads it anew before a decision is accepted; the fields that were noted are compared. Approvals of
LangChain and Agent Inbox are made by middleware and have no such place: there the guard's
`resource` names it, by the actions that an answer carries out (`carried_out`).
"""

from common.hitl.actions import carried_out
from common.hitl.answers import accepted, answer, rejection, validate_raw
from common.hitl.kinds import Answer, Asked, CancelRun, Invalid, Question
from common.hitl.plain import plain
from common.hitl.questions import question
from common.hitl.replies import Decided, Given, Reply, ResponseType, replied, response_types

__all__ = [
    "Answer",
    "Asked",
    "CancelRun",
    "Decided",
    "Given",
    "Invalid",
    "Question",
    "Reply",
    "ResponseType",
    "accepted",
    "answer",
    "carried_out",
    "plain",
    "question",
    "rejection",
    "replied",
    "response_types",
    "validate_raw",
]
