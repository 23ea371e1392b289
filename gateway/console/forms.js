// How a person answers each kind of question. `send` gets {decision} as contract §5 has it, or {value}
// for a graph's own question.

import { fill, h, icon } from "./dom.js";
import { brief } from "./text.js";
import { t } from "./words.js";

let ids = 0;

export function answerForm(asked, send) {
  if (asked.type === "confirm_action") return confirmation(asked, send);
  if (asked.format === "opaque") return opaque(asked, send);
  return asked.type === "select_option" ? selection(asked, send) : input(asked, send);
}

function allows(asked, decision) {
  return (asked.allowedDecisions ?? ["approve", "reject"]).includes(decision);
}

function button(words, { kind = "", symbol = null, submit = false, act = null } = {}) {
  return h("button", { class: `button ${kind}`, type: submit ? "submit" : "button", onClick: act }, symbol && icon(symbol), words);
}

function form(send, read, ...children) {
  const submit = (event) => {
    event.preventDefault();
    const decision = read();
    if (decision !== null) send(decision);
  };
  return h("form", { onSubmit: submit, novalidate: true }, ...children);
}

function field(words, control, kind = "field") {
  control.id = `field-${(ids += 1)}`;
  return h("div", { class: kind }, h("label", { for: control.id }, words), control);
}

// --- confirm ------------------------------------------------------------------------------------

function confirmation(asked, send) {
  const place = h("div", {});
  const home = () => fill(place, h("div", { class: "buttons" },
    allows(asked, "approve") && button(t("approve"), { kind: "primary", symbol: "check", act: () => send({ decision: "approve" }) }),
    allows(asked, "reject") && button(t("reject"), { symbol: "cross", act: () => refuse(place, asked, send, home) }),
    allows(asked, "edit") && asked.actions?.length === 1 && button(t("edit"), { act: () => change(place, asked, send, home) })));
  return home();
}

function refuse(place, asked, send, home) {
  const reason = h("input", { type: "text", maxlength: "2000", autocomplete: "off" });
  const read = () => ({ decision: reason.value.trim() ? { reject: { message: reason.value.trim() } } : "reject" });
  fill(place, form(send, read, field(t("reason"), reason),
    h("div", { class: "buttons" }, button(t("reject"), { kind: "danger", symbol: "cross", submit: true }), button(t("back"), { act: home }))));
  show(place, reason);
}

function change(place, asked, send, home) {
  const text = h("textarea", { rows: "6", spellcheck: "false", class: "code", value: JSON.stringify(asked.actions[0].args ?? {}, null, 2) });
  const read = () => asJson(text, (value) => ({ decision: { edit: value } }));
  fill(place, form(send, read, field(t("arguments"), text),
    h("div", { class: "buttons" }, button(t("send_changed"), { kind: "primary", submit: true }), button(t("back"), { act: home }))));
  show(place, text);
}

/** With its buttons. */
function show(place, control) {
  control.focus({ preventScroll: true });
  place.scrollIntoView({ block: "nearest" });
}

/** Null, and said so, where it is not JSON. */
function asJson(control, make) {
  try {
    const value = JSON.parse(control.value);
    control.setCustomValidity("");
    return make(value);
  } catch {
    control.setCustomValidity(t("bad_json"));
    control.setAttribute("aria-invalid", "true");
    control.reportValidity();
    return null;
  }
}

// --- choose -------------------------------------------------------------------------------------

