// A client of the whole API for browsers: requests that may be repeated, streams that go on.
//
//   const api = new Api({ token });
//   let state = initial();
//   for await (const event of follow(api, runId, { signal })) state = reduce(state, event);
//
// A run does not depend on its stream. Whenever a connection breaks, the stream is asked for again
// from the last event that arrived whole; each event is given out once, in order. Every POST has an
// idempotency key that is the same at each attempt, so a lost answer is simply asked for again.

import { backoff } from "./api.js";
import { TERMINAL } from "./reducer.js";
import { Connection, EventSourceTransport, FetchTransport } from "./transports.js";

export { Api, backoff, newKey, pause, Problem, Unreachable } from "./api.js";
export { EventStreamDecoder } from "./eventstream.js";
export { initial, pending, reduce, texts, PAUSES, TERMINAL } from "./reducer.js";
export { EventSourceTransport, FetchTransport, Gap } from "./transports.js";

/**
 * The events of a run after `after`, each once and in order, over any number of connections; ends
 * after the last one, or with `until: "interrupt"` also at the end of a pause. Throws a Problem that
 * waiting does not cure (401, 403, 404, 410 HISTORY_EXPIRED), and the reason of `signal`.
 * `onConnection` is told "connecting", "open" and "waiting" (for the next try). A line that is silent
 * for `silenceMaxMs`, longer than the server's heartbeat, is taken for dead.
 */
export async function* follow(api, runId, {
  after = 0, until = "end", signal, transport = FetchTransport, onConnection = () => {}, silenceMaxMs,
} = {}) {
  const connection = new Connection(api, runId, { after, until, signal, onConnection, silenceMaxMs });
  const line = new transport(connection);
  for (let attempt = 0; ; ) {
    onConnection("connecting");
    let asked = 0;
    try {
      if (attempt > 0 && (await connection.isOver())) return;
      for await (const event of line.read()) {
        if (!connection.takes(event)) continue;
        attempt = 0;
        yield event;
        if (TERMINAL.has(event.type)) return;
      }
      if (connection.over) return;
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      if (!connection.curable(error)) throw error;
      asked = error.retryAfterMs ?? 0;
    }
    attempt += 1;
    onConnection("waiting");
    await api.wait(Math.max(backoff(attempt, connection.pace), asked), signal);
  }
}

/** The same over the browser's own `EventSource`, which sends a ticket instead of a token. */
export function followByEventSource(api, runId, options = {}) {
  return follow(api, runId, { ...options, transport: EventSourceTransport });
}
