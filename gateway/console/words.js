// The console's words, in English and Chinese. `t("key", {name: value})` gives the sentence.

const EN = {
  brand_line: "Agents that keep running",
  skip: "Skip to the content",
  menu: "Menu", conversations: "Conversations", new_conversation: "New conversation",
  inbox: "Approvals", operations: "Operations", theme: "Light or dark", other_language: "中文",
  sign_out: "Sign out", signed_in_as: "Signed in as {user}",
  older: "Show older", none_yet: "No conversations yet. Ask something.",
  delete_conversation: "Delete this conversation", delete_sure: "Delete “{title}” with all its messages?",
  welcome: "What should be looked after?",
  welcome_text: "Ask in your own words. You see every step, and nothing dangerous happens before you have said yes.",
  ask_1: "Look at the recent errors of payment-api", ask_2: "Restart the abnormal instance of payment-api",
  ask_3: "Which services are there?", ask_4: "重启 payment-api 的异常实例",
  message: "Message", messages: "Messages", placeholder: "Ask, or say what should be done",
  placeholder_busy: "The agent is at work", placeholder_waiting: "Waiting for a decision above",
  send: "Send", stop: "Stop", stopping: "Stopping…", you: "You", agent: "Agent",
  queued: "Queued", running: "At work", interrupted: "Waiting for you", completed: "Finished",
  failed: "Failed", cancelled: "Cancelled",
  step_running: "running", step_success: "finished", step_error: "failed", step_interrupted: "waiting",
  step_discarded_failover: "discarded: its runner was lost", step_discarded_handover: "discarded: handed over",
  step_discarded_retry: "discarded: tried again", steps: "Steps of this run", attempt: "attempt {n}",
  note_failover: "A runner was lost. Another one took the run over and repeats what was not finished.",
  note_handover: "The run was handed over to another runner.",
  note_retry: "A step failed and is tried again (attempt {n}).", note_withdrawn: "{n} unfinished part(s) withdrawn.",
  reasoning: "Reasoning", tool_running: "running", tool_success: "done", tool_error: "failed", tool_declined: "declined", details: "Details",
  cancel_user: "You stopped this run.", cancel_rejected: "The action was declined, so nothing was done.",
  cancel_expired: "The time for a decision ran out, so nothing was done.",
  cancel_disconnected: "Nobody watched any more, so the run was ended.", cancel_superseded: "A newer message replaced this run.",
  paused_at: "Paused before {next}", paused_end: "Paused at its end", go_on: "Go on",
  confirm_action: "Confirm this action", select_option: "Choose one", provide_input: "Your input is needed",
  risk: "Risk", resource: "Resource", permission: "Needs the permission {name}",
  expires_in: "Expires in {time}", expired_now: "The time is over",
  approve: "Approve", reject: "Decline", edit: "Change", choose: "Choose", submit: "Send answer", answer: "Answer",
  answer_hint: "Text, or JSON", reason: "Reason (may stay empty)", arguments: "Arguments as JSON", send_changed: "Approve as changed",
  back: "Back", bad_json: "This is not JSON.",
  effect_title: "Has the effect “{name}” happened?", effect_again: "Do it again. If it did happen, it happens twice.",
  effect_text: "It was begun at {at} by {by}, and how it ended was never noted: the runner died or stood still meanwhile, or the effect failed half-way. Please look where it acts. Nothing is done about it until you answer.",
  effect_done: "It is done. The run goes on, without a result of it.", effect_result: "It is done, and this is its result. The run goes on with it.",
  effect_result_hint: "What it gave, as the graph expects it (JSON)", effect_give_up: "Give up: end the run",
  decided_approve: "Approved", decided_reject: "Declined", decided_edit: "Approved with changes", decided_select: "Chosen: {value}",
  decided_fill: "Answered", decided_other: "Decided", by: " by {user}", by_you: " by you", closed_expired: "Expired", closed_cancelled: "Withdrawn",
  was: "when asked", is: "now", confirm_current: "Confirm with the current values",
  not_sent: "No answer came. Try again: it is done once at most.", refused_otherwise: "The server refused this.",
  live: "Live", connecting: "Connecting…", reconnecting: "Connection lost. Reconnecting…", offline: "You are offline. The run goes on without you.", offline_idle: "You are offline.",
  not_found: "This conversation does not exist, or is not yours.", loading: "Loading…", failed_to_load: "This could not be loaded.", retry: "Try again",
  inbox_empty: "Nothing waits for you.", inbox_text: "Everything that you may decide, the newest first.", open_conversation: "Open the conversation",
  sign_in: "Sign in", sign_in_text: "Paste an access token. It stays in this tab and goes when you close it.",
  token: "Access token", token_refused: "The server refused this token.", sign_in_hint: "steadyrun token --user you",
  ops_forbidden: "Your token lacks the permission ops.view.", ops_live: "Runs now", ops_ended: "Ended in the last {n} minutes",
  ops_runners: "Runners", ops_gateways: "Gateways", ops_takeovers: "Takeovers", ops_none: "None.",
  ops_events: "Events a second", ops_lag: "Lag of the event path", ops_queue: "Oldest in the queue", ops_streams: "Open streams",
  name: "Name", load: "Load", age: "Age", state: "State", last_seen: "Lease", streams: "Streams", run: "Run", lost: "Lost by", when: "When", now_at: "Now",
  waiting_for_people: "Waiting for a person", alive: "alive", draining: "draining", dead: "dead", degraded: "Redis is away: gateways other than the one that answered are not known, and streams follow the archive.",
  seconds: "{n} s", ms: "{n} ms", more_than: "more than {n}", deaf: "deaf", healthy: "healthy",
};

