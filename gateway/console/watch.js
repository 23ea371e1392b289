// A signal of its own that follows another one, and also fires after silence.

export class Watch {
  #controller = new AbortController();
  #timer;

  constructor(outer, silenceMaxMs) {
    this.silenceMaxMs = silenceMaxMs;
    this.follow = () => this.#controller.abort(outer.reason);
    this.outer = outer;
    if (outer?.aborted) this.follow();
    outer?.addEventListener("abort", this.follow, { once: true });
    this.beat();
  }

  get signal() {
    return this.#controller.signal;
  }

  beat() {
    clearTimeout(this.#timer);
    const tell = () => this.#controller.abort(new Error("nothing came for long"));
    this.#timer = setTimeout(tell, this.silenceMaxMs);
  }

  end() {
    clearTimeout(this.#timer);
    this.outer?.removeEventListener("abort", this.follow);
    this.#controller.abort();
  }
}
