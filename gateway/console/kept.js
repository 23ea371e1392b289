// What this tab knows of a run, kept over a refresh so that its events go on after the last one
// (`Last-Event-ID`) instead of being read again. In sessionStorage: it goes with the tab.

const BYTES_MAX = 400_000;
const name = (conversationId) => `steadyrun.run.${conversationId}`;

export const Kept = {
  put(conversationId, state) {
    try {
      const text = JSON.stringify(state);
      if (text.length <= BYTES_MAX) sessionStorage.setItem(name(conversationId), text);
      else sessionStorage.removeItem(name(conversationId));
    } catch {
      sessionStorage.removeItem(name(conversationId)); // full: the events are read again
    }
  },

  /** Once, and only of this run. */
  take(conversationId, runId) {
    const text = sessionStorage.getItem(name(conversationId));
    sessionStorage.removeItem(name(conversationId));
    if (text === null) return null;
    const state = JSON.parse(text);
    return state.runId === runId ? state : null;
  },
};
