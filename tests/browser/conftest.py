"""One system for all browser tests, one Chromium, a fresh profile for each test."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, sync_playwright

from deploy.signing import sign
from tests.support.chromium import MISSING, find_chromium
from tests.support.cluster import Cluster
from tests.support.visitor import Visitor

GRAPHS = Path(__file__).parent / "graphs" / "langgraph.json"
SHOTS = Path(__file__).parents[1] / "output" / "screenshots"

Visit = Callable[..., Visitor]


@pytest.fixture(scope="session")
def bill() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="steadyrun-") as name:
        yield Path(name) / "version"


@pytest.fixture(scope="session")
def system(bill: Path) -> Iterator[Cluster]:
    bill.write_text("1")
    with tempfile.TemporaryDirectory(prefix="steadyrun-") as name:
        Path(name).chmod(0o755)
        environment = {"STEADYRUN_OPSPILOT_DELAY_MS": "25", "STEADYRUN_TEST_BILL": str(bill)}
        cluster = Cluster(Path(name) / "state", environment=environment)
        with cluster.running("--graphs", str(GRAPHS)) as running:
            yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the session: while it is there Playwright's loop runs in this thread, and no test of
    another folder could run one."""
    chromium = find_chromium()
    if chromium is None:
        pytest.fail(MISSING)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        yield started
        started.close()


@pytest.fixture
def visit(browser: Browser, system: Cluster, bill: Path) -> Iterator[Visit]:
    """Opens a tab of a new profile, or with `beside` another tab of the same one. After the test
    no tab may have anything to complain about."""
    bill.write_text("1")
    SHOTS.mkdir(parents=True, exist_ok=True)
    visitors: list[Visitor] = []

    def open_tab(where: str = "", *, beside: Visitor | None = None, **profile: Any) -> Visitor:
        given = {"locale": "en-US", "viewport": {"width": 1180, "height": 820}} | profile
        context = beside.context if beside else browser.new_context(**given)
        visitors.append(Visitor(context, system.url, SHOTS))
        return visitors[-1].open(where)

    yield open_tab
    complaints = [visitor.complaints for visitor in visitors]
    for visitor in visitors:
        visitor.context.close()
    assert not any(complaints), complaints


@pytest.fixture
def api(system: Cluster) -> Iterator[Callable[..., httpx.Client]]:
    """The API as another user, or as the demo user of the page."""
    clients: list[httpx.Client] = []

    def client(user: str = "demo", *permissions: str) -> httpx.Client:
        token = sign(system.topology.jwt_secret, user, permissions, ttl_s=600)
        headers = {"Authorization": f"Bearer {token}"}
        clients.append(httpx.Client(base_url=system.url, headers=headers, timeout=20))
        return clients[-1]

    yield client
    for opened in clients:
        opened.close()
