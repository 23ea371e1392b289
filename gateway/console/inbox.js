// The approval inbox: everything that the caller may decide, whosever conversation it is.

import { Card } from "./card.js";
import { fill, h } from "./dom.js";
import { Poll } from "./poll.js";
import { t } from "./words.js";

const LOOK_MS = 4000;

export class Inbox {
  #cards = new Map();

  constructor(app) {
    Object.assign(this, { app, api: app.session.api, title: t("inbox") });
    this.list = h("div", { class: "inbox-list", "aria-live": "polite" });
    this.element = h("div", { class: "page" }, h("header", { class: "page-head" }, h("h1", {}, t("inbox")), h("p", {}, t("inbox_text"))), this.list);
  }

  open() {
    this.poll = new Poll((signal) => this.#refresh(signal), LOOK_MS);
    return this.poll.start();
  }

  close() {
    this.poll.stop();
    for (const card of this.#cards.values()) card.close();
  }

  /** What was decided elsewhere goes; what was decided here stays to be seen. */
  async #refresh(signal) {
    const found = await this.api.list("/api/interrupts?status=pending", { most: 200, signal }).catch(() => null);
    if (found === null) return;
    const open = new Set(found.map((asked) => asked.id));
    for (const [id, card] of this.#cards) {
      if (open.has(id) || card.asked.status !== "pending") continue;
      card.close();
      card.element.remove();
      this.#cards.delete(id);
    }
    for (const asked of found.toReversed()) this.#show(asked);
    const empty = this.#cards.size === 0;
    if (empty) fill(this.list, h("p", { class: "quiet" }, t("inbox_empty")));
    else this.list.querySelector(":scope > .quiet")?.remove();
  }

  #show(asked) {
    if (this.#cards.has(asked.id)) return;
    const mine = this.app.isOwn(asked.conversationId);
    const footer = mine && h("p", { class: "card-foot" }, h("a", { href: `#/c/${asked.conversationId}` }, t("open_conversation")));
    const card = new Card(this.api, asked, { user: this.app.session.user, footer, onDecided: () => this.app.changed() });
    this.#cards.set(asked.id, card);
    this.list.prepend(card.element);
  }
}
