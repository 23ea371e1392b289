"""The story of the console: ask, watch, decide, go on; whatever is killed meanwhile."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from playwright.sync_api import Route

from tests.browser.conftest import Visit
from tests.support import silence
from tests.support.cluster import Cluster
from tests.support.visitor import Visitor

Client = Callable[..., httpx.Client]
LOST = r"net::ERR_|Failed to load resource.* (502|503)"
GONE = {"status": 410, "code": "HISTORY_EXPIRED", "detail": "events are not kept any more"}
PHONE: dict[str, Any] = {
    "viewport": {"width": 360, "height": 740},
    "color_scheme": "dark",
    "locale": "zh-CN",
    "has_touch": True,
}


def stored(client: httpx.Client, conversation: str) -> str:
    """What the assistant has said by the API, as the page shows text."""
    found = client.get(f"/api/conversations/{conversation}/messages").json()["items"]
    return "\n".join(one["content"] for one in found if one["role"] == "assistant")


def must_show_what_is_stored(visitor: Visitor, client: httpx.Client) -> None:
    visitor.until("completed")
    said = stored(client, visitor.conversation)
    assert said
    assert visitor.answer.split() == said.replace("**", "").replace("`", "").split()


def kill_all(system: Cluster, role: str) -> None:
    for process in system.topology.processes:
        if process.role == role:
            os.kill(process.pid, signal.SIGKILL)


def asking(api: Client, kind: str, user: str = "demo", graph: str = "asking") -> str:
    """A conversation that waits for an answer of this kind."""
    with api(user) as client:
        made = client.post(
            "/api/chat",
            json={"graph": graph, "message": {"content": kind}},
            headers={"Accept": "application/json"},
        )
        assert made.status_code == 202, made.text
        return str(made.json()["run"]["conversationId"])


def test_an_instance_is_restarted_after_a_yes_and_it_is_known_what_it_is(
    visit: Visit, api: Client
) -> None:
    ada = visit()
    ada.must_be_accessible()
    ada.shot("1-welcome")
    ada.say("Restart the abnormal instance of sandbox-story")
    ada.page.locator(".step-running").wait_for()
    ada.shot("2-at-work")
    ada.until_waiting()
    assert "step-interrupted" in ada.steps[-1]
    assert "sandbox-story-2" in ada.card.inner_text()
    assert re.search(r"Expires in 23 h 59 min", ada.card.inner_text())
    assert ada.page.locator(".ended-failed").count() == 0
    ada.must_be_accessible()
    ada.shot("3-waiting")
    ada.press("Approve")
    ada.until("completed")
    assert "Approved by you" in ada.card.inner_text()
    ada.until_seen("sandbox-story-2 was restarted. It is running again, now at version 2")
    must_show_what_is_stored(ada, api())
    ada.must_be_accessible()
    ada.shot("4-done")
    ada.say("Keep investigating it")
    ada.page.locator(".run").nth(1).wait_for()
    ada.until("completed")
    assert "sandbox-story-2" in ada.answer


def test_a_refresh_at_every_stage_changes_nothing_and_goes_on_after_the_last_event(
    visit: Visit, api: Client
) -> None:
    ada = visit()
    ada.say("Restart the abnormal instance of sandbox-refresh")
    ada.page.locator(".said").first.wait_for()
    ada.reload()
    ada.until_waiting()
    before = ada.answer
    ada.reload()
    ada.until_waiting()
    assert ada.answer == before
    ada.press("Approve")
    ada.reload()
    must_show_what_is_stored(ada, api())
    ada.reload()
    must_show_what_is_stored(ada, api())
    assert "Approved" in ada.card.inner_text()
    assert ada.page.locator(".message-user").count() == 1
    first, *others = ada.resumed_after
    assert first == 0
    assert min(others) > 0, others
    assert others == sorted(others)


def test_a_tab_that_has_kept_nothing_shows_the_same(visit: Visit, api: Client) -> None:
    ada = visit()
    ada.say("Restart the abnormal instance of sandbox-second")
    ada.until_waiting()
    other = visit(f"#/c/{ada.conversation}", beside=ada)
    other.until_waiting()
    assert other.answer == ada.answer
    assert other.steps == ada.steps
    other.press("Decline")
    other.page.get_by_label("Reason").fill("not today")
    other.press("Decline")
    ada.until("cancelled")
    ada.until_seen("The action was declined, so nothing was done.")
    assert "Declined by you" in ada.card.inner_text()


def test_of_two_tabs_that_decide_at_once_one_wins_and_the_other_says_who(
    visit: Visit, api: Client
) -> None:
    ada = visit()
    ada.expecting(r"status of 409")
    ada.say("Restart the abnormal instance of sandbox-race")
    ada.until_waiting()
    other = visit(f"#/c/{ada.conversation}", beside=ada)
    other.expecting(r"status of 409")
    other.until_waiting()
    click = "document.querySelector('.card .primary')?.click()"  # it goes with the other's click
    for tab in (ada, other):
        tab.page.evaluate(f"setTimeout(() => {click}, 300)")
    for tab in (ada, other):
        tab.until("completed")
        assert "Approved by you" in tab.card.inner_text()
        assert "now at version 2" in tab.answer
    must_show_what_is_stored(other, api())


def test_without_a_network_the_page_says_so_and_catches_up_afterwards(
    visit: Visit, api: Client
) -> None:
    ada = visit()
    ada.expecting(LOST)
    ada.say("Restart the abnormal instance of sandbox-offline")
    ada.page.locator(".said").first.wait_for()
    ada.context.set_offline(True)
    ada.until_seen("You are offline. The run goes on without you.")
    ada.shot("5-offline")
    ada.context.set_offline(False)
    ada.until_waiting()
    ada.until_seen("Live")
    ada.press("Approve")
    must_show_what_is_stored(ada, api())
    ada.context.set_offline(True)
    ada.page.get_by_text("You are offline.", exact=True).wait_for()
    ada.context.set_offline(False)


def test_a_refusal_is_told_in_the_readers_language_with_what_the_server_knows_of_it(
    visit: Visit,
) -> None:
    li = visit(locale="zh-CN")
    li.expecting("status of 413")
    limit = {"status": 413, "code": "PAYLOAD_TOO_LARGE", "detail": "content: at most 9 bytes"}
    li.page.route("**/api/chat", lambda route: route.fulfill(status=413, json=limit))
    li.say("很长的消息")
    li.until_seen("内容过长。")
    li.until_seen("content: at most 9 bytes")
    assert li.page.get_by_role("textbox").input_value() == "很长的消息"


def test_while_a_part_of_the_page_is_of_another_version_it_loads_itself_again(visit: Visit) -> None:
    ada = visit()
    ada.until_seen("What should be looked after?")
    ada.page.get_by_role("textbox").fill("not sent yet")
    ada.expecting("status of 404")
    ada.page.route("**/console/*/card.js", lambda route: route.fulfill(status=404))
    pages: list[Route] = []

    def hold_the_second(route: Route) -> None:  # so that what the first says can be seen
        pages.append(route)
        if len(pages) == 1:
            route.continue_()

    ada.page.route(f"{ada.url}/", hold_the_second)
    ada.reload()
    ada.until_seen("The console is being updated.")
    ada.eventually(lambda: len(pages) == 2)
    ada.page.unroute("**/console/*/card.js")
    pages[1].continue_()
    ada.until_seen("What should be looked after?")
    assert ada.page.get_by_role("textbox").input_value() == "not sent yet"
    assert ada.page.evaluate("sessionStorage.getItem('steadyrun.reloads')") is None


def test_a_page_whose_parts_stay_away_gives_up_and_asks(visit: Visit) -> None:
    li = visit(locale="zh-CN")
    li.until_seen("需要处理什么")
    li.expecting("status of 404")
    li.page.route("**/style.css", lambda route: route.fulfill(status=404))
    li.page.evaluate("sessionStorage.setItem('steadyrun.reloads', '5')")
    li.reload()
    li.until_seen("控制台加载失败。")
    li.page.unroute("**/style.css")
    li.press("重试")
    li.until_seen("需要处理什么")


def test_killed_gateways_cost_nothing_but_a_reconnect(
    visit: Visit, api: Client, system: Cluster
) -> None:
    ada = visit()
    ada.expecting(LOST)
    ada.say("Look at the recent errors of sandbox-gateways")
    ada.page.locator(".said").first.wait_for()
    kill_all(system, "gateway")
    ada.page.locator(".line-waiting, .line-connecting").wait_for()
    ada.until("completed")
    system.until(lambda: len(system.topology.of("gateway")) == 2)
    must_show_what_is_stored(ada, api())
    assert ada.page.locator(".note").count() == 0


def test_what_a_killed_runner_had_begun_is_withdrawn_and_its_step_says_so(
    visit: Visit, api: Client, system: Cluster
) -> None:
    ada = visit()
    ada.say("Restart the abnormal instance of sandbox-runners")
    ada.eventually(lambda: "look at the instances" in ada.answer)
    kill_all(system, "runner")
    ada.until_seen("A runner was lost.")
    assert any("step-discarded" in step for step in ada.steps)
    ada.shot("6-failover")
    ada.must_be_accessible()
    ada.until_waiting()
    ada.press("Approve")
    must_show_what_is_stored(ada, api())
    assert ada.page.locator(".step-discarded").count() == 1
    ops = visit("#/operations")
    run_id = ada.page.locator(".run").get_attribute("data-run") or ""
    ops.until_seen(run_id[-12:])


def test_on_a_phone_in_chinese_in_the_dark(visit: Visit, api: Client) -> None:
    li = visit(**PHONE)
    li.until_seen("需要处理什么")
    li.say("重启 sandbox-phone 的异常实例")
    li.until_waiting()
    li.must_be_accessible()
    li.shot("7-phone")
    must_fit(li)
    li.press("同意")
    must_show_what_is_stored(li, api())
    assert "已同意" in li.card.inner_text()
    li.press("菜单")
    li.page.get_by_role("link", name="待审批").wait_for()
    li.must_be_accessible()
    li.shot("8-phone-menu")
    li.press("English")
    li.until_seen("Agents that keep running")
    li.open("#/operations")
    li.page.locator(".chart").first.wait_for()
    must_fit(li)
    li.must_be_accessible()


def must_fit(visitor: Visitor) -> None:
    """No part is wider than the screen, other than what is scrolled within it."""
    wide = """[...document.querySelectorAll("main *")].filter((one) =>
      one.getBoundingClientRect().right > innerWidth + 1 && !one.closest(".table, pre"))
      .map((one) => one.outerHTML.slice(0, 120))"""
    assert visitor.page.evaluate(wide) == []
    assert not visitor.page.evaluate("document.documentElement.scrollWidth > innerWidth")


def test_conversations_that_are_older_than_those_shown_are_reached(
    visit: Visit, api: Client, system: Cluster
) -> None:
    with api(f"collector-{uuid4()}") as client:
        for n in range(61):
            assert client.post("/api/conversations", json={"title": f"case {n}"}).is_success
        token = client.headers["authorization"].removeprefix("Bearer ")
    ada = visit()
    sign_in(ada, token)
    ada.page.get_by_role("link", name="case 60").wait_for()
    assert ada.page.get_by_role("link", name="case 0", exact=True).count() == 0
    ada.press("Show older")
    ada.page.get_by_role("link", name="case 0", exact=True).wait_for()
    ada.page.get_by_role("button", name="Show older").wait_for(state="hidden")


def sign_in(visitor: Visitor, token: str) -> None:
    """As somebody else, once the demo user is signed in: that would come after."""
    visitor.until_seen("What should be looked after?")
    visitor.page.evaluate(f"sessionStorage.setItem('steadyrun.token', '{token}')")
    visitor.reload()


def test_everything_can_be_done_by_keyboard(visit: Visit, api: Client) -> None:
    ada = visit("#/inbox")
    ada.until_seen("Nothing waits for you.")
    ada.page.keyboard.press("Tab")
    assert ada.page.evaluate("document.activeElement.className") == "skip"
    ada.page.keyboard.press("Enter")
    assert ada.page.evaluate("document.activeElement.id") == "main"
    ada.open("#/")
    ada.page.get_by_role("textbox").focus()
    ada.page.keyboard.type("Restart the abnormal instance of sandbox-keys")
    ada.page.keyboard.press("Enter")
    ada.until_waiting()
    focused = "document.activeElement.textContent"
    for _ in range(40):
        if ada.page.evaluate(focused) == "Approve":
            break
        ada.page.keyboard.press("Shift+Tab")
    ada.page.keyboard.press("Enter")
    must_show_what_is_stored(ada, api())
    assert "card" in ada.page.evaluate("document.activeElement.className")


def test_what_looks_like_html_is_shown_as_text(visit: Visit) -> None:
    ada = visit()
    nasty = "<img src=x onerror=alert(1)><b>hello</b>"
    ada.say(nasty)
    ada.until("completed")
    assert ada.page.locator(".message-user p").inner_text() == nasty
    assert ada.page.locator("main img, main b").count() == 0


def test_what_an_agent_writes_is_laid_out(visit: Visit) -> None:
    ada = visit()
    ada.until_seen("What should be looked after?")
    found = ada.page.evaluate(
        """async (text) => {
          const { blocks } = await import("/console/text.js");
          const place = document.createElement("div");
          place.append(...blocks(text));
          return place.innerHTML;
        }""",
        WRITTEN,
    )
    assert found == LAID_OUT


WRITTEN = """1. one
   - in **one**
   more
