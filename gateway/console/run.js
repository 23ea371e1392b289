// One run on the page: the step bar, what was said and done, the questions, how it ended. Draws a
// state of the reducer; pieces that are the same objects as before are left alone.

import { TERMINAL } from "./client.js";
import { fill, h, icon } from "./dom.js";
import { failure } from "./problems.js";
import { blocks, brief, briefly, facts } from "./text.js";
import { t } from "./words.js";

const SYMBOLS = { success: "check", error: "cross", declined: "cross", unknown: "tool" };
const SIGNS = { running: null, success: "check", error: "cross", interrupted: "hand", discarded: "again" };

export class RunView {
  #drawn = new Map(); // by place and key: {piece, element}
  #cardOf;

  /** `cardOf(id)` gives the card of an interrupt; `goOn()` continues from a breakpoint. */
  constructor({ cardOf, goOn }) {
    this.#cardOf = cardOf;
    this.goOn = goOn;
    this.steps = h("ol", { class: "steps", "aria-label": t("steps") });
    this.pieces = h("div", { class: "pieces" });
    this.end = h("div", { class: "run-end" });
    this.element = h("article", { class: "run", "aria-label": t("agent") }, this.steps, this.pieces, this.end);
  }

  draw(state) {
    this.element.dataset.status = state.status;
    this.element.dataset.run = state.runId ?? "";
    this.#drawSteps(state);
    this.#drawPieces(state);
    fill(this.end, ending(state, this.goOn));
  }

  #drawSteps(state) {
    if (this.state?.steps === state.steps) return;
    this.state = state;
    const shown = state.steps.filter((step) => !["decision", "continue"].includes(step.cause));
    fill(this.steps, shown.map(chip));
    this.steps.hidden = shown.length === 0;
  }

  #drawPieces(state) {
    const before = this.#drawn;
    this.#drawn = new Map();
    const elements = state.pieces.map((piece, n) => {
      const key = `${piece.kind} ${piece.key} ${piece.stepId} ${n}`;
      const known = before.get(key);
      const element = known?.piece === piece ? known.element : this.#drawPiece(piece, known?.element, state);
      this.#drawn.set(key, { piece, element });
      return element;
    });
    place(this.pieces, elements);
  }

  #drawPiece(piece, element, state) {
    if (piece.kind === "question") return this.#cardOf(piece.key).element;
    if (piece.kind === "text") return fill(element ?? h("div", { class: "said" }), blocks(piece.text));
    if (piece.kind === "reasoning") return reasoning(piece, element);
    if (piece.kind === "tool") return tool(piece, element, outcomeOf(piece, state));
    return piece.kind === "note" ? note(piece) : h("p", { class: "custom" }, icon("clock"), h("span", {}, briefly(piece.data, 400)));
  }
}

/** Puts the children in order and touches only what has changed: focus and selections stay. */
function place(parent, elements) {
  const wanted = new Set(elements);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  elements.forEach((element, n) => {
    if (parent.children[n] !== element) parent.insertBefore(element, parent.children[n] ?? null);
  });
}

function chip(step) {
  const words = t(step.status === "discarded" ? `step_discarded_${step.cause}` : `step_${step.status}`);
  const again = step.attempt > 1 && step.status !== "discarded" ? ` (${t("attempt", { n: step.attempt })})` : "";
  return h("li", { class: `step step-${step.status}`, title: `${step.node}: ${words}` },
    SIGNS[step.status] ? icon(SIGNS[step.status]) : h("span", { class: "spinner", "aria-hidden": "true" }),
    h("span", { class: "step-node" }, step.node), h("span", { class: step.status === "discarded" ? "step-why" : "hidden" }, words + again));
}

function reasoning(piece, element) {
  const whole = element ?? h("details", { class: "reasoning" }, h("summary", {}, t("reasoning")), h("div", {}));
  fill(whole.lastElementChild, blocks(piece.text));
  return whole;
}

/** A call that a person has declined did not fail: nobody tried it. */
function outcomeOf(piece, state) {
  const declined = piece.status === "error" && Object.values(state.interrupts).some((asked) => declines(asked, piece.key));
  return declined ? "declined" : piece.status;
}

function declines({ decision, payload }, callId) {
  const rejected = decision === "reject" || (decision !== null && typeof decision === "object" && "reject" in decision);
  const actions = Array.isArray(payload?.action_requests) ? payload.action_requests : [];
  return rejected && [payload?.callId, payload?.tool_call_id, ...actions.map((one) => one?.tool_call_id)].includes(callId);
}

/** `status` as in SYMBOLS; where nobody knows what became of the call, nothing is said. */
function tool(piece, element, status) {
  const words = status === "unknown" ? "" : t(`tool_${status}`);
  const given = piece.input !== null && typeof piece.input === "object" ? Object.values(piece.input).map((v) => brief(v, 40)).join(", ") : "";
  const summary = h("summary", {},
    status === "running" ? h("span", { class: "spinner", "aria-hidden": "true" }) : icon(SYMBOLS[status]),
    h("code", {}, piece.tool), h("span", { class: "tool-given" }, given), h("span", { class: "tool-status" }, words), h("span", { class: "tool-waits" }, t("step_interrupted")));
  const more = [piece.input !== null && facts(piece.input), piece.summary !== null && outcome(piece.summary)];
  const whole = element ?? h("details", {});
  whole.className = `tool tool-${status}`;
  return fill(whole, summary, h("div", { class: "tool-more" }, more));
}

/** Tools often answer JSON; shown as names and values, else as it is. */
function outcome(summary) {
  try {
    return h("pre", { tabindex: "0" }, h("code", {}, JSON.stringify(JSON.parse(summary), null, 2)));
  } catch {
    return h("pre", { tabindex: "0" }, h("code", {}, summary));
  }
}

function note(piece) {
  const words = piece.what === "retried" ? t("note_retry", { n: piece.attempt }) : t(`note_${piece.reason}`);
  const gone = piece.withdrawn > 0 ? ` ${t("note_withdrawn", { n: piece.withdrawn })}` : "";
  return h("p", { class: "note" }, icon("again"), words + gone);
}

function ending(state, goOn) {
  const { end, pause } = state;
  if (pause) {
    const where = pause.next.length ? t("paused_at", { next: pause.next.join(", ") }) : t("paused_end");
    return pause.reason === "breakpoint" && h("div", { class: "paused" }, h("p", {}, where),
      h("button", { class: "button primary", type: "button", onClick: goOn }, t("go_on")));
  }
  if (end === null || !TERMINAL.has(end.type) || end.type === "done") return null;
  if (end.type === "cancelled") return h("p", { class: "ended" }, icon("stop"), t(`cancel_${end.reason}`));
  return h("p", { class: "ended ended-failed" }, icon("cross"), h("span", {}, failure(end), " ", h("code", {}, end.code)));
}

/** What is kept of an older run: its messages. `past` finds out what became of its tools. */
export function messageView(message, past = null) {
  if (message.role === "user") {
    return h("div", { class: "message message-user" }, h("span", { class: "hidden" }, `${t("you")}: `), h("p", {}, message.content));
  }
  if (message.role === "tool") {
    const element = h("details", {});
    const shown = { tool: message.toolName ?? "tool", input: null, summary: message.content };
    const draw = (state, piece) => tool({ ...shown, input: piece.input }, element, outcomeOf(piece, state));
    past?.watch(element, message, draw);
    return tool(shown, element, "unknown");
  }
  return h("div", { class: "said" }, blocks(message.content));
}
