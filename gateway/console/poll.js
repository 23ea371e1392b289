// Looks again and again, one look at a time: a server that is slow, or away, is not asked by a heap
// of requests at once, and nobody who has left goes on asking.

export class Poll {
  #closing = new AbortController();
  #timer;
  #looking = false;
  #again = false;

  /** `act(signal)` is one look. */
  constructor(act, everyMs) {
    Object.assign(this, { act, everyMs });
  }

  /** Now, every `everyMs` while the page can be seen, and when it comes into sight. */
  start() {
    const { signal } = this.#closing;
    const tick = () => this.#looking || globalThis.document?.hidden || this.look();
    this.#timer = setInterval(tick, this.everyMs);
    globalThis.document?.addEventListener("visibilitychange", tick, { signal });
    return this.look();
  }

  stop() {
    clearInterval(this.#timer);
    this.#closing.abort();
  }

  /** Now, or once more as soon as the look that is under way is over. */
  async look() {
    this.#again = true;
    if (this.#looking) return;
    this.#looking = true;
    try {
      while (this.#again && !this.#closing.signal.aborted) {
        this.#again = false;
        await this.act(this.#closing.signal);
      }
    } finally {
      this.#looking = false;
    }
  }
}
