// Looking again and again, without a heap of requests and without an end that is forgotten.

import { Poll } from "../../gateway/console/poll.js";
import { equal, rejects, test } from "./harness.mjs";

const soon = (ms = 0) => new Promise((resolve) => setTimeout(resolve, ms));

/** A look that lasts until it is let go. */
function slow() {
  const waiting = [];
  const act = (signal) => new Promise((resolve) => waiting.push({ signal, resolve }));
  return { act, waiting };
}

test("a slow server is asked one thing at a time", async () => {
  const { act, waiting } = slow();
  const poll = new Poll(act, 1);
  poll.start();
  await soon(20);
  equal(waiting.length, 1);
  poll.stop();
});

test("what changes while one looks is looked at once more", async () => {
  const { act, waiting } = slow();
  const poll = new Poll(act, 10_000);
  poll.start();
  poll.look();
  poll.look();
  waiting[0].resolve();
  await soon();
  equal(waiting.length, 2);
  waiting[1].resolve();
  await soon();
  equal(waiting.length, 2);
  poll.stop();
});

test("a look that fails is not the last one", async () => {
  let looks = 0;
  const poll = new Poll(async () => { looks += 1; throw new Error("no"); }, 10_000);
  await rejects(poll.start(), (error) => error.message === "no");
  await rejects(poll.look(), (error) => error.message === "no");
  equal(looks, 2);
  poll.stop();
});

test("who leaves before the first answer asks no more, and the question is taken back", async () => {
  const { act, waiting } = slow();
  const poll = new Poll(act, 1);
  poll.start();
  poll.stop();
  equal(waiting[0].signal.aborted, true);
  waiting[0].resolve();
  await soon(20);
  equal(waiting.length, 1);
});
