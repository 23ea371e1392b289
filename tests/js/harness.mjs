// As little of a test runner as works in node and in a browser alike.

const tests = [];

/** A test is named as a sentence; it fails by throwing. */
export function test(name, act) {
  tests.push({ name, act });
}

/** [{name, failure: null | text}], one test after the other. */
export async function results() {
  const found = [];
  for (const { name, act } of tests) {
    const late = new Promise((_, reject) => setTimeout(() => reject(new Error("took too long")), 5000).unref?.());
    const failure = await Promise.race([act(), late]).then(() => null, (error) => String(error.stack ?? error));
    found.push({ name, failure });
  }
  return found;
}

export function equal(found, wanted, where = "") {
  const [left, right] = [JSON.stringify(found), JSON.stringify(wanted)];
  if (left !== right) throw new Error(`${where} is ${left}, not ${right}`);
}

/** Every part that `wanted` names, lists of the same length. */
export function contains(found, wanted, where = "it") {
  if (wanted === null || typeof wanted !== "object") return equal(found, wanted, where);
  if (found === null || typeof found !== "object") throw new Error(`${where} is ${JSON.stringify(found)}`);
  if (Array.isArray(wanted)) equal(found.length, wanted.length, `the length of ${where}: ${JSON.stringify(found)}`);
  for (const [key, part] of Object.entries(wanted)) contains(found[key], part, `${where}.${key}`);
}

export async function rejects(promise, holds) {
  const error = await promise.then(() => null, (reason) => reason);
  if (error === null) throw new Error("it did not fail");
  if (!holds(error)) throw error;
}

/** A file beside this one, as JSON. */
export async function load(name) {
  const url = new URL(name, import.meta.url);
  if (globalThis.document) return (await fetch(url)).json();
  const { readFile } = await import("node:fs/promises");
  return JSON.parse(await readFile(url, "utf8"));
}
