// The client against a server that does what each test says: cuts, refusals, repetitions, silence.

import {
  Api, backoff, EventSourceTransport, follow, Gap, Problem, Unreachable,
} from "../../gateway/console/client.js";
import { equal, rejects, test } from "./harness.mjs";

const encoder = new TextEncoder();
const event = (sequence, type = "text_delta", more = {}) => ({ type, sequence, runId: "run_1", ...more });
const frame = (one) => `id: ${one.sequence}\nevent: ${one.type}\ndata: ${JSON.stringify(one)}\n\n`;
const frames = (...events) => events.map(frame).join("");
const done = (sequence) => event(sequence, "done");

/** A response of these chunks; then it ends, is cut, or stays open until the request is aborted. */
function stream(chunks, then = "end") {
  return ({ signal }) => new Response(new ReadableStream(source([...chunks], then, signal), { highWaterMark: 0 }));
}

function source(left, then, signal) {
  return {
    start(controller) {
      signal?.addEventListener("abort", () => controller.error(signal.reason));
    },
    pull(controller) {
      if (left.length) return controller.enqueue(encoder.encode(left.shift()));
      if (then === "cut") return controller.error(new TypeError("network error"));
      return then === "end" ? controller.close() : new Promise(() => {});
    },
  };
}

function json(status, document, headers = {}) {
  return new Response(JSON.stringify(document), { status, headers });
}

const problem = (status, code, headers) => json(status, { code, detail: code }, headers);

/** Answers one request after the other; remembers them, and the waits between. */
function scripted(...answers) {
  const requests = [], waits = [];
  const fetch = async (url, options) => {
    requests.push({ url, ...options });
    const answer = answers.shift();
    if (answer instanceof Error) throw answer;
    return typeof answer === "function" ? answer(options) : answer;
  };
  const wait = async (ms, signal) => {
    signal?.throwIfAborted();
    if (!answers.length) throw new Error("it asks for more than there is");
    waits.push(ms);
  };
  return { api: new Api({ token: "t1", fetch, wait }), requests, waits };
}

async function read(api, options) {
  const seen = [];
  for await (const one of follow(api, "run_1", options)) seen.push(one.sequence);
  return seen;
}

test("a run is read to its end over one line", async () => {
  const { api, requests } = scripted(stream([": hi\n", frames(event(1), event(2), done(3))]));
  equal(await read(api), [1, 2, 3]);
  equal(requests[0].headers["Last-Event-ID"], "0");
  equal(requests[0].headers.Authorization, "Bearer t1");
});

test("after a cut the line is asked for again from the last whole event", async () => {
  const half = frame(event(3)).slice(0, 20);
  const { api, requests } = scripted(
    stream([frames(event(1), event(2)), half], "cut"), stream([frames(event(3), done(4))]));
  equal(await read(api), [1, 2, 3, 4]);
  equal(requests.map((one) => one.headers["Last-Event-ID"]), ["0", "2"]);
});

test("an event that comes again is given out once", async () => {
  const { api } = scripted(
    stream([frames(event(1), event(2), event(2), event(1))], "cut"), stream([frames(event(2), done(3))]));
  equal(await read(api), [1, 2, 3]);
});

test("a clean end before the run's end is a cut all the same", async () => {
  const { api, requests } = scripted(stream([frames(event(1))]), stream([frames(done(2))]));
  equal(await read(api), [1, 2]);
  equal(requests.length, 2);
});

test("reading on begins after the given event", async () => {
  const { api, requests } = scripted(stream([frames(event(8), done(9))]));
  equal(await read(api, { after: 7 }), [8, 9]);
  equal(requests[0].headers["Last-Event-ID"], "7");
});

test("nothing follows a 204", async () => {
  const { api } = scripted(new Response(null, { status: 204 }));
  equal(await read(api, { after: 9 }), []);
});

test("a pause ends the reading only where it is asked for", async () => {
  const asked = () => stream([frames(event(1), event(2, "interrupt"))]);
  const short = scripted(asked());
  equal(await read(short.api, { until: "interrupt" }), [1, 2]);
  equal(short.requests[0].url.endsWith("until=interrupt"), true);
  const long = scripted(asked(), stream([frames(event(3, "run_resumed", { reason: "decision" }), done(4))]));
  equal(await read(long.api), [1, 2, 3, 4]);
});