2. two

7) seven
| a | b |
| --- | :-: |
| `x` | <b> |
> said
> - twice
见https://example.org/a_(b)?c=1。 a|b"""
LINK = '<a href="https://example.org/a_" target="_blank" rel="noopener noreferrer">'
LAID_OUT = (
    '<ol start="1"><li>one<ul><li>in <strong>one</strong></li></ul><br>more</li><li>two</li></ol>'
    '<ol start="7"><li>seven</li></ol>'
    '<div class="said-table" tabindex="0"><table><thead><tr><th scope="col">a</th>'
    '<th scope="col">b</th></tr></thead><tbody><tr><td><code>x</code></td><td>&lt;b&gt;</td></tr>'
    "</tbody></table></div><blockquote><p>said</p><ul><li>twice</li></ul></blockquote>"
    f"<p>见{LINK}https://example.org/a_</a>(b)?c=1。 a|b</p>"
)


def test_a_run_can_be_stopped(visit: Visit) -> None:
    ada = visit()
    ada.say("Restart the abnormal instance of sandbox-stop")
    ada.until_waiting()
    ada.press("Stop")
    ada.until("cancelled")
    ada.until_seen("You stopped this run.")
    assert "Withdrawn" in ada.card.inner_text()


def test_a_conversation_is_deleted_once_the_person_is_sure(visit: Visit) -> None:
    ada = visit()
    ada.say("Which services are there?")
    ada.until("completed")
    where = f'a[href="#/c/{ada.conversation}"]'
    ada.page.locator(where).wait_for()
    ada.page.on("dialog", lambda dialog: dialog.accept())
    ada.page.locator(f"li:has({where})").hover()
    ada.page.locator(f"li:has({where}) .bin").click()
    ada.until_seen("What should be looked after?")
    ada.page.locator(where).wait_for(state="detached")


