// Requests to the API that may be repeated: with a token, an idempotency key, pauses and jitter.

import { Watch } from "./watch.js";

const ATTEMPTS_MAX = 6;
const ANSWER_MAX_MS = 30_000;
const [PAUSE_FIRST_MS, PAUSE_MAX_MS] = [500, 8000];
const LATER = new Set([429, 502, 503, 504]);

/** What the server said no with: a problem document (RFC 9457). `code` is stable. */
export class Problem extends Error {
  constructor(status, document, retryAfterMs = 0) {
    super(document.detail ?? document.title ?? `HTTP ${status}`);
    this.name = "Problem";
    this.status = status;
    this.code = document.code ?? "UNKNOWN";
    this.document = document;
    this.retryAfterMs = retryAfterMs;
  }

  /** Whether the same request may be answered later. */
  get later() {
    return LATER.has(this.status);
  }

  static async of(response) {
    const document = await response.json().catch(() => ({}));
    const after = Number(response.headers.get("retry-after"));
    return new Problem(response.status, document ?? {}, after > 0 ? after * 1000 : 0);
  }
}

/** Nothing answers, and it was tried for long. */
export class Unreachable extends Error {}

/** How long to wait before try number `attempt` (from 1 on): doubling, with jitter. */
export function backoff(attempt, { random = Math.random, firstMs = PAUSE_FIRST_MS } = {}) {
  const longest = Math.min(PAUSE_MAX_MS, firstMs * 2 ** (attempt - 1));
  return longest / 2 + (random() * longest) / 2;
}

/** Rejects with the signal's reason as soon as it is aborted. */
export function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const stop = () => { clearTimeout(timer); reject(signal.reason); };
    const timer = setTimeout(() => { signal?.removeEventListener("abort", stop); resolve(); }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** A key for one act of a person; `crypto.randomUUID` is missing where the page came by plain http. */
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * Requests with a token. `renew` is asked once for another token when the server refuses the one
 * there is; it returns null where there is none to be had.
 */
export class Api {
  constructor({ base = "", token = null, renew = async () => null, fetch = globalThis.fetch, wait = pause } = {}) {
    Object.assign(this, { base, token, renew, wait });
    this.aheadMs = 0; // the server's clock before ours, as of the last answer
    this.fetch = (url, options) => fetch(url, options);
  }

  get(path, options = {}) {
    return this.#ask("GET", path, options);
  }

  /** With a key, so that it may be repeated; keep `key` to repeat it yourself. */
  post(path, body, { key = newKey(), headers = {}, ...options } = {}) {
    return this.#ask("POST", path, { ...options, body, headers: { ...headers, "Idempotency-Key": key } });
  }

  delete(path, options = {}) {
    return this.#ask("DELETE", path, options);
  }

  /** The items of a paged list, pages of `limit` until there are `most`. */
  async list(path, { most = 1000, limit = 200, ...options } = {}) {
    const items = [];
    let cursor = "";
    do {
      const url = `${path}${path.includes("?") ? "&" : "?"}limit=${limit}${cursor && `&cursor=${encodeURIComponent(cursor)}`}`;
      const page = await this.get(url, options);
      items.push(...page.items);
      cursor = page.nextCursor ?? "";
    } while (cursor && items.length < most);
    return items;
  }

  /** By the server's clock: what it says of moments is not to be held against ours. */
  now() {
    return Date.now() + this.aheadMs;
  }

  authorization() {
    return this.token ? { Authorization: `Bearer ${this.token}` } : {};
  }

  /** One answer, of whatever status but 401 while another token is to be had. */
  async open(path, { headers = {}, ...options } = {}) {
    const send = async () => {
      const request = { ...options, cache: "no-store", headers: { ...headers, ...this.authorization() } };
      const response = await this.fetch(this.base + path, request);
      this.#heard(response.headers.get("date"));
      return response;
    };
    const used = this.token;
    const response = await send();
    if (response.status !== 401 || !(await this.renewed(used))) return response;
    return send();
  }

  /** Whether there is another token than the one that was refused; several ask at once for one. */
  async renewed(used) {
    if (this.token !== used) return this.token !== null;
    this.renewing ??= this.renew().finally(() => { this.renewing = null; });
    const token = await this.renewing;
    if (token === null) return false;
    this.token = token;
    return true;
  }

  /** A header of whole seconds: what is within its blur is no difference. */
  #heard(date) {
    const ahead = Date.parse(date) - Date.now();
    if (!Number.isNaN(ahead)) this.aheadMs = Math.abs(ahead) < 2000 ? 0 : ahead;
  }

  async #ask(method, path, { body, headers = {}, signal } = {}) {
    const options = {
      method, signal,
      headers: { Accept: "application/json", ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
    };
    for (let attempt = 1; ; attempt += 1) {
      const failure = await this.#attempt(path, options);
      if (failure.answer !== undefined) return failure.answer;
      if (failure.problem && !failure.problem.later) throw failure.problem;
      if (attempt >= ATTEMPTS_MAX) throw failure.problem ?? new Unreachable(String(failure.error));
      await this.wait(Math.max(backoff(attempt), failure.problem?.retryAfterMs ?? 0), signal);
    }
  }

  async #attempt(path, options) {
    const watch = new Watch(options.signal, ANSWER_MAX_MS);
    try {
      const response = await this.open(path, { ...options, signal: watch.signal });
      if (!response.ok) return { problem: await Problem.of(response) };
      return { answer: response.status === 204 ? null : await response.json() };
    } catch (error) {
      if (options.signal?.aborted) throw options.signal.reason;
      return { error };
    } finally {
      watch.end();
    }
  }
}
