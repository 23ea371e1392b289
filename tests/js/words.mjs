// The console's words: no language lacks one, and none has a gap that nothing fills.

import { equal, test } from "./harness.mjs";

globalThis.localStorage ??= { getItem: () => null, setItem: () => {} };
globalThis.navigator ??= { language: "en" };
const { switchLanguage, WORDS } = await import("../../gateway/console/words.js");
const { explained, PROBLEMS } = await import("../../gateway/console/problems.js");

const gaps = (words) => [...words.matchAll(/\{\w+\}/g)].map(([gap]) => gap).sort();

test("every word is there in every language, with the same gaps", async () => {
  equal(Object.keys(WORDS.zh).sort(), Object.keys(WORDS.en).sort());
  for (const [key, words] of Object.entries(WORDS.en)) equal(gaps(WORDS.zh[key]), gaps(words), key);
});

test("a problem is told in every language, with the server's sentence only where it tells more", async () => {
  equal(Object.keys(PROBLEMS.zh).sort(), Object.keys(PROBLEMS.en).sort());
  const [limit, busy] = ["content: at most 10 bytes", "a run is active"];
  equal(explained("PAYLOAD_TOO_LARGE", limit), { words: PROBLEMS.en.PAYLOAD_TOO_LARGE, detail: limit });
  switchLanguage();
  equal(explained("PAYLOAD_TOO_LARGE", limit), { words: PROBLEMS.zh.PAYLOAD_TOO_LARGE, detail: limit });
  equal(explained("CONVERSATION_BUSY", busy), { words: PROBLEMS.zh.CONVERSATION_BUSY, detail: null });
  equal(explained("OF_TOMORROW", busy), { words: WORDS.zh.refused_otherwise, detail: busy });
  switchLanguage();
});