def test_what_another_tab_began_and_ended_between_two_looks_is_shown(
    visit: Visit, api: Client
) -> None:
    ada = visit()
    ada.say("Which services are there?")
    ada.until("completed")
    with api() as client:
        message = {"message": {"content": "services, please"}, "conversationId": ada.conversation}
        as_json = {"Accept": "application/json"}
        run = client.post("/api/chat", json=message, headers=as_json).json()["run"]
        ada.eventually(lambda: client.get(f"/api/runs/{run['id']}").json()["status"] == "completed")
    ada.until_seen("services, please")
    ada.until("completed")


def test_a_page_that_nobody_sees_gives_its_line_back_and_catches_up(
    visit: Visit, api: Client
) -> None:
    """Over HTTP/1.1 all tabs share six lines: six that wait for a person let no click out."""
    conversation = asking(api, "choose")
    ada = visit()
    ada.page.clock.install()
    ada.open(f"#/c/{conversation}")
    ada.until_waiting()
    seen = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}});" + (
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    with ada.page.expect_event("requestfailed", lambda one: one.url.endswith("/events?until=end")):
        ada.page.evaluate(seen.format("true"))
        ada.page.clock.fast_forward(25_000)
    with api() as client:
        [question] = client.get("/api/interrupts?status=pending").json()["items"]
        answer = {"interruptId": question["id"], "decision": {"select": 2}}
        assert client.post(f"/api/runs/{question['runId']}/resume", json=answer).is_success
    ada.page.evaluate(seen.format("false"))
    ada.until("completed")
    assert ada.resumed_after[-1] > 0


