// Why a decision was not taken (contract §5), told so that a person can go on.

import { h } from "./dom.js";
import { explained, told } from "./problems.js";
import { brief, facts } from "./text.js";
import { t } from "./words.js";

/** `confirm(version)` sends the decision again, for the values that are shown here. */
export function refusal(problem, asked, confirm) {
  const { code, document } = problem;
  if (code === "RESOURCE_CHANGED" || code === "VERSION_CONFLICT") return changed(code, document, asked, confirm);
  return h("p", { class: "refused" }, told(problem));
}

function changed(code, document, asked, confirm) {
  const resource = document.resources?.[asked.id] ?? document.resource;
  const before = asked.payload?.resource;
  const parts = code === "RESOURCE_CHANGED" && resource !== undefined ? differences(before, resource) : null;
  return h("div", { class: "changed" },
    h("p", { class: "changed-head" }, explained(code).words),
    parts ?? facts(document.facts ?? {}),
    h("button", { class: "button primary", type: "button", onClick: () => confirm(document.confirmVersion) }, t("confirm_current")));
}

/** A row for each value; the ones that differ stand out. */
function differences(before, now) {
  const [was, is] = [named(before), named(now)];
  const names = [...new Set([...Object.keys(was), ...Object.keys(is)])];
  const rows = names.map((name) => {
    const differs = JSON.stringify(was[name]) !== JSON.stringify(is[name]);
    return h("tr", { class: differs ? "differs" : "" }, h("th", { scope: "row" }, name),
      h("td", {}, brief(was[name] ?? "–")), h("td", {}, brief(is[name] ?? "–")));
  });
  const head = h("tr", {}, h("td", {}), h("th", { scope: "col" }, t("was")), h("th", { scope: "col" }, t("is")));
  return h("table", { class: "differences" }, h("thead", {}, head), h("tbody", {}, rows));
}

function named(value) {
  if (value === undefined || value === null) return {};
  return typeof value === "object" ? value : { value };
}
