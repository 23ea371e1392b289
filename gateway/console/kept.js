// What a tab would lose with a reload, in sessionStorage: it goes with the tab.
//
// Of a run what is known of it, so that its events go on after the last one (`Last-Event-ID`) instead of
// being read again; of the last run alone: the storage is small, and the token has its place there. And
// what somebody has typed and not sent, by conversation.

const BYTES_MAX = 400_000;
const NAME = "steadyrun.run";
const DRAFT = "steadyrun.draft.";

export const Kept = {
  put(state) {
    sessionStorage.removeItem(NAME);
    const text = JSON.stringify(state);
    if (text.length > BYTES_MAX) return; // its events are read again
    keep(NAME, text);
  },

  /** Once, and only of this run. */
  take(runId) {
    const state = JSON.parse(sessionStorage.getItem(NAME));
    if (state?.runId !== runId) return null;
    sessionStorage.removeItem(NAME);
    return state;
  },
};

/** `id` null: a conversation that is not begun. */
export const Drafts = {
  put(id, text) {
    if (text) keep(DRAFT + (id ?? ""), text);
    else sessionStorage.removeItem(DRAFT + (id ?? ""));
  },

  of(id) {
    return sessionStorage.getItem(DRAFT + (id ?? "")) ?? "";
  },
};

function keep(name, text) {
  try {
    sessionStorage.setItem(name, text);
  } catch {
    return; // full
  }
}