def test_nothing_of_who_has_signed_out_stays_in_the_tab(visit: Visit) -> None:
    ada = visit()
    ada.say("Which services are there?")
    ada.until("completed")
    ada.press("Sign out")
    ada.page.get_by_label("Access token").wait_for()
    assert ada.page.evaluate("Object.keys(sessionStorage)") == []


# --- questions ------------------------------------------------------------------------------------


def test_an_option_is_chosen(visit: Visit, api: Client) -> None:
    ada = visit(f"#/c/{asking(api, 'choose')}")
    ada.until_waiting()
    ada.must_be_accessible()
    ada.page.get_by_label("The right one").check()
    ada.press("Send answer")
    ada.until("completed")
    ada.until_seen("answer: 2")
    assert "Chosen: The right one" in ada.card.inner_text()


def test_a_form_is_filled_in(visit: Visit, api: Client) -> None:
    ada = visit(f"#/c/{asking(api, 'fill')}")
    ada.until_waiting()
    ada.must_be_accessible()
    ada.page.get_by_label("Ticket").fill("OPS-7")
    ada.page.get_by_label("Urgent").check()
    ada.page.get_by_label("Team").select_option("night")
    ada.shot("9-form")
    ada.press("Send answer")
    ada.until("completed")
    ada.until_seen('"minutes":15')
    assert all(part in ada.page.locator(".custom").inner_text() for part in ("OPS-7", "night"))


