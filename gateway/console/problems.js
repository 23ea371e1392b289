// Why something was refused or has failed, in the reader's language: by the stable `code` of a problem
// (contract §4) or of a failed run (contract §2). The server's own sentence is English; it is shown
// behind ours where it tells more than the code does.

import { Problem } from "./api.js";
import { h } from "./dom.js";
import { brief } from "./text.js";
import { currentLanguage, t } from "./words.js";

const EN = {
  BAD_REQUEST: "The server does not understand this request.",
  CONVERSATION_BUSY: "A run is at work in this conversation. Wait for its end, or stop it first.",
  FORBIDDEN: "Your token does not permit this.",
  GRAPH_ERROR: "The run has failed.",
  HISTORY_EXPIRED: "The details of this run are no longer kept.",
  IDEMPOTENCY_MISMATCH: "The same key came with another request. Reload the page and try again.",
  INTERNAL: "Something went wrong on the server. Try again: it is done once at most.",
  INTERRUPT_EXPIRED: "The time for this decision is over.",
  INTERRUPT_NOT_PENDING: "Somebody decided this before.",
  METHOD_NOT_ALLOWED: "The server does not know this kind of request.",
  NOT_FOUND: "This does not exist any more, or is not yours.",
  PAYLOAD_TOO_LARGE: "This is too long.",
  PERMISSION_REVOKED: "You no longer have the permission for this. Somebody who has it can still decide.",
  RATE_LIMITED: "Too much at once. Try again in a moment.",
  RESOURCE_CHANGED: "This has changed since you were asked.",
  RUN_NOT_RESUMABLE: "This run cannot go on now.",
  RUN_TIMEOUT: "The run took longer than it may.",
  RUNNER_LOST: "The run lost its runner several times and was given up.",
  UNAUTHENTICATED: "Your sign-in is no longer valid. Sign in again.",
  UNAVAILABLE: "The service cannot answer at the moment. Try again: it is done once at most.",
  VALIDATION: "This cannot be taken as it is.",
  VERSION_CONFLICT: "The facts of this conversation have changed since you were asked.",
};

const ZH = {
  BAD_REQUEST: "服务器无法理解此请求。",
  CONVERSATION_BUSY: "此会话中有运行正在进行，请等待其结束，或先停止它。",
  FORBIDDEN: "您的令牌不允许此操作。",
  GRAPH_ERROR: "运行失败。",
  HISTORY_EXPIRED: "此运行的详细记录已不再保留。",
  IDEMPOTENCY_MISMATCH: "同一个键已用于另一个请求。请刷新页面后重试。",
  INTERNAL: "服务器出错。请重试，不会重复执行。",
  INTERRUPT_EXPIRED: "作出决定的时间已过。",
  INTERRUPT_NOT_PENDING: "此前已有人作出决定。",
  METHOD_NOT_ALLOWED: "服务器不支持此类请求。",
  NOT_FOUND: "它已不存在，或不属于您。",
  PAYLOAD_TOO_LARGE: "内容过长。",
  PERMISSION_REVOKED: "您没有此操作的权限，有权限的人仍可决定。",
  RATE_LIMITED: "请求过多，请稍后再试。",
  RESOURCE_CHANGED: "在等待期间，对象发生了变化。",
  RUN_NOT_RESUMABLE: "此运行目前无法继续。",
  RUN_TIMEOUT: "运行超过了允许的时间。",
  RUNNER_LOST: "运行多次失去执行器，已放弃。",
  UNAUTHENTICATED: "登录已失效，请重新登录。",
  UNAVAILABLE: "服务暂时无法应答。请重试，不会重复执行。",
  VALIDATION: "内容不符合要求。",
  VERSION_CONFLICT: "在等待期间，此会话的事实发生了变化。",
};

export const PROBLEMS = { en: EN, zh: ZH };

/** Where the server's sentence has facts of this case: names, limits, what is wrong with a field. */
const TELLING = new Set(["BAD_REQUEST", "FORBIDDEN", "GRAPH_ERROR", "PAYLOAD_TOO_LARGE", "RATE_LIMITED", "RUN_NOT_RESUMABLE", "VALIDATION"]);

/** {words, detail}: our sentence, and the server's where it tells more, else null. */
export function explained(code, detail = "") {
  const words = PROBLEMS[currentLanguage()][code];
  if (words === undefined) return { words: t("refused_otherwise"), detail: detail || code };
  return { words, detail: TELLING.has(code) && detail ? detail : null };
}

/** As parts of an element. An error that is no refusal: nothing answered. */
export function told(error) {
  if (!(error instanceof Problem)) return [t("not_sent")];
  if (error.code === "UNKNOWN") return [t(error.status >= 500 ? "not_sent" : "refused_otherwise")];
  return parts(explained(error.code, error.message));
}

/** How a run failed: `code` and `message` of its `error` event. */
export function failure({ code, message }) {
  return parts(explained(code, message));
}

function parts({ words, detail }) {
  return [words, detail && h("span", { class: "detail", lang: "en" }, ` ${brief(detail, 400)}`)].filter(Boolean);
}
