// Builds elements. Text is only ever text: nothing here, or anywhere in the console, parses HTML.

const SVG = "http://www.w3.org/2000/svg";

/** `h("button", { class: "x", onClick: act, disabled: true }, "text", child)`. */
export function h(tag, properties = {}, ...children) {
  return dress(document.createElement(tag), properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return dress(document.createElementNS(SVG, tag), properties, children);
}

/** The same element with other children. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter(shown));
  return element;
}

/** Symbols are drawn by us, in the colour of the text: they look the same on every system. */
export function icon(name) {
  const drawing = svg("svg", { class: "icon", viewBox: "0 0 20 20", "aria-hidden": "true", focusable: "false" });
  drawing.append(...(ICONS[name] ?? []).map((d) => svg("path", { d })));
  return drawing;
}

const ICONS = {
  check: ["M4 10.5l4 4 8-9"],
  cross: ["M5 5l10 10", "M15 5L5 15"],
  clock: ["M10 3a7 7 0 1 0 0 14a7 7 0 0 0 0-14", "M10 6.5V10l2.5 2"],
  again: ["M15.5 8A6 6 0 1 0 16 11.5", "M16 4v4h-4"],
  tool: ["M12.5 3.5a4 4 0 0 0-4.2 5.6L3.5 14l2.5 2.5 4.9-4.8a4 4 0 0 0 5.5-4.4l-2.6 2-2.2-2.2z"],
  plus: ["M10 4v12", "M4 10h12"],
  send: ["M10 16V4.5", "M5 9.5l5-5 5 5"],
  stop: ["M6 6h8v8H6z"],
  menu: ["M3.5 6h13", "M3.5 10h13", "M3.5 14h13"],
  moon: ["M15.5 12A6.5 6.5 0 0 1 8 4.5a6.5 6.5 0 1 0 7.5 7.5"],
  chat: ["M4 5h12v8H9l-3.5 3v-3H4z"],
  inbox: ["M4 11l2-6h8l2 6v4H4z", "M4 11h3.5l1 2h3l1-2H16"],
  pulse: ["M2.5 11h3.5l2-6 3.5 10 2-5h4"],
  leave: ["M8 4H4v12h4", "M9 10h8", "M14 7l3 3-3 3"],
  hand: ["M10 3v7", "M10 13.5v.5"],
  bin: ["M5 6h10", "M8 6V4h4v2", "M6.5 6l.7 10h5.6l.7-10"],
};

function dress(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2).toLowerCase(), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter(shown));
  return element;
}

function shown(child) {
  return child !== null && child !== undefined && child !== false;
}
