// Before the console's modules, and the only part of it whose path names no version: whatever gateway
// answers, it is good. Where a part of the page's own version is not to be had (an upgrade is rolling
// and another gateway answers, or none does) the page says so and is loaded again, a few times.

(() => {
  const RELOADS = "steadyrun.reloads";
  const RELOADS_MAX = 5;
  const PAUSE_MS = 700;
  const WORDS = {
    en: ["The console is being updated. It is loaded again…", "The console could not be loaded.", "Try again"],
    zh: ["控制台正在更新，即将重新加载…", "控制台加载失败。", "重试"],
  };
  let missing = false;

  function words() {
    const chosen = localStorage.getItem("steadyrun.language") ?? navigator.language.toLowerCase();
    return chosen.startsWith("zh") ? WORDS.zh : WORDS.en;
  }

  function say(text, ...more) {
    const note = document.createElement("p");
    note.className = "boot-note";
    note.setAttribute("role", "alert");
    note.append(text, ...more);
    document.body.replaceChildren(note);
  }

  function tryAgain(label) {
    const button = document.createElement("button");
    button.className = "button";
    button.type = "button";
    button.append(label);
    button.addEventListener("click", () => { sessionStorage.removeItem(RELOADS); location.reload(); });
    return button;
  }

  function whole() {
    sessionStorage.removeItem(RELOADS);
  }

  function again() {
    const [again, failed, label] = words();
    const reloads = Number(sessionStorage.getItem(RELOADS));
    if (reloads >= RELOADS_MAX) return say(failed, " ", tryAgain(label));
    sessionStorage.setItem(RELOADS, String(reloads + 1));
    say(again);
    setTimeout(() => location.reload(), PAUSE_MS * 2 ** reloads * (0.5 + Math.random() / 2));
  }

  addEventListener("error", ({ target }) => {
    if (target instanceof HTMLScriptElement || target instanceof HTMLLinkElement) missing = true;
  }, true);
  addEventListener("load", () => (missing ? again() : whole()));
})();
