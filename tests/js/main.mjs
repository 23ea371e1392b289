// All tests of the browser's client; in node it prints the outcome, a page asks for it.

import "./vectors.mjs";
import "./client.mjs";
import "./poll.mjs";
import "./rate.mjs";
import "./words.mjs";
import { results } from "./harness.mjs";

export const outcome = results();

if (!globalThis.document) {
  process.stdout.write(JSON.stringify(await outcome));
  process.exit(0);
}