def test_a_question_of_a_graphs_own_is_answered_with_any_json(visit: Visit, api: Client) -> None:
    ada = visit(f"#/c/{asking(api, 'opaque')}")
    ada.until_waiting()
    assert "Which colour?" in ada.card.inner_text()
    ada.page.get_by_label("Answer").fill('{"colour": "green"}')
    ada.press("Send answer")
    ada.until("completed")
    ada.until_seen('answer: {"colour":"green"}')


def test_nobody_chooses_by_accident_what_is_done_about_an_effect(visit: Visit) -> None:
    li = visit(locale="zh-CN")
    li.until_seen("需要处理什么")
    li.page.evaluate(ASKED_ABOUT_AN_EFFECT)
    li.until_seen("“charge/7”是否已经执行")
    li.press("提交")
    assert li.page.evaluate("sent") is None
    li.page.get_by_placeholder("它给出的结果").fill('{"receipt": 9}')
    li.press("提交")
    assert li.page.evaluate("sent") == {"decision": {"fill": {"result": {"receipt": 9}}}}
    li.page.get_by_label("再执行一次").check()
    li.press("提交")
    assert li.page.evaluate("sent") == {"decision": {"select": "again"}}
    assert li.page.get_by_role("button", name="放弃并结束运行").count() == 1


ASKED_ABOUT_AN_EFFECT = """async () => {
  const { localized } = await import("/console/effect.js");
  const { answerForm } = await import("/console/forms.js");
  const asked = localized({
    type: "select_option", format: "steadyrun", allowedDecisions: ["select", "fill", "reject"],
    payload: {
      steadyrun: "select_option", title: "Has it happened?", schema: {},
      options: [{ value: "again", label: "Do it again." }, { value: "done", label: "Done." }],
      effect: { name: "charge/7", begunAt: "2026-01-01T00:00:00+00:00", begunBy: "rnr_1" },
    },
  });
  window.sent = null;
  const form = answerForm(asked, (decision) => { window.sent = decision; });
  document.querySelector("main").replaceChildren(asked.payload.title, form);
}"""


