// What a run's events come to on a page: the reading rules of contract §3. Pure: `reduce` returns a
// new state and never changes the old one; parts that did not change stay the same objects, so a
// page draws only what is not `===`. tests/vectors/reducer.json says what must come out.
//
// state
//   sequence, epoch     of the last event taken; an event that was seen before changes nothing
//   status              as contract §2
//   pieces              what stands, in order: {kind, key, stepId, …}
//                         text, reasoning: text    tool: tool, input, status, summary
//                         custom: data             question: key is an interrupt's id
//                         note: what, and what is known about it
//   steps               [{id, node, status, attempt, cause?}], in order of their beginning; one that
//                       is executed again stays as `discarded`, with the cause
//   interrupts          {id: {id, type, payload, expiresAt, requiredPermission, status, decision,
//                       resolvedBy}}
//   pause               {reason, next} at a breakpoint, else null
//   end                 the terminal event, else null

export const TERMINAL = new Set(["done", "cancelled", "error"]);
export const PAUSES = new Set(["interrupt", "run_paused"]);

export function initial(sequence = 0) {
  return {
    runId: null, conversationId: null, graph: null, sequence, epoch: 0, status: "queued",
    pieces: [], steps: [], interrupts: {}, pause: null, end: null,
  };
}

/** The state after `event`. Unknown types move the cursor and change nothing else. */
export function reduce(state, event) {
  if (event.sequence <= state.sequence) return state;
  const { sequence, epoch, runId } = event;
  const next = { ...state, sequence, epoch, runId };
  const reducer = Object.hasOwn(REDUCERS, event.type) ? REDUCERS[event.type] : null;
  return reducer ? { ...next, ...reducer(next, event) } : next;
}

/** All that the assistant has said and that still stands, by message, in order. */
export function texts(state) {
  const found = new Map();
  for (const { kind, key, text } of state.pieces) {
    if (kind === "text") found.set(key, (found.get(key) ?? "") + text);
  }
  return found;
}

/** Interrupts that wait for a person, in the order in which they were asked. */
export function pending(state) {
  return Object.values(state.interrupts).filter((one) => one.status === "pending");
}

const REDUCERS = {
  run_started: (_, { conversationId, graph }) => ({ conversationId, graph, status: "running" }),
  step_started: startStep,
  step_finished: finishStep,
  text_delta: (state, event) => grow(state, event, "text"),
  reasoning_delta: (state, event) => grow(state, event, "reasoning"),
  tool_started: startTool,
  tool_finished: finishTool,
  custom: (state, event) => add(state, piece("custom", String(event.sequence), event, { data: event.data })),
  interrupt: ask,
  interrupt_resolved: resolve,
  run_paused: (state, { reason, next }) => ({ status: "interrupted", pause: { reason, next } }),
  run_resumed: resume,
  step_retried: retry,
  done: (state, event) => finish(state, event, "completed"),
  cancelled: (state, event) => finish(state, event, "cancelled"),
  error: (state, event) => finish(state, event, "failed"),
};

function piece(kind, key, event, more) {
  return { kind, key, stepId: event.stepId ?? null, ...more };
}

function add(state, made) {
  return { pieces: [...state.pieces, made] };
}

function put(list, at, item) {
  const copy = list.slice();
  copy[at] = item;
  return copy;
}

function grow(state, event, kind) {
  const last = state.pieces.at(-1);
  const made = piece(kind, event.messageId, event, { text: event.delta });
  if (last?.kind !== kind || last.key !== made.key || last.stepId !== made.stepId) {
    return add(state, made);
  }
  return { pieces: put(state.pieces, state.pieces.length - 1, { ...last, text: last.text + event.delta }) };
}

function startTool(state, event) {
  const { tool, input = null } = event;
  return add(state, piece("tool", event.callId, event, { tool, input, status: "running", summary: null }));
}

/** One whose beginning was not told (a call that a person answered) begins and ends at once. */
function finishTool(state, event) {
  const { tool, status, summary = null } = event;
  const at = state.pieces.findLastIndex((one) =>
    one.kind === "tool" && one.key === event.callId && one.stepId === (event.stepId ?? null)
    && one.status === "running");
  if (at < 0) return add(state, piece("tool", event.callId, event, { tool, input: null, status, summary }));
  return { pieces: put(state.pieces, at, { ...state.pieces[at], status, summary }) };
}

function startStep(state, { stepId, node }) {
  const before = state.steps.filter((step) => step.id === stepId);
  if (before.at(-1)?.status === "running") return {}; // told by `step_retried`
  const attempt = before.length + 1;
  return { steps: [...state.steps, { id: stepId, node, status: "running", attempt }] };
}

function finishStep(state, { stepId, node, status = "success" }) {
  const at = state.steps.findLastIndex((step) => step.id === stepId && step.status === "running");
  const before = state.steps.filter((step) => step.id === stepId).length;
  if (at < 0) return { steps: [...state.steps, { id: stepId, node, status, attempt: before + 1 }] };
  return { steps: put(state.steps, at, { ...state.steps[at], status }) };
}

function ask(state, event) {
  const { interruptId: id, interruptType: type, payload } = event;
  const { expiresAt = null, requiredPermission = null } = event;
  const asked = {
    id, type, payload, expiresAt, requiredPermission,
    status: "pending", decision: null, resolvedBy: null,
  };
  const interrupts = { ...state.interrupts, [id]: asked };
  // a question stands until it is answered, whatever becomes of the step that asked it
  const shown = { kind: "question", key: id, stepId: null };
  return { status: "interrupted", interrupts, ...add(state, shown) };
}

function resolve(state, { interruptId, status, decision = null, resolvedBy = null }) {
  const asked = state.interrupts[interruptId];
  if (!asked) return {};
  return { interrupts: { ...state.interrupts, [interruptId]: { ...asked, status, decision, resolvedBy } } };
}

function resume(state, { reason, discard, sequence }) {
  const told = reason === "failover" || reason === "handover";
  const kept = withdraw(state, new Set(discard), reason);
  const note = { what: "taken_up", reason, withdrawn: state.pieces.length - kept.pieces.length };
  if (told) kept.pieces.push({ kind: "note", key: String(sequence), stepId: null, ...note });
  return { ...kept, status: "running", pause: null };
}

function retry(state, { stepId, attempt, sequence }) {
  const kept = withdraw(state, new Set([stepId]), "retry");
  const withdrawn = state.pieces.length - kept.pieces.length;
  const note = { what: "retried", attempt, withdrawn };
  kept.pieces.push({ kind: "note", key: String(sequence), stepId: null, ...note });
  const before = kept.steps.findLast((step) => step.id === stepId);
  if (before) kept.steps.push({ id: stepId, node: before.node, status: "running", attempt: before.attempt + 1 });
  return kept;
}

/** Without what stands under steps that are executed again. Ids are compared flat. */
function withdraw(state, ids, cause) {
  const steps = state.steps.map((step) =>
    ids.has(step.id) && step.status !== "discarded" ? { ...step, status: "discarded", cause } : step);
  return { steps, pieces: state.pieces.filter((one) => !ids.has(one.stepId)) };
}

/** What was still asked or under way is so no longer: the run is over. */
function finish(state, event, status) {
  const interrupts = Object.fromEntries(Object.entries(state.interrupts).map(([id, one]) =>
    [id, one.status === "pending" ? { ...one, status: "cancelled" } : one]));
  return { status, end: event, pause: null, interrupts };
}