const ZH = {
  brand_line: "让智能体持续运行",
  skip: "跳到正文",
  menu: "菜单", conversations: "会话", new_conversation: "新建会话",
  inbox: "待审批", operations: "运行状况", theme: "浅色或深色", other_language: "English",
  sign_out: "退出", signed_in_as: "当前用户：{user}",
  older: "显示更早的", none_yet: "还没有会话，问点什么吧。",
  delete_conversation: "删除此会话", delete_sure: "删除“{title}”及其全部消息？",
  welcome: "需要处理什么？",
  welcome_text: "用自己的话提问。每一步都看得见；在您同意之前，不会执行任何危险操作。",
  ask_1: "查看 payment-api 最近的错误", ask_2: "重启 payment-api 的异常实例", ask_3: "有哪些服务？", ask_4: "Restart the abnormal instance of payment-api",
  message: "消息", messages: "消息记录", placeholder: "提问，或说明要做什么", placeholder_busy: "智能体正在工作", placeholder_waiting: "等待上方的决定",
  send: "发送", stop: "停止", stopping: "正在停止…", you: "我", agent: "智能体",
  queued: "排队中", running: "进行中", interrupted: "等待您处理", completed: "已完成", failed: "失败", cancelled: "已取消",
  step_running: "进行中", step_success: "已完成", step_error: "失败", step_interrupted: "等待中",
  step_discarded_failover: "已作废：执行器丢失", step_discarded_handover: "已作废：已移交", step_discarded_retry: "已作废：重试",
  steps: "本次运行的步骤", attempt: "第 {n} 次",
  note_failover: "一个执行器丢失，另一个已接手，并重做未完成的部分。", note_handover: "运行已移交给另一个执行器。",
  note_retry: "一个步骤失败，正在重试（第 {n} 次）。", note_withdrawn: "已撤回 {n} 处未完成的内容。",
  reasoning: "推理", tool_running: "进行中", tool_success: "完成", tool_error: "失败", tool_declined: "已拒绝", details: "详情",
  cancel_user: "您停止了此运行。", cancel_rejected: "操作被拒绝，未执行任何更改。", cancel_expired: "确认已超时，未执行任何更改。",
  cancel_disconnected: "无人查看，运行已结束。", cancel_superseded: "已被新的消息取代。",
  paused_at: "在 {next} 之前暂停", paused_end: "在结尾处暂停", go_on: "继续",
  confirm_action: "请确认此操作", select_option: "请选择", provide_input: "需要您提供信息",
  risk: "风险", resource: "对象", permission: "需要权限 {name}",
  expires_in: "{time}后过期", expired_now: "已超时",
  approve: "同意", reject: "拒绝", edit: "修改", choose: "选择", submit: "提交", answer: "回答", answer_hint: "文本或 JSON",
  reason: "原因（可不填）", arguments: "参数（JSON）", send_changed: "按修改后的参数同意", back: "返回", bad_json: "不是有效的 JSON。",
  effect_title: "“{name}”是否已经执行？", effect_again: "再执行一次。如果之前已经执行过，就会发生两次。",
  effect_text: "它于 {at} 由 {by} 开始执行，但结果没有被记录：执行器中途丢失或停顿，或者执行到一半失败。请到它生效的地方查看。在您回答之前，不会再做任何操作。",
  effect_done: "已经执行。运行继续，但没有它的结果。", effect_result: "已经执行，结果如下。运行将使用此结果继续。",
  effect_result_hint: "它给出的结果，按图所需的格式（JSON）", effect_give_up: "放弃并结束运行",
  decided_approve: "已同意", decided_reject: "已拒绝", decided_edit: "修改后同意", decided_select: "已选择：{value}", decided_fill: "已回答", decided_other: "已决定",
  by: "（{user}）", by_you: "（我）", closed_expired: "已过期", closed_cancelled: "已撤回",
  was: "询问时", is: "当前", confirm_current: "按当前值确认",
  not_sent: "没有收到应答。请重试，不会重复执行。", refused_otherwise: "服务器拒绝了此请求。",
  live: "实时", connecting: "正在连接…", reconnecting: "连接中断，正在重连…", offline: "您已离线，运行仍在继续。", offline_idle: "您已离线。",
  not_found: "此会话不存在，或不属于您。", loading: "加载中…", failed_to_load: "加载失败。", retry: "重试",
  inbox_empty: "没有等待您处理的事项。", inbox_text: "所有您可以决定的事项，最新的在前。", open_conversation: "打开会话",
  sign_in: "登录", sign_in_text: "请粘贴访问令牌。它只保存在此标签页中，关闭即清除。", token: "访问令牌", token_refused: "服务器拒绝了此令牌。", sign_in_hint: "steadyrun token --user you",
  ops_forbidden: "您的令牌缺少权限 ops.view。", ops_live: "当前运行", ops_ended: "最近 {n} 分钟内结束",
  ops_runners: "执行器", ops_gateways: "网关", ops_takeovers: "接管记录", ops_none: "无。",
  ops_events: "每秒事件数", ops_lag: "事件通道延迟", ops_queue: "最久排队", ops_streams: "打开的流",
  name: "名称", load: "负载", age: "已运行", state: "状态", last_seen: "租约", streams: "流", run: "运行", lost: "原执行器", when: "时间", now_at: "现状",
  waiting_for_people: "等待人工处理", alive: "正常", draining: "排空中", dead: "已停止", degraded: "Redis 不可用：只知道本次应答的网关，事件流改从归档读取。",
  seconds: "{n} 秒", ms: "{n} 毫秒", more_than: "超过 {n}", deaf: "失联", healthy: "正常",
};

