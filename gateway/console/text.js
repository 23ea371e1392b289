// What an assistant has said, as elements: paragraphs, lists, tables, code. A small part of Markdown, and only
// by building elements: whatever the text holds, it is shown, never obeyed.

import { h } from "./dom.js";

const FENCE = /^```/;
const ITEM = /^\s*(?:[-*•]|\d{1,3}[.)])\s+/;
const QUOTE = /^>\s?/;
const RULE = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/; // between a table's head and its body
const HEADING = /^#{1,4}\s+/;
const LINK = /^https?:\/\/[^\s]+$/;
const INLINE = /(`[^`\n]+`|\*\*[^*\n]+\*\*|https?:\/\/[^\s<>"'`()[\]，。；：！？、）】》]*[^\s<>"'`()[\]，。；：！？、）】》.,;:!?*])/;

/** The blocks of a text. One that is still being written may end in the middle of anything. */
export function blocks(text) {
  const found = [];
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  while (lines.length) {
    if (lines[0].trim() === "") lines.shift();
    else if (FENCE.test(lines[0])) found.push(code(lines));
    else if (ITEM.test(lines[0])) found.push(list(lines));
    else if (QUOTE.test(lines[0])) found.push(quote(lines));
    else if (isTable(lines)) found.push(table(lines));
    else found.push(paragraph(lines));
  }
  return found;
}

function code(lines) {
  lines.shift();
  const end = lines.findIndex((line) => FENCE.test(line));
  const body = lines.splice(0, end < 0 ? lines.length : end + 1);
  if (end >= 0) body.pop();
  return h("pre", { tabindex: "0" }, h("code", {}, body.join("\n")));
}

/** Items that stand deeper make a list within the item before them. */
function list(lines) {
  const [own, ordered] = [depth(lines[0]), isOrdered(lines[0])];
  const whole = h(ordered ? "ol" : "ul", { start: ordered ? parseInt(lines[0], 10) : null });
  while (lines.length && lines[0].trim() !== "" && depth(lines[0]) >= own) {
    if (depth(lines[0]) > own) whole.lastElementChild.append(...(ITEM.test(lines[0]) ? [list(lines)] : [h("br"), ...inline(lines.shift().trim())]));
    else if (ITEM.test(lines[0]) && isOrdered(lines[0]) === ordered) whole.append(h("li", {}, inline(lines.shift().replace(ITEM, ""))));
    else break;
  }
  return whole;
}

function depth(line) {
  return line.length - line.trimStart().length;
}

function isOrdered(line) {
  return /^\s*\d/.test(line);
}

function quote(lines) {
  return h("blockquote", {}, blocks(take(lines, (line) => QUOTE.test(line)).map((line) => line.replace(QUOTE, "")).join("\n")));
}

function isTable(lines) {
  return lines.length > 1 && lines[0].includes("|") && lines[1].includes("|") && RULE.test(lines[1]);
}

function table(lines) {
  const [head, , ...rows] = take(lines, (line) => line.includes("|")).map(cells);
  const row = (name, texts) => h("tr", {}, texts.map((text) => h(name, name === "th" ? { scope: "col" } : {}, inline(text))));
  return h("div", { class: "said-table", tabindex: "0" }, h("table", {}, h("thead", {}, row("th", head)), h("tbody", {}, rows.map((texts) => row("td", texts)))));
}

function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((text) => text.trim());
}

function paragraph(lines) {
  if (HEADING.test(lines[0])) return h("p", { class: "heading" }, inline(lines.shift().replace(HEADING, "")));
  const first = lines.shift();
  const others = take(lines, (line) => line.trim() !== "" && ![FENCE, ITEM, QUOTE, HEADING].some((other) => other.test(line)));
  const own = [first, ...others];
  return h("p", {}, own.flatMap((line, n) => (n ? [h("br"), ...inline(line)] : inline(line))));
}

function take(lines, holds) {
  const end = lines.findIndex((line) => !holds(line));
  return lines.splice(0, end < 0 ? lines.length : end);
}

function inline(line) {
  return line.split(INLINE).filter(Boolean).map((part) => {
    if (/^`[^`]+`$/.test(part)) return h("code", {}, part.slice(1, -1));
    if (/^\*\*[^*]+\*\*$/.test(part)) return h("strong", {}, part.slice(2, -2));
    if (LINK.test(part)) return h("a", { href: part, target: "_blank", rel: "noopener noreferrer" }, part);
    return document.createTextNode(part);
  });
}

/** Any JSON value on one line of bounded length. */
export function brief(value, most = 160) {
  const text = typeof value === "string" ? value : JSON.stringify(value) ?? "";
  const line = text.split(/\s+/).join(" ").trim();
  return line.length <= most ? line : `${line.slice(0, most - 1)}…`;
}

/** The same, an object by its names and values. */
export function briefly(value, most) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return brief(value, most);
  return brief(Object.entries(value).map(([name, part]) => `${name}: ${brief(part, most)}`).join(" · "), most);
}

/** A JSON object as a list of names and values; another value as text. */
export function facts(value) {
  if (value === null || typeof value !== "object") return h("p", { class: "fact" }, brief(value, 600));
  return h("dl", { class: "facts" }, Object.entries(value).map(([name, part]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, brief(part, 600)))));
}
