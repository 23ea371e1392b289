// The decoder and the reducer against tests/vectors.

import { EventStreamDecoder, initial, reduce, texts } from "../../gateway/console/client.js";
import { contains, equal, load, test } from "./harness.mjs";

for (const vector of await load("../vectors/eventstream.json")) {
  test(`event stream: ${vector.name}`, async () => {
    const bytes = vector.hex
      ? Uint8Array.from(vector.hex.match(/../g), (pair) => parseInt(pair, 16))
      : new TextEncoder().encode(vector.stream);
    for (const chunks of cuts(bytes)) {
      const decoder = new EventStreamDecoder();
      const events = chunks.flatMap((chunk) => decoder.feed(chunk));
      equal(events.map(({ type, data, id }) => [type, data, id]), vector.events, "what came out");
      equal(decoder.lastEventId, vector.lastEventId ?? "", "the last id");
      equal(decoder.retryMs, vector.retryMs ?? null, "retry");
    }
  });
}

function* cuts(bytes) {
  yield [bytes];
  yield Array.from(bytes, (byte) => Uint8Array.of(byte));
  for (let at = 1; at < bytes.length; at += 1) yield [bytes.subarray(0, at), bytes.subarray(at)];
}

for (const vector of await load("../vectors/reducer.json")) {
  test(`reducer: ${vector.name}`, async () => {
    const events = numbered(vector.events);
    let state = initial();
    for (const event of events) {
      const before = JSON.stringify(state);
      const next = reduce(state, event);
      equal(JSON.stringify(state), before, "the old state");
      state = next;
    }
    contains(state, vector.state, "state");
    equal([...texts(state).values()].join(""), vector.text, "text");
    const again = events.reduce(reduce, state);
    equal(again, state, "after all came again");
  });
}

function numbered(events) {
  let sequence = 0;
  return events.map((event) => {
    const whole = { runId: "run_1", epoch: 1, at: "2026-01-01T00:00:00.000Z", sequence: sequence + 1, ...event };
    sequence = Math.max(sequence, whole.sequence);
    return whole;
  });
}
