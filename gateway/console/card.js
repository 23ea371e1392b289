// An interrupt as a card: what would be done, to what, how risky, until when; and the decision.
// Waiting for a person is a normal state. A card closes when somebody has decided, wherever that was.

import { newKey, Problem } from "./client.js";
import { fill, h, icon } from "./dom.js";
import { localized } from "./effect.js";
import { answerForm } from "./forms.js";
import { refusal } from "./refusals.js";
import { brief, facts } from "./text.js";
import { duration, t } from "./words.js";

const MACHINES = new Set(["steadyrun", "callId", "editable", "rejectable", "onReject", "onExpire",
  "review_configs", "action_requests", "action_request", "config", "title", "description", "risk", "resource",
  "action", "args", "options", "schema", "requiredPermission", "expiresInS"]);

export class Card {
  #keys = new Map(); // one a decision, so that a second click is the same click
  #timer;
  #sending = false;

  /** `asked`: an interrupt as the API gives it, or what an event told of it. */
  constructor(api, asked, { user, heading = "h2", footer = null, onDecided = () => {} }) {
    Object.assign(this, { api, asked, user, heading, footer, onDecided });
    this.note = h("div", { class: "card-note", role: "alert" });
    this.form = h("div", { class: "card-form" });
    this.until = h("span", { class: "card-until", role: "timer", "aria-live": "off" }); // no screen reader counts along
    this.element = h("article", { class: "card", "data-interrupt": asked.id, tabindex: "-1" });
    this.update(asked);
  }

  /** A decision that was taken here is not undone by an event that came before it. */
  update(asked) {
    if (this.asked.status !== "pending" && asked.status === "pending") return;
    const known = { ...this.asked, ...asked };
    const same = JSON.stringify(known) === JSON.stringify(this.asked) && this.element.childElementCount > 0;
    this.asked = known;
    if (same) return;
    if (this.asked.status === "pending") this.#open();
    else this.#close();
  }

  close() {
    clearInterval(this.#timer);
  }

  #open() {
    this.element.className = "card card-pending";
    this.element.setAttribute("aria-label", this.#title);
    this.#showForm();
    fill(this.element, this.#head(icon("hand")), ...this.#question(), this.note, this.form, this.footer);
    clearInterval(this.#timer);
    this.#timer = setInterval(() => this.#count(), 1000);
    this.#count();
  }

  #close() {
    clearInterval(this.#timer);
    const { status, decision, resolvedBy } = this.asked;
    const good = status === "resolved" && kindOf(decision) !== "reject";
    this.element.className = `card card-closed ${good ? "card-good" : "card-bad"}`;
    this.until.textContent = "";
    const by = resolvedBy === null || resolvedBy === undefined ? ""
      : resolvedBy === this.user ? t("by_you") : t("by", { user: resolvedBy });
    const outcome = h("p", { class: "card-outcome" }, icon(good ? "check" : "cross"), told(status, decision, this.#payload.options) + by);
    const { description } = this.#payload;
    fill(this.element, this.#head(icon("hand")), description && h("p", { class: "card-text" }, brief(description, 400)), outcome,
      h("details", { class: "card-more" }, h("summary", {}, t("details")), ...this.#question().slice(1)), this.footer);
    fill(this.note);
  }

  get #payload() {
    const { payload } = localized(this.asked);
    return payload !== null && typeof payload === "object" && !Array.isArray(payload) ? payload : { question: payload };
  }

  get #title() {
    return brief(this.#payload.title ?? t(this.asked.type));
  }

  #head(sign) {
    return h("header", { class: "card-head" }, sign, h(this.heading, {}, this.#title), this.until);
  }

  #question() {
    const { description, risk, resource, action, args } = this.#payload;
    const actions = this.asked.actions?.length ? this.asked.actions : action ? [{ name: action, args }] : [];
    const more = Object.entries(this.#payload).filter(([name, value]) => !MACHINES.has(name) && value !== null);
    const { requiredPermission } = this.asked;
    return [
      description && h("p", { class: "card-text" }, brief(description, 2000)),
      ...actions.map((one) => h("div", { class: "card-action" }, h("code", {}, one.name), facts(one.args ?? {}))),
      more.length > 0 && facts(Object.fromEntries(more)),
      resource && h("div", { class: "card-resource" }, h("span", { class: "label" }, t("resource")), facts(resource)),
      risk && h("p", { class: "card-risk" }, h("strong", {}, `${t("risk")}: `), brief(risk, 2000)),
      requiredPermission && h("p", { class: "card-permission" }, t("permission", { name: requiredPermission })),
    ];
  }

  #showForm() {
    fill(this.form, answerForm(localized(this.asked), (decision) => this.#decide(decision)));
  }

  #count() {
    const { expiresAt } = this.asked;
    if (!expiresAt) return;
    const left = (new Date(expiresAt) - this.api.now()) / 1000;
    const words = left > 0 ? t("expires_in", { time: duration(left) }) : t("expired_now");
    if (this.until.textContent !== words) this.until.textContent = words;
    this.until.classList.toggle("soon", left < 300);
  }

  async #decide(decision) {
    if (this.#sending) return;
    const focused = this.element.contains(document.activeElement);
    this.#busy(true);
    try {
      await this.api.post(`/api/runs/${this.asked.runId}/resume`, this.#body(decision), { key: this.#keyOf(decision) });
      fill(this.note);
      const shown = decision.decision ?? "resume";
      this.onDecided();
      this.update({ status: "resolved", decision: shown, resolvedBy: this.user });
    } catch (error) {
      this.#refused(error, decision);
    } finally {
      this.#busy(false);
      if (focused && !this.element.contains(document.activeElement)) this.element.focus(); // its button is gone
    }
  }

  /** `decision` is a body without the id: {decision} or {value}, and confirmVersion. */
  #body({ value, ...decision }) {
    return value === undefined ? { interruptId: this.asked.id, ...decision }
      : { resume: { [this.asked.id]: value }, ...decision };
  }

  #keyOf(decision) {
    const text = JSON.stringify(decision);
    if (!this.#keys.has(text)) this.#keys.set(text, newKey());
    return this.#keys.get(text);
  }

  #refused(error, decision) {
    if (!(error instanceof Problem)) return fill(this.note, h("p", {}, t("not_sent")));
    const { code, document } = error;
    if (code === "INTERRUPT_NOT_PENDING") {
      this.onDecided();
      return this.update({ status: document.interruptStatus, decision: document.decision, resolvedBy: document.resolvedBy });
    }
    if (code === "INTERRUPT_EXPIRED") return this.update({ status: "expired" });
    const confirm = (confirmVersion) => this.#decide({ ...decision, confirmVersion });
    return fill(this.note, refusal(error, this.asked, confirm));
  }

  #busy(sending) {
    this.#sending = sending;
    this.element.setAttribute("aria-busy", String(sending));
    for (const control of this.element.querySelectorAll("button")) control.disabled = sending;
  }
}

function kindOf(decision) {
  return typeof decision === "string" ? decision : Object.keys(decision ?? {})[0] ?? "";
}

function told(status, decision, options) {
  if (status === "expired") return t("closed_expired");
  if (status === "cancelled") return t("closed_cancelled");
  const kind = kindOf(decision);
  if (kind === "select") return t("decided_select", { value: brief(labelOf(decision.select, options), 80) });
  return t(["approve", "reject", "edit", "fill"].includes(kind) ? `decided_${kind}` : "decided_other");
}

function labelOf(value, options) {
  const chosen = Array.isArray(options) && options.find((option) => JSON.stringify(option?.value) === JSON.stringify(value));
  return chosen?.label ?? value;
}
