// Small line charts: the course of one figure over the last minutes, as inline SVG.

import { h, svg } from "./dom.js";

const [WIDTH, HEIGHT] = [260, 56];

/** `points` are figures at equal distances, oldest first; null where nothing was known. */
export function chart(title, points, tell) {
  const known = points.filter((point) => point !== null);
  const top = Math.max(...known, 1e-9);
  const last = known.length ? tell(known.at(-1)) : "–";
  const label = `${title}: ${last}${known.length ? ` (max ${tell(top)})` : ""}`;
  return h("figure", { class: "chart" },
    h("figcaption", {}, h("span", { class: "label" }, title), h("strong", {}, last)),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label, preserveAspectRatio: "none" }, lines(points, top)));
}

function lines(points, top) {
  const x = (n) => (points.length < 2 ? WIDTH : (n / (points.length - 1)) * WIDTH).toFixed(1);
  const y = (point) => (HEIGHT - 3 - (point / top) * (HEIGHT - 8)).toFixed(1);
  const runs = pieces(points);
  const path = runs.map((run) => `M${run.map(([n, point]) => `${x(n)} ${y(point)}`).join("L")}`).join("");
  const area = runs.map((run) => `M${x(run[0][0])} ${HEIGHT}L${run.map(([n, point]) => `${x(n)} ${y(point)}`).join("L")}L${x(run.at(-1)[0])} ${HEIGHT}Z`).join("");
  return [svg("path", { class: "chart-area", d: area }), svg("path", { class: "chart-line", d: path, "vector-effect": "non-scaling-stroke" })];
}

/** Stretches without a hole. */
function pieces(points) {
  const found = [[]];
  points.forEach((point, n) => {
    if (point !== null) found.at(-1).push([n, point]);
    else if (found.at(-1).length) found.push([]);
  });
  return found.filter((run) => run.length);
}
