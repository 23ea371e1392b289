// Who is signed in: a token in this tab's sessionStorage, from the demo or pasted by a person.

import { Api, pause } from "./client.js";

const STORED = "steadyrun.token";

export class Session {
  /** `onRefused` is called when the server refuses the token and no other is to be had. */
  constructor(onRefused) {
    this.onRefused = onRefused;
    this.api = new Api({ token: sessionStorage.getItem(STORED), renew: () => this.#renew(), wait: pauseOrOnline });
  }

  /** Whether there is a token: the stored one, else one for the demo user where there is a demo. */
  async begin() {
    if (this.api.token === null) await this.#demo();
    return this.api.token !== null;
  }

  /** Whether the server takes the token. */
  async signIn(token) {
    const response = await fetch("/api/conversations?limit=1", { headers: { Authorization: `Bearer ${token}` } });
    if (!response.ok) return false;
    this.#keep(token);
    return true;
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

  async #renew() {
    const token = await this.#demo();
    if (token === null) this.onRefused();
    return token;
  }

  /** 404 where there is no demo: a normal answer, asked for once a tab. */
  async #demo() {
    const response = await fetch("/api/demo-token", { method: "POST" }).catch(() => null);
    if (!response?.ok) return null;
    const { token } = await response.json();
    this.#keep(token);
    return token;
  }

  #keep(token) {
    sessionStorage.setItem(STORED, token);
    this.api.token = token;
  }
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
