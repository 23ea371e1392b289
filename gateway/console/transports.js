// Two ways to read a run's stream once: `fetch`, and the browser's own `EventSource`. What both share
// is the `Connection`: the cursor, and what an end of a response means (contract §3).

import { Problem } from "./api.js";
import { EventStreamDecoder } from "./eventstream.js";
import { PAUSES } from "./reducer.js";
import { Watch } from "./watch.js";

const SILENCE_MAX_MS = 35_000; // the server beats every 10 s
const GAPS_MAX = 3;
const TYPES = [
  "run_started", "step_started", "step_finished", "text_delta", "reasoning_delta", "usage",
  "tool_started", "tool_finished", "custom", "interrupt", "interrupt_resolved", "run_paused",
  "run_resumed", "step_retried", "done", "cancelled", "error",
];

/** The server left something out: never to be passed over in silence. */
export class Gap extends Error {}

/** Where the reading of one run stands; outlives its lines. */
export class Connection {
  over = false; // nothing follows
  retryMs = 0; // what the server asked to wait before a reconnect
  #gaps = 0;
  #paused = false;

  constructor(api, runId, { after, until, signal, onConnection, silenceMaxMs = SILENCE_MAX_MS }) {
    Object.assign(this, { api, runId, until, signal, onConnection, silenceMaxMs, cursor: after });
  }

  get path() {
    return `/api/runs/${encodeURIComponent(this.runId)}/events`;
  }

  get pace() {
    return this.retryMs > 0 ? { firstMs: this.retryMs / 2 } : {};
  }

  /** Whether the event is new. Numbers may jump only where a runner was lost (contract §3). */
  takes(event) {
    if (event.sequence <= this.cursor) return false;
    const jumps = event.type === "run_resumed" && event.reason === "failover";
    if (event.sequence !== this.cursor + 1 && !jumps) {
      this.#gaps += 1;
      throw new Gap(`event ${event.sequence} came after ${this.cursor}`);
    }
    this.cursor = event.sequence;
    this.#paused = PAUSES.has(event.type);
    return true;
  }

  /** Whether this may be what `until: "interrupt"` asked for; a pause may consist of several events. */
  get mayBeOver() {
    return this.until === "interrupt" && this.#paused;
  }

  /** Whether there is more than has come, by the API; also learns whether the run is over. */
  async hasMore() {
    const page = await this.api.get(`${this.path}?after=${this.cursor}&limit=1`, { signal: this.signal });
    this.over = page.complete && page.events.length === 0;
    return page.events.length > 0;
  }

  /**
   * Whether a line broke after the whole pause. To be asked until it is answered: a stream from the
   * end of a pause waits for what follows it.
   */
  async isOver() {
    if (!this.mayBeOver) return false;
    const run = await this.api.get(`/api/runs/${encodeURIComponent(this.runId)}`, { signal: this.signal });
    return run.status === "interrupted" && run.lastSequence === this.cursor;
  }

  /** Whether trying again, from the cursor, may bring what is missing. */
  curable(error) {
    if (error instanceof Problem) return error.later;
    return !(error instanceof Gap) || this.#gaps < GAPS_MAX;
  }
}

export class FetchTransport {
  constructor(connection) {
    this.connection = connection;
  }

  /** The events of one response, some of which may be known; returns when it ends or is silent. */
  async *read() {
    const { connection } = this;
    const watch = new Watch(connection.signal, connection.silenceMaxMs);
    try {
      const response = await this.#open(watch.signal);
      if (response.status === 204) { connection.over = true; return; }
      connection.onConnection("open");
      const decoder = new EventStreamDecoder();
      const reader = response.body.getReader();
      for (let read = await reader.read(); !read.done; read = await reader.read()) {
        watch.beat();
        for (const event of decoder.feed(read.value)) yield JSON.parse(event.data);
        connection.retryMs = decoder.retryMs ?? connection.retryMs;
      }
      connection.over = connection.mayBeOver; // without a cut
    } finally {
      watch.end(); // also closes the line when the reader has had enough
    }
  }

  async #open(signal) {
    const { api, path, cursor, until } = this.connection;
    const response = await api.open(`${path}?until=${until}`, {
      signal, headers: { Accept: "text/event-stream", "Last-Event-ID": String(cursor) },
    });
    if (!response.ok) throw await Problem.of(response);
    return response;
  }
}

/**
 * `EventSource` reconnects by itself with `Last-Event-ID`, and gives up for ever at anything but 200:
 * then the server is asked why, and a new one is opened with a new ticket. Heartbeats are not shown to
 * us, so silence alone means nothing: after a long one the server is asked whether there is more than
 * has come, and only then the line is dead. `fetch` needs no such question: prefer it.
 */
export class EventSourceTransport {
  constructor(connection) {
    this.connection = connection;
  }

  async *read() {
    const { connection } = this;
    const { ticket } = await connection.api.post(`/api/runs/${connection.runId}/ticket`, undefined, {
      signal: connection.signal,
    });
    const { cursor, path, until } = connection;
    const query = new URLSearchParams({ after: cursor, until, ticket });
    const lines = new Lines(`${connection.api.base}${path}?${query}`, connection);
    try {
      yield* lines.read();
    } finally {
      lines.close();
    }
    if (!connection.over && !lines.dead) await this.#askWhy();
  }

  /** Throws the Problem that `EventSource` hides; a run that is over and fully read is no problem. */
  async #askWhy() {
    if (!this.connection.mayBeOver) await this.connection.hasMore(); // else `follow` asks
  }
}

/** What an `EventSource` says, to be awaited. */
class Lines {
  #events = [];
  #wake = () => {};
  #closed = false;
  #broken = false;
  dead = false; // found to be so: the server has more than has come

  constructor(url, connection) {
    this.connection = connection;
    this.source = new EventSource(url);
    const take = ({ data }) => { this.#events.push(JSON.parse(data)); this.#wake(); };
    for (const type of TYPES.filter((type) => type !== "error")) this.source.addEventListener(type, take);
    // a run's `error` event and a broken line arrive under one name; only the first has data
    this.source.addEventListener("error", (event) => (event.data === undefined ? this.#broke() : take(event)));
    this.source.addEventListener("open", () => connection.onConnection("open"));
    connection.signal?.addEventListener("abort", () => this.close(), { once: true });
  }

  async *read() {
    for (;;) {
      while (this.#events.length) yield this.#events.shift();
      this.connection.signal?.throwIfAborted();
      if (this.#closed || (this.#broken && this.connection.mayBeOver)) return;
      this.#broken = false; // it connects again by itself
      if ((await this.#silence()) && (this.dead = await this.#isDead())) return;
    }
  }

  /** Whether nothing has come for long. */
  #silence() {
    return new Promise((resolve) => {
      const timer = setTimeout(() => resolve(true), this.connection.silenceMaxMs);
      this.#wake = () => { clearTimeout(timer); resolve(false); };
    });
  }

  /** What comes while we ask is asked for again: the cursor has not moved. */
  async #isDead() {
    const { connection } = this;
    return connection.mayBeOver || (await connection.hasMore()) || connection.over;
  }

  close() {
    this.#closed = true;
    this.source.close();
    this.#wake();
  }

  #broke() {
    if (this.source.readyState === EventSource.CLOSED) return this.close();
    this.connection.onConnection("connecting");
    this.#broken = true;
    this.#wake();
  }
}
