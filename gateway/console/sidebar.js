// The list at the side: conversations with what they are at, and the ways to the other pages.

import { fill, h, icon } from "./dom.js";
import { told } from "./problems.js";
import { currentLanguage, t } from "./words.js";

const SHOWN = 60;

export class Sidebar {
  #most = SHOWN;

  constructor(app) {
    Object.assign(this, { app, api: app.session.api, items: [], leaving: new Set(), here: "" });
    this.list = h("ul", { class: "conversations" });
    this.older = h("button", { class: "button older", type: "button", hidden: true, onClick: () => this.#more() }, t("older"));
    this.count = h("span", { class: "count", hidden: true });
    this.links = [this.#link("#/inbox", "inbox", t("inbox"), this.count), app.session.holds("ops.view") && this.#link("#/operations", "pulse", t("operations"))];
    this.element = h("nav", { class: "sidebar", id: "sidebar", "aria-label": t("menu") },
      brand(), h("a", { class: "button new", href: "#/" }, icon("plus"), t("new_conversation")),
      h("div", { class: "links" }, this.links),
      h("h2", { class: "label" }, t("conversations")), this.list, this.older, this.#bottom());
  }

  async refresh() {
    const [items, inbox] = await Promise.all([
      this.api.list("/api/conversations", { most: this.#most, limit: Math.min(this.#most, 200) }).catch(() => null),
      this.api.get("/api/interrupts?status=pending&limit=100").catch(() => null)]);
    if (items) this.#show(items);
    const waiting = inbox?.items.length ?? 0;
    this.count.textContent = String(waiting);
    this.count.hidden = waiting === 0;
  }

  mark(here) {
    this.here = here;
    for (const link of this.element.querySelectorAll("a")) {
      if (link.getAttribute("href") === here) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }

  /** Every look reads as many as are shown: few, unless somebody wants more. */
  async #more() {
    this.#most = this.#most === SHOWN ? 200 : this.#most + 200;
    await this.refresh();
  }

  #show(items) {
    this.items = items;
    this.older.hidden = items.length < this.#most;
    const known = JSON.stringify(items.map(({ id, title, activeRun }) => [id, title, activeRun?.status]));
    if (known === this.known) return;
    this.known = known;
    const focused = document.activeElement?.getAttribute("href");
    fill(this.list, items.length ? items.map((one) => this.#row(one)) : h("li", { class: "quiet" }, t("none_yet")));
    this.mark(this.here);
    if (focused && this.list.querySelector(`a[href="${CSS.escape(focused)}"]`)) this.list.querySelector(`a[href="${CSS.escape(focused)}"]`).focus();
  }

  #row({ id, title, activeRun }) {
    const status = activeRun?.status;
    const mark = status && h("span", { class: `dot dot-${status}`, title: t(status) }, h("span", { class: "hidden" }, ` (${t(status)})`));
    return h("li", {}, h("a", { href: `#/c/${id}` }, h("span", { class: "title" }, title), mark),
      h("button", { class: "bin", type: "button", "aria-label": `${t("delete_conversation")}: ${title}`, title: t("delete_conversation"), onClick: () => this.#delete(id, title) }, icon("bin")));
  }

  async #delete(id, title) {
    if (!confirm(t("delete_sure", { title }))) return;
    this.leaving.add(id); // nobody asks about it meanwhile
    try {
      await this.api.delete(`/api/conversations/${id}`);
      this.app.deleted(id);
    } catch (error) {
      this.leaving.delete(id);
      alert(told(error).map((part) => part.textContent ?? part).join(""));
    }
    await this.refresh();
  }

  #link(href, symbol, words, more = null) {
    return h("a", { href }, icon(symbol), h("span", {}, words), more);
  }

  #bottom() {
    const { app } = this;
    return h("div", { class: "bottom" },
      h("span", { class: "who", title: t("signed_in_as", { user: app.session.user }) }, app.session.user),
      h("button", { class: "plain", type: "button", lang: currentLanguage() === "en" ? "zh-CN" : "en", onClick: () => app.switchLanguage() }, t("other_language")),
      h("button", { class: "plain", type: "button", "aria-label": t("theme"), title: t("theme"), onClick: () => app.switchTheme() }, icon("moon")),
      h("button", { class: "plain", type: "button", "aria-label": t("sign_out"), title: t("sign_out"), onClick: () => app.signOut() }, icon("leave")));
  }
}

export function brand() {
  return h("a", { class: "brand", href: "#/" }, h("span", { class: "brand-mark" }, icon("pulse")),
    h("span", {}, h("strong", {}, "Steadyrun"), h("small", {}, t("brand_line"))));
}