function selection(asked, send) {
  const options = (asked.payload?.options ?? []).map((option) =>
    option !== null && typeof option === "object" && "value" in option ? option : { value: option, label: option });
  const result = allows(asked, "fill") && asked.labels ? h("textarea", { rows: "3", spellcheck: "false", class: "code", "aria-label": asked.labels.result, placeholder: asked.labels.result }) : null;
  if (result) options.push({ label: asked.labels.fill });
  const group = `choice-${(ids += 1)}`;
  const controls = options.map((option, n) => h("input", { type: "radio", name: group, id: `${group}-${n}`, required: true }));
  const rows = options.map((option, n) => h("div", { class: "choice" }, controls[n],
    h("label", { for: `${group}-${n}` }, brief(option.label ?? option.value), option.description && h("small", {}, brief(option.description)))));
  if (result) result.addEventListener("focus", () => { controls.at(-1).checked = true; });
  const read = () => {
    const chosen = options[controls.findIndex((control) => control.checked)];
    if (!chosen && !controls[0]?.reportValidity()) return null; // nothing is chosen for a person
    if (result && chosen === options.at(-1)) return asJson(result, (value) => ({ decision: { fill: { result: value } } }));
    return { decision: { select: chosen?.value } };
  };
  return form(send, read, h("fieldset", {}, h("legend", {}, t("choose")), rows, result), answerButtons(asked, send));
}

function answerButtons(asked, send) {
  return h("div", { class: "buttons" }, button(t("submit"), { kind: "primary", submit: true }),
    allows(asked, "reject") && button(asked.labels?.reject ?? t("reject"), { symbol: "cross", act: () => send({ decision: "reject" }) }));
}

// --- fill in ------------------------------------------------------------------------------------

function input(asked, send) {
  const { properties = {}, required = [] } = asked.payload?.schema ?? {};
  const fields = Object.entries(properties).map(([name, rule]) => property(name, rule, required.includes(name)));
  if (!fields.length) return free(asked, send, (value) => ({ decision: { fill: value } }));
  const read = () => ({ decision: { fill: Object.fromEntries(fields.map(({ name, value }) => [name, value()]).filter(([, value]) => value !== undefined)) } });
  return form(send, read, fields.map(({ row }) => row), answerButtons(asked, send));
}

function property(name, rule, needed) {
  const kind = Array.isArray(rule.type) ? rule.type[0] : rule.type;
  const control = controlFor(rule, kind, needed);
  const words = `${brief(rule.title ?? name)}${needed ? " *" : ""}`;
  const row = field(words, control, kind === "boolean" && !rule.enum ? "field field-check" : "field");
  if (rule.description) row.append(h("small", {}, brief(rule.description, 400)));
  return { name, row, value: () => valueOf(control, rule, kind) };
}

/** What is typed as JSON. */
const HINTS = { array: '["…", "…"]', object: '{"…": "…"}' };

function controlFor(rule, kind, needed) {
  if (rule.enum) {
    return h("select", { required: needed }, !needed && h("option", { value: "" }, "–"),
      rule.enum.map((value, n) => h("option", { value: String(n), selected: value === rule.default }, brief(value))));
  }
  if (kind === "boolean") return h("input", { type: "checkbox", checked: rule.default === true });
  const number = kind === "integer" || kind === "number";
  const shown = rule.default === undefined ? "" : typeof rule.default === "object" ? JSON.stringify(rule.default) : String(rule.default);
  return h("input", { type: number ? "number" : rule.format === "date" ? "date" : "text", step: kind === "integer" ? "1" : number ? "any" : null,
    min: number ? rule.minimum : null, max: number ? rule.maximum : null, placeholder: HINTS[kind], required: needed, autocomplete: "off", value: shown });
}

function valueOf(control, rule, kind) {
  if (rule.enum) return control.value === "" ? undefined : rule.enum[Number(control.value)];
  if (kind === "boolean") return control.checked;
  if (control.value === "") return undefined;
  if (kind === "integer" || kind === "number") return Number(control.value);
  return kind === "string" || kind === undefined ? control.value : loose(control.value);
}

/** A graph's own question: it gets what is typed, as JSON where it is JSON. */
function opaque(asked, send) {
  return free(asked, send, (value) => ({ value }), loose);
}

function free(asked, send, make, understand = null) {
  const text = h("textarea", { rows: "3", spellcheck: "false", placeholder: t("answer_hint") });
  const read = () => (understand ? make(understand(text.value)) : asJson(text, make));
  return form(send, read, field(t("answer"), text), answerButtons(asked, send));
}

function loose(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
