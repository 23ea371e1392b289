// What became of the tools of older runs. Their messages do not say, so a run's events are read, once
// and only when somebody sees one of its tools; where they are no longer kept, nothing is claimed.

import { initial, reduce } from "./client.js";

const PAGE = 1000;
const PAGES_MAX = 10;

export class Past {
  #runs = new Map(); // by id: [{element, message, draw}] that wait to be seen
  #reading = Promise.resolve(); // one run after the other

  constructor(api, signal) {
    Object.assign(this, { api, signal });
    this.observer = new IntersectionObserver((seen) => this.#saw(seen));
    signal.addEventListener("abort", () => this.observer.disconnect(), { once: true });
  }

  /** `draw(state, piece)` is called when the run's events are known and the call is among them. */
  watch(element, { runId, toolCallId }, draw) {
    if (runId === null || !toolCallId) return;
    element.dataset.run = runId;
    if (!this.#runs.has(runId)) this.#runs.set(runId, []);
    this.#runs.get(runId).push({ callId: toolCallId, draw });
    this.observer.observe(element);
  }

  #saw(entries) {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      this.observer.unobserve(target);
      this.#ask(target.dataset.run);
    }
  }

  #ask(runId) {
    const waiting = this.#runs.get(runId);
    this.#runs.delete(runId);
    if (!waiting) return;
    this.#reading = this.#reading.then(() => this.#tell(runId, waiting)).catch(() => {}); // it stays open what became of them
  }

  async #tell(runId, waiting) {
    const state = await this.#fold(runId);
    for (const { callId, draw } of waiting) {
      const piece = state.pieces.findLast(({ kind, key }) => kind === "tool" && key === callId);
      if (piece && piece.status !== "running") draw(state, piece);
    }
  }

  async #fold(runId) {
    let state = initial();
    for (let page = 0, after = 0; page < PAGES_MAX; page += 1) {
      const { events, next, complete } = await this.api.get(`/api/runs/${runId}/events?after=${after}&limit=${PAGE}`, { signal: this.signal });
      state = events.reduce(reduce, state);
      if (complete || !events.length) break;
      after = next;
    }
    return state;
  }
}
