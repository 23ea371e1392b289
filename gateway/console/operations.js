// What runs where: runs by status, runners and gateways with load and age, takeovers, small charts.

import { chart } from "./chart.js";
import { Problem } from "./client.js";
import { fill, h } from "./dom.js";
import { Poll } from "./poll.js";
import { Rate } from "./rate.js";
import { clock, duration, t } from "./words.js";

const LOOK_MS = 2000;
const POINTS = 150; // five minutes
const LIVE = ["queued", "running", "interrupted"];
const ENDED = ["completed", "failed", "cancelled"];

export class Operations {
  #points = { rate: [], lag: [], queue: [], streams: [] };
  #rate = new Rate();

  constructor(app) {
    Object.assign(this, { api: app.session.api, title: t("operations") });
    this.body = h("div", { class: "ops" }, h("p", { class: "quiet" }, t("loading")));
    this.element = h("div", { class: "page page-wide" }, h("header", { class: "page-head" }, h("h1", {}, t("operations"))), this.body);
  }

  open() {
    this.poll = new Poll((signal) => this.#look(signal), LOOK_MS);
    return this.poll.start();
  }

  close() {
    this.poll.stop();
  }

  async #look(signal) {
    try {
      const now = await this.api.get("/api/operations", { signal });
      this.#note(now);
      this.#draw(now);
    } catch (error) {
      if (!signal.aborted) this.#failed(error);
    }
  }

  #failed(error) {
    const forbidden = error instanceof Problem && error.status === 403;
    if (forbidden) this.close();
    if (forbidden || !this.parts) fill(this.body, h("p", { class: "quiet" }, t(forbidden ? "ops_forbidden" : "failed_to_load")));
  }

  #note(now) {
    const lags = now.gateways.map((one) => one.lagS).filter((lag) => lag !== null);
    const figures = {
      rate: this.#rate.of(now.gateways), lag: lags.length ? Math.max(...lags) * 1000 : null,
      queue: now.queueAgeS, streams: now.gateways.reduce((sum, one) => sum + one.streams, 0),
    };
    for (const [name, points] of Object.entries(this.#points)) {
      points.push(figures[name]);
      if (points.length > POINTS) points.shift();
    }
  }

  /** Into parts that are made once: what is scrolled or focused there stays so. */
  #draw(now) {
    this.parts ??= this.#build(now);
    const { parts } = this;
    parts.banner.hidden = !now.degraded;
    fill(parts.live, figures(LIVE, now.runs));
    fill(parts.ended, figures(ENDED, now.runs, now.endedMax));
    fill(parts.charts,
      chart(t("ops_events"), this.#points.rate, (n) => n.toFixed(n < 10 ? 1 : 0)),
      chart(t("ops_lag"), this.#points.lag, (n) => t("ms", { n: n.toFixed(n < 10 ? 1 : 0) })),
      chart(t("ops_queue"), this.#points.queue, (n) => t("seconds", { n: n.toFixed(1) })),
      chart(t("ops_streams"), this.#points.streams, (n) => String(n)));
    const runners = now.runners.toSorted((a, b) => (a.state === "dead") - (b.state === "dead"));
    fill(parts.runners, table([t("name"), t("state"), t("load"), t("age"), t("last_seen")], runners.map(runner)));
    fill(parts.gateways, table([t("name"), t("state"), t("streams"), t("age")], now.gateways.map(gateway)));
    fill(parts.takeovers, table([t("when"), t("run"), t("lost"), t("now_at")], now.takeovers.map(takeover)));
  }

  #build(now) {
    const scrolled = (title) => h("div", { class: "table", tabindex: "0", role: "region", "aria-label": title });
    const parts = {
      banner: h("p", { class: "banner", role: "status" }, t("degraded")), live: h("div"), ended: h("div"), charts: h("div", { class: "charts" }),
      runners: scrolled(t("ops_runners")), gateways: scrolled(t("ops_gateways")), takeovers: scrolled(t("ops_takeovers")),
    };
    fill(this.body, parts.banner, section(t("ops_live"), parts.live),
      section(t("ops_ended", { n: Math.round(now.endedWithinS / 60) }), parts.ended), parts.charts,
      section(t("ops_runners"), parts.runners), section(t("ops_gateways"), parts.gateways), section(t("ops_takeovers"), parts.takeovers));
    return parts;
  }
}

function section(title, ...children) {
  return h("section", { class: "ops-section" }, h("h2", {}, title), ...children);
}

function figures(names, runs, most = Infinity) {
  return h("dl", { class: "figures" }, names.map((name) => {
    const count = runs[name];
    const shown = count >= most ? t("more_than", { n: most - 1 }) : String(count);
    return h("div", { class: count ? `figure figure-${name}` : "figure" }, h("dt", {}, t(name === "interrupted" ? "waiting_for_people" : name)), h("dd", { "data-count": name }, shown));
  }));
}

function table(names, rows) {
  if (!rows.length) return h("p", { class: "quiet" }, t("ops_none"));
  return h("table", {}, h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows));
}

function row(...cells) {
  return h("tr", {}, cells.map((cell) => h("td", {}, cell)));
}

function state(kind, words) {
  return h("span", { class: `state state-${kind}` }, words);
}

function runner(one) {
  const kind = one.state === "alive" ? "good" : one.state === "draining" ? "waiting" : "bad";
  const meter = h("meter", { min: 0, max: one.capacity, value: one.runs, "aria-label": `${t("load")} ${one.host}:${one.pid}` });
  return row(`${one.host}:${one.pid}`, state(kind, t(one.state)), h("span", { class: "load" }, meter, `${one.runs} / ${one.capacity}`),
    duration(one.ageS), one.state === "dead" ? "–" : t("seconds", { n: one.leaseS.toFixed(1) }));
}

function gateway(one) {
  return row(`${one.host}:${one.pid}`, state(one.healthy ? "good" : "bad", t(one.healthy ? "healthy" : "deaf")), String(one.streams), duration(one.ageS));
}

function takeover(one) {
  return row(clock(one.at), h("code", {}, one.runId.slice(-12)), one.runner, t(one.status));
}
