// The rate of events that operations show.

import { Rate } from "../../gateway/console/rate.js";
import { equal, test } from "./harness.mjs";

const word = (id, ageS, eventsSent) => ({ id, ageS, eventsSent });

test("a rate is by each gateway's own clock, and a word that is heard twice changes nothing", async () => {
  const rate = new Rate();
  equal(rate.of([word("a", 10, 100), word("b", 5, 0)]), null);
  equal(rate.of([word("a", 12, 300), word("b", 5, 0)]), 100);
  equal(rate.of([word("a", 12, 300), word("b", 7, 40)]), 120);
  equal(rate.of([word("a", 14, 300)]), 0); // the other one is gone
  equal(rate.of([word("c", 1, 9)]), null); // started anew: it counts from now on
});