def test_arguments_are_changed_before_they_are_approved(visit: Visit, api: Client) -> None:
    ada = visit(f"#/c/{asking(api, 'confirm')}")
    ada.until_waiting()
    ada.press("Change")
    ada.page.get_by_label("Arguments as JSON").fill('{"amount": 3}')
    ada.press("Approve as changed")
    ada.until("completed")
    ada.until_seen('"amount":3')


def test_a_resource_that_has_changed_is_shown_and_confirmed_anew(
    visit: Visit, api: Client, bill: Path
) -> None:
    ada = visit(f"#/c/{asking(api, 'confirm')}")
    ada.expecting("status of 409")
    ada.until_waiting()
    bill.write_text("5")
    ada.press("Approve")
    ada.until_seen("This has changed since you were asked")
    assert ada.page.locator(".differs").inner_text().split() == ["version", "1", "5"]
    ada.must_be_accessible()
    ada.shot("10-changed")
    ada.press("Confirm with the current values")
    ada.until("completed")


def test_facts_that_have_changed_are_shown_and_confirmed_anew(visit: Visit, api: Client) -> None:
    conversation = asking(api, "confirm")
    ada = visit(f"#/c/{conversation}")
    ada.expecting("status of 409")
    ada.until_waiting()
    changed = api().patch(
        f"/api/conversations/{conversation}/facts", json={"set": {"env": "staging"}, "version": 1}
    )
    assert changed.status_code == 200
    ada.press("Approve")
    ada.until_seen("The facts of this conversation have changed")
    assert "staging" in ada.card.inner_text()
    ada.press("Confirm with the current values")
    ada.until("completed")


def test_a_permission_that_is_gone_is_told_and_whoever_has_it_decides_in_the_inbox(
    visit: Visit, api: Client, system: Cluster
) -> None:
    conversation = asking(api, "locked")
    ada = visit(f"#/c/{conversation}")
    ada.expecting("status of 403")
    ada.until_waiting()
    ada.press("Approve")
    ada.until_seen("You no longer have the permission for this.")
    assert ada.page.locator(".card-pending").count() == 1
    boss = visit()
    token = api("boss", "ops.pay").headers["authorization"].removeprefix("Bearer ")
    sign_in(boss, token)
    boss.open("#/inbox")
    boss.until_waiting()
    assert boss.page.get_by_text("Open the conversation").count() == 0
    boss.must_be_accessible()
    boss.shot("11-inbox")
    boss.press("Approve")
    ada.until("completed")
    assert "Approved by boss" in ada.card.inner_text()


def test_tools_of_an_older_run_say_what_became_of_them(visit: Visit, api: Client) -> None:
    ada = visit(f"#/c/{asking(api, 'first', graph='mailing')}")
    ada.until_waiting()
    ada.press("Decline")
    ada.press("Decline")
    ada.until("completed")
    shown = ["done", "failed", "declined"]
    assert ada.page.locator(".tool-status").all_inner_texts() == shown
    ada.say("second")
    ada.until_waiting()
    ada.reload()
    ada.until_waiting()
    older = ada.page.locator(".log > .tool .tool-status")
    ada.eventually(lambda: older.all_inner_texts() == shown)
    ada.page.route("**/events?after=*", lambda route: route.fulfill(status=410, json=GONE))
    ada.expecting("status of 410")
    with ada.page.expect_response(lambda one: one.status == 410):
        ada.reload()
    ada.until_waiting()
    assert ada.page.locator(".log > .tool").count() == 3
    assert older.all_inner_texts() == ["", "", ""]


def test_a_question_whose_time_is_over_closes(visit: Visit, api: Client) -> None:
    ada = visit(f"#/c/{asking(api, 'brief')}")
    ada.page.locator(".card-closed").wait_for()
    assert "Expired" in ada.card.inner_text()


# --- the rest -------------------------------------------------------------------------------------