const held = (lastSequence, status = "interrupted") => json(200, { status, lastSequence });

test("a cut after the whole pause is asked about until somebody answers", async () => {
  const asked = stream([frames(event(1), event(2, "interrupt"))], "cut");
  const { api, requests } = scripted(asked, problem(503, "UNAVAILABLE"), held(2));
  equal(await read(api, { until: "interrupt" }), [1, 2]);
  equal(requests[2].url, "/api/runs/run_1");
});

test("a cut in the middle of a pause gets the rest of it", async () => {
  const { api } = scripted(
    stream([frames(event(1), event(2, "interrupt"))], "cut"), held(3), stream([frames(event(3, "interrupt"))]));
  equal(await read(api, { until: "interrupt" }), [1, 2, 3]);
});

test("a gap is never passed over: what is missing is asked for", async () => {
  const { api, requests } = scripted(stream([frames(event(1), event(3))]), stream([frames(event(2), done(3))]));
  equal(await read(api), [1, 2, 3]);
  equal(requests[1].headers["Last-Event-ID"], "1");
});

test("a gap that stays is told", async () => {
  const gap = () => stream([frames(event(1), event(3))]);
  const { api } = scripted(gap(), gap(), gap());
  await rejects(read(api), (error) => error instanceof Gap);
});

test("numbers may jump where a runner was lost", async () => {
  const jump = event(1001, "run_resumed", { reason: "failover", discard: [] });
  const { api } = scripted(stream([frames(event(1), jump, done(1002))]));
  equal(await read(api), [1, 1001, 1002]);
});

test("a busy server is asked later, no sooner than it wants", async () => {
  const { api, waits } = scripted(
    problem(503, "UNAVAILABLE", { "Retry-After": "7" }), problem(429, "RATE_LIMITED", { "Retry-After": "9" }),
    stream([frames(done(1))]));
  equal(await read(api), [1]);
  equal([waits[0] >= 7000, waits[1] >= 9000], [true, true]);
});

test("pauses grow while nothing comes and begin anew with an event", async () => {
  const down = () => new TypeError("failed to fetch");
  const { api, waits } = scripted(
    down(), down(), down(), down(), stream([frames(event(1))], "cut"), stream([frames(done(2))]));
  equal(await read(api), [1, 2]);
  equal([waits[3] > waits[0], waits[4] < waits[3]], [true, true]);
});

test("the pause that the server names is kept, with jitter", async () => {
  const { api, waits } = scripted(
    stream(["retry: 4000\n", frames(event(1))], "cut"), stream([frames(done(2))]));
  equal(await read(api), [1, 2]);
  equal(waits[0] >= 1000 && waits[0] <= 2000, true, `a wait of ${waits[0]}`);
});

test("pauses have jitter and a limit", async () => {
  equal(backoff(1, { random: () => 0 }), 250);
  equal(backoff(1, { random: () => 1 }), 500);
  equal(backoff(99, { random: () => 1 }), 8000);
});

test("history that is gone is told at once", async () => {
  const { api, waits } = scripted(problem(410, "HISTORY_EXPIRED"));
  await rejects(read(api), (error) => error instanceof Problem && error.code === "HISTORY_EXPIRED");
  equal(waits, []);
});

test("a token that has expired is renewed once and for all who ask", async () => {
  const { api, requests } = scripted(
    problem(401, "UNAUTHENTICATED"), problem(401, "UNAUTHENTICATED"), json(200, { a: 1 }), json(200, { a: 1 }));
  let renewals = 0;
  api.renew = async () => { renewals += 1; return "t2"; };
  await Promise.all([api.get("/a"), api.get("/b")]);
  equal(renewals, 1);
  equal(requests.at(-1).headers.Authorization, "Bearer t2");
});

test("without another token a 401 is told", async () => {
  const { api } = scripted(problem(401, "UNAUTHENTICATED"));
  await rejects(read(api), (error) => error.status === 401);
});

