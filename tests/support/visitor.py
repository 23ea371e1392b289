"""A person before the console: what they do and see, and what the browser complains about."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Page, Request

Json = dict[str, Any]
_SERIOUS = ("serious", "critical")


class Visitor:
    """One tab. `complaints` are console errors and warnings, exceptions and breaches of the policy,
    less those that a test expects by `expecting`: browsers log every answer of 400 and above."""

    def __init__(self, context: BrowserContext, url: str, shots: Path) -> None:
        self.context, self.url, self._shots = context, url, shots
        self.page: Page = context.new_page()
        self.page.set_default_timeout(20_000)
        self.expected: list[str] = []
        self.resumed_after: list[int] = []
        self._said: list[str] = []
        self.page.on("console", self._logged)
        self.page.on("pageerror", lambda error: self._said.append(f"exception: {error}"))
        self.page.on("request", self._asked)

    # --- what they do ---

    def open(self, where: str = "") -> "Visitor":
        self.page.goto(f"{self.url}/{where}")
        return self

    def say(self, text: str) -> None:
        self.page.get_by_role("textbox").fill(text)
        self.page.keyboard.press("Enter")

    def press(self, name: str | re.Pattern[str]) -> None:
        self.page.get_by_role("button", name=name, exact=isinstance(name, str)).click()

    def reload(self) -> None:
        self.page.reload()

    # --- what they see ---

    @property
    def card(self) -> Locator:
        return self.page.locator(".card").last

    def until(self, status: str) -> None:
        """The newest run."""
        newest = "[...document.querySelectorAll('.run')].at(-1)?.dataset.status"
        self.eventually(lambda: bool(self.page.evaluate(newest) == status))

    def until_waiting(self) -> None:
        self.page.locator(".card-pending button").first.wait_for()

    def until_seen(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for()

    @property
    def answer(self) -> str:
        """All that the assistant has said in the newest run, as it stands on the page."""
        return "\n".join(self.page.locator(".run").last.locator(".said").all_inner_texts())

    @property
    def steps(self) -> list[str]:
        names = "all => all.map((one) => one.className)"
        return list(self.page.locator(".step").evaluate_all(names))

    @property
    def conversation(self) -> str:
        return self.page.url.rpartition("/")[2]

    @property
    def token(self) -> str:
        return str(self.page.evaluate("sessionStorage.getItem('steadyrun.token')"))

    # --- what must be so ---

    def shot(self, name: str) -> None:
        self.page.screenshot(path=self._shots / f"{name}.png")

    def must_be_accessible(self) -> None:
        found = Axe().run(self.page).response["violations"]
        faults = [
            (one["id"], [node["html"][:200] for node in one["nodes"]])
            for one in found
            if one["impact"] in _SERIOUS
        ]
        assert faults == []

    def expecting(self, *patterns: str) -> None:
        self.expected += patterns

    @property
    def complaints(self) -> list[str]:
        return [s for s in self._said if not any(re.search(p, s) for p in self.expected)]

    def eventually(self, holds: Callable[[], bool], within_s: float = 20.0) -> None:
        """Lets the page go on meanwhile."""
        deadline = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < deadline, f"not within {within_s} s: {self.answer!r}"
            self.page.wait_for_timeout(50)

    def _logged(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._said.append(f"{message.text} [{message.location.get('url', '')}]")

    def _asked(self, request: Request) -> None:
        if request.url.endswith("/events?until=end"):
            self.resumed_after.append(int(request.headers.get("last-event-id", "0")))
