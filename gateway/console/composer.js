// Where a person writes; while a run is active it can only be stopped.

import { fill, h, icon } from "./dom.js";
import { told } from "./problems.js";
import { t } from "./words.js";

export class Composer {
  constructor({ send, stop, typed }) {
    this.typed = typed;
    this.text = h("textarea", { id: "message", rows: "1", maxlength: "60000", onInput: () => this.#changed(),
      onKeydown: (event) => this.#key(event) });
    this.sendButton = h("button", { class: "round primary", type: "submit", "aria-label": t("send"), title: t("send") }, icon("send"));
    this.stopButton = h("button", { class: "round", type: "button", "aria-label": t("stop"), title: t("stop"), onClick: stop }, icon("stop"));
    this.error = h("p", { class: "composer-error", role: "alert" });
    this.element = h("form", { class: "composer", onSubmit: (event) => { event.preventDefault(); this.#submit(send); } },
      this.error, h("div", { class: "composer-box" }, h("label", { class: "hidden", for: "message" }, t("message")), this.text, this.stopButton, this.sendButton));
    this.show(null);
  }

  /** `status` of the active run; null: there is none. */
  show(status) {
    this.busy = status;
    this.text.placeholder = status === null ? t("placeholder") : t(status === "interrupted" ? "placeholder_waiting" : "placeholder_busy");
    this.sendButton.hidden = status !== null;
    this.stopButton.hidden = status === null;
    if (status === null) this.stopButton.disabled = false;
  }

  lock() {
    this.error.textContent = "";
    this.show("queued");
    this.stopButton.hidden = true; // there is no run yet
  }

  write(text) {
    this.text.value = text;
    this.#changed();
  }

  stopping() {
    this.error.textContent = "";
    this.stopButton.disabled = true;
    this.text.placeholder = t("stopping");
  }

  failed(error) {
    this.stopButton.disabled = false;
    fill(this.error, told(error));
  }

  focus() {
    if (matchMedia("(pointer: fine)").matches) this.text.focus();
  }

  #submit(send) {
    const words = this.text.value.trim();
    if (words && this.busy === null) send(words);
  }

  /** Enter sends, Shift+Enter breaks the line; not while an input method composes a word. */
  #key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.element.requestSubmit();
  }

  #changed() {
    this.typed(this.text.value);
    this.text.style.height = "auto";
    this.text.style.height = `${Math.min(this.text.scrollHeight, 220)}px`;
  }
}