test("an abort ends the reading at once, also in the middle of a line", async () => {
  const controller = new AbortController();
  const { api } = scripted(stream([frames(event(1))], "open"));
  const seen = [];
  await rejects((async () => {
    for await (const one of follow(api, "run_1", { signal: controller.signal })) {
      seen.push(one.sequence);
      setTimeout(() => controller.abort());
    }
  })(), (error) => error.name === "AbortError");
  equal(seen, [1]);
});

test("an abort ends a wait", async () => {
  const controller = new AbortController();
  const { api } = scripted(new TypeError("down"));
  api.wait = (ms, signal) => new Promise((_, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason));
    controller.abort();
  });
  await rejects(read(api, { signal: controller.signal }), (error) => error.name === "AbortError");
});

test("a reader that has had enough closes its line", async () => {
  const { api, requests } = scripted(stream([frames(event(1))], "open"));
  for await (const _ of follow(api, "run_1")) break;
  equal(requests[0].signal.aborted, true);
});

test("a line that is silent for long is given up", async () => {
  const { api } = scripted(stream([frames(event(1))], "open"), stream([frames(done(2))]));
  equal(await read(api, { silenceMaxMs: 20 }), [1, 2]);
});

test("who reads is told of the connection", async () => {
  const told = [];
  const { api } = scripted(stream([frames(event(1))], "cut"), stream([frames(done(2))]));
  await read(api, { onConnection: (state) => told.push(state) });
  equal(told, ["connecting", "open", "waiting", "connecting", "open"]);
});

test("a POST whose answer is lost is asked for again with the same key", async () => {
  const { api, requests } = scripted(new TypeError("reset"), problem(503, "UNAVAILABLE"), json(202, { ok: true }));
  equal(await api.post("/x", { a: 1 }), { ok: true });
  const keys = new Set(requests.map((one) => one.headers["Idempotency-Key"]));
  equal([keys.size, requests.length, requests[2].body], [1, 3, '{"a":1}']);
});

test("a refusal is not asked for again", async () => {
  const { api, requests } = scripted(problem(409, "RESOURCE_CHANGED"));
  await rejects(api.post("/x", {}), (error) => error.code === "RESOURCE_CHANGED");
  equal(requests.length, 1);
});

test("a server that never answers is given up", async () => {
  const { api, waits } = scripted(...Array.from({ length: 7 }, () => new TypeError("down")));
  await rejects(api.get("/x"), (error) => error instanceof Unreachable);
  equal(waits.length, 5); // six tries
});

test("moments are told by the server's clock, less what its header blurs", async () => {
  const at = (ms) => json(200, {}, { Date: new Date(Date.now() + ms).toUTCString() });
  const { api } = scripted(at(600_000), at(0), json(200, {}));
  await api.get("/x");
  equal(Math.abs(api.now() - Date.now() - 600_000) < 2000, true);
  await api.get("/x");
  await api.get("/x"); // from another origin the header is hidden
  equal(api.aheadMs, 0);
});

test("a list is read page after page", async () => {
  const { api, requests } = scripted(
    json(200, { items: [1, 2], nextCursor: "a b" }), json(200, { items: [3], nextCursor: null }));
  equal(await api.list("/x?status=pending"), [1, 2, 3]);
  equal(requests[1].url, "/x?status=pending&limit=200&cursor=a%20b");
});

// --- EventSource ------------------------------------------------------------------------------

/** Does what each line's script says as soon as somebody listens. */
function eventSources(...scripts) {
  const opened = [];
  globalThis.EventSource = class extends EventTarget {
    static CLOSED = 2;
    readyState = 1;
    constructor(url) {
      super();
      opened.push(url);
      setTimeout(() => scripts.shift()(this));
    }
    say(...events) {
      for (const one of events) {
        this.dispatchEvent(Object.assign(new Event(one.type), { data: JSON.stringify(one) }));
      }
    }
    fail(readyState) { this.readyState = readyState; this.dispatchEvent(new Event("error")); }
    close() { this.readyState = 2; }
  };
  return opened;
}

const ticket = (text) => json(201, { ticket: text });
const over = { transport: EventSourceTransport };

