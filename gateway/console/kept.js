// What this tab knows of a run, kept over a refresh so that its events go on after the last one
// (`Last-Event-ID`) instead of being read again. In sessionStorage: it goes with the tab. Of the last
// run alone: the storage is small, and the token has its place there.

const BYTES_MAX = 400_000;
const NAME = "steadyrun.run";

export const Kept = {
  put(state) {
    sessionStorage.removeItem(NAME);
    const text = JSON.stringify(state);
    if (text.length > BYTES_MAX) return; // its events are read again
    try {
      sessionStorage.setItem(NAME, text);
    } catch {
      return; // full
    }
  },

  /** Once, and only of this run. */
  take(runId) {
    const state = JSON.parse(sessionStorage.getItem(NAME));
    if (state?.runId !== runId) return null;
    sessionStorage.removeItem(NAME);
    return state;
  },
};