export const WORDS = { en: EN, zh: ZH };
const STORED = "steadyrun.language";

let language = localStorage.getItem(STORED);
if (!(language in WORDS)) language = navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";

export function t(key, values = {}) {
  const words = WORDS[language][key] ?? EN[key] ?? key;
  return words.replace(/\{(\w+)\}/g, (_, name) => String(values[name] ?? ""));
}

export function currentLanguage() {
  return language;
}

export function switchLanguage() {
  language = language === "en" ? "zh" : "en";
  localStorage.setItem(STORED, language);
}

export function tag() {
  return language === "zh" ? "zh-CN" : "en";
}

/** "3 min", "2 h 5 min": as much as a person wants to know. */
export function duration(seconds) {
  const units = language === "zh" ? [" 天", " 小时", " 分", " 秒"] : [" d", " h", " min", " s"];
  const s = Math.max(0, Math.floor(seconds));
  const parts = [Math.floor(s / 86400), Math.floor(s / 3600) % 24, Math.floor(s / 60) % 60, s % 60];
  const first = parts.findIndex((n) => n > 0);
  if (first < 0) return `0${units[3]}`;
  const shown = s < 600 ? [first, 3] : [first, first + 1];
  return [...new Set(shown)].filter((n) => n < 4 && parts[n] > 0).map((n) => `${parts[n]}${units[n]}`).join(" ");
}

export function clock(moment) {
  return new Date(moment).toLocaleString(tag(), { dateStyle: "short", timeStyle: "medium" });
}