def test_operations_show_what_runs_where_and_what_was_taken_over(
    visit: Visit, api: Client, system: Cluster
) -> None:
    asking(api, "choose")
    ops = visit("#/operations")
    ops.page.locator(".chart").first.wait_for()
    ops.eventually(lambda: ops.page.locator("[data-count=interrupted]").inner_text() != "0")
    ops.eventually(lambda: ops.page.get_by_text("healthy").count() == 2)
    ops.must_be_accessible()
    ops.page.locator(".table").first.focus()
    drawn = ops.page.locator(".table tbody").first.element_handle()
    ops.eventually(lambda: not drawn.evaluate("one => one.isConnected"))
    assert ops.page.evaluate("document.activeElement.ariaLabel") == "Runners"
    ops.page.screenshot(path=ops._shots / "12-operations.png", full_page=True)


def test_where_there_is_no_demo_a_token_is_pasted(visit: Visit, api: Client) -> None:
    def without_demo(route: Route) -> None:
        page = route.fetch()
        route.fulfill(response=page, body=page.text().replace('content="yes"', 'content="no"'))

    ada = visit()
    ada.until_seen("What should be looked after?")
    ada.page.evaluate("sessionStorage.clear()")
    ada.page.route(f"{ada.url}/", without_demo)
    ada.reload()
    ada.page.get_by_label("Access token").wait_for()
    assert ada.complaints == []
    ada.expecting("status of 401")
    ada.page.get_by_label("Access token").wait_for()
    ada.must_be_accessible()
    ada.shot("13-sign-in")
    ada.page.get_by_label("Access token").fill("not.a.token")
    ada.press("Sign in")
    ada.until_seen("The server refused this token.")
    token = api("grace").headers["authorization"].removeprefix("Bearer ")
    ada.page.get_by_label("Access token").fill(token)
    ada.press("Sign in")
    ada.until_seen("What should be looked after?")
    assert ada.page.get_by_text("grace").count() == 1
    assert ada.page.get_by_role("link", name="Operations").count() == 0


@pytest.mark.parametrize("transport", ["follow", "followByEventSource"])
def test_another_page_reads_a_run_with_the_client(
    visit: Visit, api: Client, transport: str, system: Cluster
) -> None:
    ada = visit()
    ada.until_seen("What should be looked after?")
    script = f"""async () => {{
      const {{ Api, {transport}, initial, reduce, texts }} = await import("/console/client.js");
      const api = new Api({{ token: sessionStorage.getItem("steadyrun.token") }});
      const {{ run }} = await api.post("/api/chat", {{ message: {{ content: "services" }} }});
      let state = initial();
      const seen = [];
      for await (const event of {transport}(api, run.id)) {{
        state = reduce(state, event);
        seen.push(event.sequence);
      }}
      return [run.conversationId, state.status, [...texts(state).values()].join("\\n"), seen];
    }}"""
    conversation, status, text, seen = ada.page.evaluate(script)
    assert status == "completed"
    assert text == stored(api(), conversation)
    assert seen == list(range(1, len(seen) + 1))


def test_an_event_source_whose_line_dies_without_a_word_is_opened_anew(
    visit: Visit, api: Client, system: Cluster
) -> None:
    now = f"/api/conversations/{asking(api, 'choose')}/resume-state"
    with silence.between(system.url) as line, api() as client:
        ada = visit()
        ada.page.goto(line.url)
        ada.until_seen("What should be looked after?")
        ada.page.evaluate(FOLLOWED % client.get(now).json()["run"]["id"])
        ada.eventually(lambda: ada.page.evaluate("types.at(-1)") == "interrupt")
        line.fall_silent()
        [question] = client.get(now).json()["pendingInterrupts"]
        answer = {"interruptId": question["id"], "decision": {"select": 2}}
        assert client.post(f"/api/runs/{question['runId']}/resume", json=answer).is_success
        ada.eventually(lambda: ada.page.evaluate("types.at(-1)") == "done")
        assert (line.streams, line.swallowed > 0) == (2, True)


FOLLOWED = """async () => {
  const { Api, followByEventSource } = await import("/console/client.js");
  const api = new Api({ token: sessionStorage.getItem("steadyrun.token") });
  window.types = [];
  const read = async () => {
    const events = followByEventSource(api, "%s", { silenceMaxMs: 300 });
    for await (const { type } of events) types.push(type);
  };
  read();
}"""
