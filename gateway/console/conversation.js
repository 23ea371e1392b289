// One conversation: its messages, its newest run as it happens, and the line to write in.
//
// Restored after a refresh from `resume-state` and `messages`; the run's events go on after the last
// one that this tab has kept (`Last-Event-ID`), else they are read from the first.

import { Card } from "./card.js";
import { follow, initial, newKey, Problem, reduce, TERMINAL } from "./client.js";
import { Composer } from "./composer.js";
import { fill, h, icon } from "./dom.js";
import { Drafts, Kept } from "./kept.js";
import { explained } from "./problems.js";
import { Past } from "./past.js";
import { messageView, RunView } from "./run.js";
import { t } from "./words.js";

export class Conversation {
  #closing = new AbortController();
  #following = null; // aborts the reading of one run
  #cards = new Map();
  #state = null;
  #drawing = false;
  #sending = null; // what could not be sent yet, and its key
  #hidden = null; // a timer, once nobody sees the page
  #reading = null; // {run, messages}, until its last event
  #asleep = null; // the same, while nobody looks

  /** `id` null: a new one, made with the first message. */
  constructor(app, id) {
    Object.assign(this, { app, id, api: app.session.api });
    this.log = h("div", { class: "log" });
    this.line = h("p", { class: "line line-over", role: "status" });
    this.told = h("p", { class: "hidden", role: "status", "aria-live": "polite" });
    this.composer = new Composer({ send: (text) => this.#send(text), stop: () => this.#stop(), typed: (text) => Drafts.put(this.id, text) });
    this.scroller = h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": t("messages") }, this.log);
    this.heading = h("h1", { class: "hidden" }, t("new_conversation"));
    this.element = h("div", { class: "conversation" }, this.heading, this.scroller,
      h("div", { class: "foot" }, this.line, this.composer.element, this.told));
    this.onOnline = () => this.#connection(this.connection);
    addEventListener("online", this.onOnline);
    addEventListener("offline", this.onOnline);
    this.onHide = () => this.#state && Kept.put(this.#state);
    addEventListener("pagehide", this.onHide);
    document.addEventListener("visibilitychange", () => this.#seen(), { signal: this.#closing.signal });
  }

  async open() {
    this.composer.write(Drafts.of(this.id));
    if (this.id === null) return this.#welcome();
    fill(this.log, h("p", { class: "quiet" }, t("loading")));
    this.opening = true;
    this.#connection();
    try {
      await this.#restore();
    } catch (error) {
      if (!this.#closing.signal.aborted) this.#failed(error);
    } finally {
      this.opening = false;
    }
  }

  close() {
    this.#closing.abort();
    this.#following?.abort();
    clearTimeout(this.#hidden);
    for (const card of this.#cards.values()) card.close();
    removeEventListener("online", this.onOnline);
    removeEventListener("offline", this.onOnline);
    removeEventListener("pagehide", this.onHide);
    if (this.#state) Kept.put(this.#state);
  }

  entitle(title) {
    this.heading.textContent = title;
  }

  /** A list elsewhere says that something was begun here: a run of another tab is shown, too. */
  async noticed({ updatedAt, activeRun }) {
    const known = updatedAt === this.updatedAt && (activeRun?.id ?? this.runId) === this.runId;
    if (known || this.composer.busy || this.opening) return;
    const now = await this.api.get(`/api/conversations/${this.id}/resume-state`, { signal: this.#closing.signal }).catch(() => null);
    if (now === null || this.composer.busy || this.opening) return;
    this.updatedAt = updatedAt;
    if (now.run && now.run.id !== this.runId) this.open();
  }

  /** A browser lends six lines to all its tabs over HTTP/1.1: one that nobody sees gives its own back. */
  #seen() {
    clearTimeout(this.#hidden);
    if (document.hidden) this.#hidden = setTimeout(() => this.#sleep(), HIDDEN_MS);
    else if (this.#asleep) this.#follow(this.#asleep);
  }

  /** Not where it would end the run (contract §4, `onDisconnect`). */
  #sleep() {
    const reading = this.#reading;
    if (reading === null || reading.run.onDisconnect === "cancel") return;
    this.#following.abort();
    this.#asleep = reading;
  }

  #welcome() {
    const asks = ["ask_1", "ask_2", "ask_3", "ask_4"].map((key) =>
      h("button", { class: "ask", type: "button", onClick: () => this.#send(t(key)) }, t(key)));
    fill(this.log, h("div", { class: "welcome" }, h("h2", { class: "welcome-head" }, t("welcome")), h("p", {}, t("welcome_text")), h("div", { class: "asks" }, asks)));
    this.composer.show(null);
    this.composer.focus();
  }

  async #restore() {
    const signal = this.#closing.signal;
    const path = `/api/conversations/${this.id}`;
    const [now, messages] = await Promise.all([
      this.api.get(`${path}/resume-state`, { signal }), this.api.list(`${path}/messages`, { signal, most: 5000 })]);
    const run = now.run;
    const older = messages.filter((message) => message.runId !== run?.id || message.role === "user");
    const rest = messages.filter((message) => message.runId === run?.id && message.role !== "user");
    const past = new Past(this.api, signal);
    fill(this.log, older.map((message) => messageView(message, past)));
    for (const asked of now.pendingInterrupts) this.#card(asked);
    if (run) this.#watch(run, Kept.take(run.id) ?? initial(), rest);
    else this.composer.show(null);
    this.#toEnd();
  }

  /** `messages` stand in for events that are no longer kept. */
  #watch(run, state, messages = []) {
    this.runId = run.id;
    this.view = new RunView({ cardOf: (id) => this.#cards.get(id), goOn: () => this.#goOn() });
    this.log.append(this.view.element);
    this.#take(state.sequence > 0 ? state : { ...state, status: run.status, runId: run.id });
    this.#follow({ run, messages });
  }

  /** From the last event that is known. */
  #follow(reading) {
    const { run, messages } = reading;
    this.#following?.abort();
    const { signal } = this.#following = new AbortController();
    this.#reading = reading;
    this.#asleep = null;
    if (document.hidden) this.#seen();
    this.#read(run, signal).catch((error) => {
      if (signal.aborted) return;
      if (error instanceof Problem && error.code === "HISTORY_EXPIRED") this.#gone(run, messages);
      else this.#failed(error);
    });
  }

  async #read(run, signal) {
    const onConnection = (connection) => signal.aborted || this.#connection(connection);
    for await (const event of follow(this.api, run.id, { after: this.#state.sequence, signal, onConnection })) {
      if (signal.aborted) return; // what was on its way is read again
      this.#happened(event);
      this.#take(reduce(this.#state, event));
    }
    this.#reading = null;
    this.#connection("over");
    if (this.#state.end === null) this.#take({ ...this.#state, status: run.status });
  }

  #gone(run, messages) {
    fill(this.view.pieces, h("p", { class: "note" }, explained("HISTORY_EXPIRED").words), messages.map((message) => messageView(message)));
    this.#connection("over");
    this.composer.show(TERMINAL_STATUSES.has(run.status) ? null : run.status);
  }

  /** Drawn once a frame, however many events come. */
  #take(state) {
    this.#state = state;
    if (this.#drawing) return;
    this.#drawing = true;
    requestAnimationFrame(() => { this.#drawing = false; if (!this.#closing.signal.aborted) this.#draw(); });
  }

  #draw() {
    const state = this.#state;
    const atEnd = this.scroller.scrollHeight - this.scroller.scrollTop - this.scroller.clientHeight < 80;
    for (const asked of Object.values(state.interrupts)) this.#card({ ...asked, runId: state.runId });
    this.view.draw(state);
    this.composer.show(TERMINAL_STATUSES.has(state.status) ? null : state.status);
    if (atEnd) this.#toEnd();
  }

  /** Made from what is known; what only the API tells (allowed answers) is asked for. */
  #card(asked) {
    let card = this.#cards.get(asked.id);
    if (!card) {
      card = new Card(this.api, { status: "pending", ...asked }, { user: this.app.session.user, onDecided: () => this.app.changed() });
      this.#cards.set(asked.id, card);
    } else card.update(asked);
    return card;
  }

  #happened(event) {
    if (event.type === "interrupt") {
      this.#askForTerms(event);
      this.told.textContent = t("interrupted");
    } else if (event.type === "run_started") this.told.textContent = t("running");
    else if (TERMINAL.has(event.type)) this.told.textContent = t({ done: "completed", error: "failed", cancelled: "cancelled" }[event.type]);
    else return;
    this.app.changed();
  }

  async #askForTerms(event) {
    const run = await this.api.get(`/api/runs/${event.runId}`, { signal: this.#closing.signal }).catch(() => null);
    const asked = run?.pendingInterrupts.find((one) => one.id === event.interruptId);
    if (asked && this.#state.interrupts[asked.id]?.status !== "resolved") this.#card(asked);
  }

  async #send(text) {
    this.composer.lock();
    try {
      const body = { message: { content: text }, ...(this.id === null ? {} : { conversationId: this.id }) };
      const { run } = await this.api.post("/api/chat", body, { key: this.#keyOf(text), signal: this.#closing.signal });
      this.#sending = null;
      this.composer.write("");
      if (this.id === null) {
        this.id = run.conversationId;
        fill(this.log);
        this.app.moved(this.id);
      }
      this.log.append(messageView({ role: "user", content: text }));
      this.#watch(run, initial());
      this.#toEnd();
      this.app.changed();
    } catch (error) {
      this.composer.show(null);
      this.composer.failed(error);
    }
  }

  /** The same as long as it is the same message that could not be sent. */
  #keyOf(text) {
    if (this.#sending?.text !== text) this.#sending = { text, key: newKey() };
    return this.#sending.key;
  }

  async #stop() {
    this.composer.stopping();
    await this.api.post(`/api/runs/${this.runId}/cancel`, undefined).catch((error) => this.composer.failed(error));
  }

  /** Once for each pause, however often it is clicked. */
  async #goOn() {
    const key = `${this.runId}-${this.#state.sequence}`;
    await this.api.post(`/api/runs/${this.runId}/resume`, { continue: true }, { key }).catch((error) => this.composer.failed(error));
  }

  #connection(state) {
    this.connection = state;
    const over = state === "over" || state === undefined;
    const words = !navigator.onLine ? t(over ? "offline_idle" : "offline") : over ? "" : { open: t("live"), connecting: t("connecting"), waiting: t("reconnecting") }[state];
    this.line.className = `line line-${!navigator.onLine ? "offline" : over ? "over" : state}`;
    if (this.line.textContent !== words) this.line.textContent = words;
  }

  #failed(error) {
    const gone = error instanceof Problem && error.status === 404;
    this.composer.element.hidden = gone;
    fill(this.log, h("div", { class: "nothing" }, h("p", {}, t(gone ? "not_found" : "failed_to_load")),
      gone ? h("a", { class: "button", href: "#/" }, icon("plus"), t("new_conversation"))
        : h("button", { class: "button", type: "button", onClick: () => this.open() }, t("retry"))));
  }

  /** To the newest; of a question that is taller than the screen to its beginning. */
  #toEnd() {
    requestAnimationFrame(() => {
      const { scroller } = this;
      const card = [...this.log.querySelectorAll(".card-pending")].at(-1);
      const above = card ? card.getBoundingClientRect().top - this.log.getBoundingClientRect().top - 12 : Infinity;
      scroller.scrollTop = Math.min(scroller.scrollHeight, above);
    });
  }
}

const HIDDEN_MS = 20_000;
const TERMINAL_STATUSES = new Set(["completed", "failed", "cancelled"]);