test("EventSource reads with a ticket and tells a run's error from a broken line", async () => {
  const opened = eventSources((line) => { line.say(event(1)); line.fail(0); line.say(event(1), event(2, "error")); });
  const { api } = scripted(ticket("k1"));
  equal(await read(api, over), [1, 2]);
  equal(opened, ["/api/runs/run_1/events?after=0&until=end&ticket=k1"]);
});

test("EventSource that gave up is opened again with a new ticket, from the last event", async () => {
  const opened = eventSources((line) => { line.say(event(1)); line.fail(2); }, (line) => line.say(done(2)));
  const page = json(200, { events: [done(2)], next: 2, complete: true });
  const { api } = scripted(ticket("k1"), page, ticket("k2"));
  equal(await read(api, over), [1, 2]);
  equal(opened[1], "/api/runs/run_1/events?after=1&until=end&ticket=k2");
});

test("EventSource that is told that nothing follows ends", async () => {
  eventSources((line) => line.fail(2));
  const { api } = scripted(ticket("k1"), json(200, { events: [], next: 9, complete: true }));
  equal(await read(api, { ...over, after: 9 }), []);
});

test("why EventSource gave up is asked and told", async () => {
  eventSources((line) => line.fail(2));
  const { api } = scripted(ticket("k1"), problem(410, "HISTORY_EXPIRED"));
  await rejects(read(api, over), (error) => error.code === "HISTORY_EXPIRED");
});

test("EventSource ends with the pause, however slow the reader is", async () => {
  eventSources((line) => { line.say(event(1), event(2, "interrupt")); line.fail(0); });
  const { api } = scripted(ticket("k1"), held(2));
  equal(await read(api, { ...over, until: "interrupt" }), [1, 2]);
});

test("EventSource that is cut in the middle of a pause gets the rest of it", async () => {
  const opened = eventSources(
    (line) => { line.say(event(1, "interrupt")); line.fail(0); }, (line) => { line.say(event(2, "interrupt")); line.fail(0); });
  const { api } = scripted(ticket("k1"), held(2), ticket("k2"), held(2));
  equal(await read(api, { ...over, until: "interrupt" }), [1, 2]);
  equal(opened.length, 2);
});

const more = (...events) => json(200, { events, next: 0, complete: false });

test("EventSource that has died in silence is noticed by what has not come", async () => {
  const opened = eventSources((line) => line.say(event(1)), (line) => line.say(done(2)));
  const { api, requests } = scripted(ticket("k1"), more(done(2)), ticket("k2"));
  equal(await read(api, { ...over, silenceMaxMs: 20 }), [1, 2]);
  equal(requests[1].url, "/api/runs/run_1/events?after=1&limit=1");
  equal(opened[1], "/api/runs/run_1/events?after=1&until=end&ticket=k2");
});

test("EventSource that has nothing to tell stays open, however long", async () => {
  let line;
  const opened = eventSources((one) => { line = one; one.say(event(1)); });
  const last = () => { setTimeout(() => line.say(done(2))); return more(); };
  const { api, requests } = scripted(ticket("k1"), more(), more(), last);
  equal(await read(api, { ...over, silenceMaxMs: 5 }), [1, 2]);
  equal([opened.length, requests.length], [1, 4]);
});

test("EventSource in silence after a pause ends with it, or goes on where it was not whole", async () => {
  const silent = () => (line) => line.say(event(1, "interrupt"));
  const over = { transport: EventSourceTransport, until: "interrupt", silenceMaxMs: 20 };
  eventSources(silent());
  equal(await read(scripted(ticket("k1"), held(1)).api, over), [1]);
  const opened = eventSources(silent(), (line) => line.say(event(2, "interrupt")));
  equal(await read(scripted(ticket("k1"), held(2), ticket("k2"), held(2)).api, over), [1, 2]);
  equal(opened.length, 2);
});

test("EventSource in silence after the run's end has no more to wait for", async () => {
  eventSources(() => {});
  const { api } = scripted(ticket("k1"), json(200, { events: [], next: 9, complete: true }));
  equal(await read(api, { ...over, after: 9, silenceMaxMs: 5 }), []);
});
