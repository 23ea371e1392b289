// The console's words: no language lacks one, and none has a gap that nothing fills.

import { equal, test } from "./harness.mjs";

globalThis.localStorage ??= { getItem: () => null, setItem: () => {} };
globalThis.navigator ??= { language: "en" };
const { WORDS } = await import("../../gateway/console/words.js");

const gaps = (words) => [...words.matchAll(/\{\w+\}/g)].map(([gap]) => gap).sort();

test("every word is there in every language, with the same gaps", async () => {
  equal(Object.keys(WORDS.zh).sort(), Object.keys(WORDS.en).sort());
  for (const [key, words] of Object.entries(WORDS.en)) equal(gaps(WORDS.zh[key]), gaps(words), key);
});
