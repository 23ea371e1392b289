// The composition root of the console: who is signed in, which page is shown, language and theme.

import { Unreachable } from "./client.js";
import { Conversation } from "./conversation.js";
import { fill, h, icon } from "./dom.js";
import { Inbox } from "./inbox.js";
import { Operations } from "./operations.js";
import { Poll } from "./poll.js";
import { Session } from "./session.js";
import { brand, Sidebar } from "./sidebar.js";
import { switchLanguage, t, tag } from "./words.js";

const THEME = "steadyrun.theme";
const LOOK_MS = 8000;

class App {
  #view = null;
  #soon = null;

  constructor() {
    this.session = new Session(() => this.#signIn());
    addEventListener("hashchange", () => this.#route());
    addEventListener("keydown", (event) => event.key === "Escape" && this.toggle && this.#menu(false));
    this.poll = new Poll(() => this.#look(), LOOK_MS);
  }

  async begin() {
    this.#theme(localStorage.getItem(THEME));
    document.documentElement.lang = tag();
    if (await this.session.begin()) this.#build();
    else this.#signIn();
    this.poll.start();
  }

  /** Something has changed that lists show: look soon, once. */
  changed() {
    clearTimeout(this.#soon);
    this.#soon = setTimeout(() => this.poll.look(), 150);
  }

  /** A new conversation got its id: the address follows without a new page. */
  moved(id) {
    history.replaceState(null, "", `#/c/${id}`);
    this.sidebar.mark(location.hash);
    this.#entitle();
  }

  deleted(id) {
    if (location.hash === `#/c/${id}`) location.hash = "#/";
  }

  isOwn(conversationId) {
    return this.sidebar.items.some((one) => one.id === conversationId);
  }

  switchLanguage() {
    switchLanguage();
    document.documentElement.lang = tag();
    this.#build();
  }

  switchTheme() {
    const dark = document.documentElement.dataset.theme
      ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    localStorage.setItem(THEME, dark ? "light" : "dark");
    this.#theme(dark ? "light" : "dark");
  }

  signOut() {
    this.#signIn(); // first: a page that closes keeps its run in what is cleared then
    this.session.signOut();
  }

  #theme(name) {
    if (name) document.documentElement.dataset.theme = name;
  }

  #build() {
    this.#view?.close();
    this.#view = null;
    this.sidebar = new Sidebar(this);
    this.main = h("main", { id: "main", tabindex: "-1" });
    const toggle = h("button", { class: "plain", type: "button", "aria-label": t("menu"), "aria-expanded": "false", "aria-controls": "sidebar", onClick: () => this.#menu() }, icon("menu"));
    this.toggle = toggle;
    fill(document.body, h("a", { class: "skip", href: "#main", onClick: (event) => { event.preventDefault(); this.main.focus(); } }, t("skip")),
      h("header", { class: "topbar" }, toggle, brand()), this.sidebar.element, h("div", { class: "shade", onClick: () => this.#menu(false) }), this.main);
    this.#route();
    this.poll.look();
  }

  #menu(open = !document.body.classList.contains("menu-open")) {
    const within = this.sidebar.element.contains(document.activeElement);
    if (!open && within && document.body.classList.contains("menu-open")) this.toggle.focus(); // it is hidden now
    document.body.classList.toggle("menu-open", open);
    this.toggle.setAttribute("aria-expanded", String(open));
  }

  #route() {
    if (!this.main) return;
    const [, page = "", id] = location.hash.split("/");
    this.#view?.close();
    this.#view = page === "inbox" ? new Inbox(this) : page === "operations" ? new Operations(this)
      : new Conversation(this, page === "c" && id ? id : null);
    fill(this.main, this.#view.element);
    this.sidebar.mark(location.hash || "#/");
    this.#menu(false);
    this.#view.open();
    this.#entitle();
  }

  #entitle() {
    const title = this.#view.title ?? this.#own?.title;
    if (title) this.#view.entitle?.(title);
    document.title = title ? `${title} · Steadyrun` : "Steadyrun";
  }

  get #own() {
    return this.sidebar.items.find((one) => one.id === this.#view?.id);
  }

  async #look() {
    if (!this.main) return;
    await this.sidebar.refresh();
    if (!this.#view) return;
    this.#entitle();
    if (this.#own && !this.sidebar.leaving.has(this.#own.id)) this.#view.noticed?.(this.#own);
  }

  #signIn() {
    this.#view?.close();
    this.#view = this.main = null;
    const token = h("textarea", { id: "token", rows: "4", spellcheck: "false", autocomplete: "off", required: true });
    const error = h("p", { class: "refused", role: "alert" });
    const submit = async (event) => {
      event.preventDefault();
      error.textContent = "";
      try {
        const text = token.value.replace(/\s+/g, "");
        if (!/^[\x21-\x7e]+$/.test(text)) throw new Error("no header can carry it");
        await this.session.signIn(text);
        this.#build();
      } catch (refusal) {
        error.textContent = t(refusal instanceof Unreachable || refusal.later ? "not_sent" : "token_refused");
      }
    };
    fill(document.body, h("main", { class: "sign-in" }, brand(), h("form", { onSubmit: submit },
      h("h1", {}, t("sign_in")), h("p", {}, t("sign_in_text")),
      h("div", { class: "field" }, h("label", { for: "token" }, t("token")), token), error,
      h("button", { class: "button primary", type: "submit" }, t("sign_in")), h("p", { class: "hint" }, h("code", {}, t("sign_in_hint"))))));
    token.focus();
  }
}

new App().begin();
