// Who is signed in: a token in this tab's sessionStorage, from the demo or pasted by a person.

import { Api, pause, Problem } from "./client.js";

const STORED = "steadyrun.token";
const DEMO_USER = "demo";

export class Session {
  /** `onRefused` is called when the server refuses the token and no other is to be had. */
  constructor(onRefused) {
    this.onRefused = onRefused;
    this.api = new Api({ token: sessionStorage.getItem(STORED), renew: () => this.#renew(), wait: pauseOrOnline });
  }

  /** Whether there is a token: the stored one, else one for the demo user where there is a demo. */
  async begin() {
    if (this.api.token === null) await this.#demo().catch(() => null);
    return this.api.token !== null;
  }

  /** Throws the Problem of a server that does not take the token, Unreachable where none answers. */
  async signIn(token) {
    const fresh = new Api({ token });
    await fresh.get("/api/conversations?limit=1");
    this.#keep(token);
  }

  signOut() {
    sessionStorage.clear();
    this.api.token = null;
  }

  get user() {
    return this.#claims.sub ?? "";
  }

  /** For what to show only: the server decides. */
  holds(permission) {
    const { permissions = [], scope = "" } = this.#claims;
    const all = typeof permissions === "string" ? permissions.split(" ") : permissions;
    return all.includes(permission) || scope.split(" ").includes(permission);
  }

  get #claims() {
    try {
      const part = this.api.token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/");
      const bytes = Uint8Array.from(atob(part), (character) => character.charCodeAt(0));
      return JSON.parse(new TextDecoder().decode(bytes));
    } catch {
      return {};
    }
  }

  /** Nobody becomes somebody else because a token is over. */
  async #renew() {
    const token = this.user === DEMO_USER ? await this.#demo() : null;
    if (token === null) this.onRefused();
    return token;
  }

  /** Null where there is no demo, as the page says. Throws where nobody answers: that is no refusal. */
  async #demo() {
    if (document.querySelector("meta[name=steadyrun-demo]")?.content !== "yes") return null;
    const answer = await new Api({ wait: pauseOrOnline }).post("/api/demo-token", undefined).catch(refused);
    if (answer) this.#keep(answer.token);
    return answer?.token ?? null;
  }

  #keep(token) {
    sessionStorage.setItem(STORED, token);
    this.api.token = token;
  }
}

/** Null for a refusal, which no waiting cures. */
function refused(error) {
  if (error instanceof Problem && !error.later) return null;
  throw error;
}

/** A wait ends early when the network is back: nobody looks at a page that waits for no reason. */
async function pauseOrOnline(ms, signal) {
  const waiting = new AbortController();
  const online = new Promise((resolve) => addEventListener("online", resolve, { once: true, signal: waiting.signal }));
  try {
    await Promise.race([pause(ms, signal), online]);
  } finally {
    waiting.abort();
  }
}
