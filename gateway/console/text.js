// What an assistant has said, as elements: paragraphs, lists, code. A small part of Markdown, and only
// by building elements: whatever the text holds, it is shown, never obeyed.

import { h } from "./dom.js";

const FENCE = /^```/;
const ITEM = /^\s*(?:[-*•]|\d{1,3}[.)])\s+/;
const HEADING = /^#{1,4}\s+/;
const INLINE = /(`[^`\n]+`|\*\*[^*\n]+\*\*)/;

/** The blocks of a text. One that is still being written may end in the middle of anything. */
export function blocks(text) {
  const found = [];
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  while (lines.length) {
    if (lines[0].trim() === "") lines.shift();
    else if (FENCE.test(lines[0])) found.push(code(lines));
    else if (ITEM.test(lines[0])) found.push(list(lines));
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

function list(lines) {
  const items = take(lines, (line) => ITEM.test(line));
  const ordered = /^\s*\d/.test(items[0]);
  return h(ordered ? "ol" : "ul", {}, items.map((line) => h("li", {}, inline(line.replace(ITEM, "")))));
}

function paragraph(lines) {
  if (HEADING.test(lines[0])) return h("p", { class: "heading" }, inline(lines.shift().replace(HEADING, "")));
  const own = take(lines, (line) => line.trim() !== "" && !FENCE.test(line) && !ITEM.test(line));
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
    return document.createTextNode(part);
  });
}

/** Any JSON value on one line of bounded length. */
export function brief(value, most = 160) {
  const text = typeof value === "string" ? value : JSON.stringify(value) ?? "";
  const line = text.split(/\s+/).join(" ").trim();
  return line.length <= most ? line : `${line.slice(0, most - 1)}…`;
}

/** A JSON object as a list of names and values; another value as text. */
export function facts(value) {
  if (value === null || typeof value !== "object") return h("p", { class: "fact" }, brief(value, 600));
  return h("dl", { class: "facts" }, Object.entries(value).map(([name, part]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, brief(part, 600)))));
}
