"""Runs tests/js: in the system's node if there is one, else in Chromium.

Neither is needed to use the product, and a fresh machine may have neither: then the reason for
skipping says so. `.ci/run` installs Chromium, so there they always run.
"""

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.chromium import find_chromium

ROOT = Path(__file__).parents[2]
_MAIN = "tests/js/main.mjs"
_PATIENCE_S = 40
_NODE_OLDEST = 18  # fetch and web streams are there from then on

Outcome = list[dict[str, Any]]


def engine() -> str | None:
    """`node`, `chromium`, or None where there is neither."""
    if _node_version() >= _NODE_OLDEST:
        return "node"
    return "chromium" if find_chromium() else None


def outcome(engine: str) -> Outcome:
    """The name of every test, and why it failed or None."""
    found: Outcome = _in_node() if engine == "node" else _in_chromium()
    return found


def _node_version() -> int:
    if shutil.which("node") is None:
        return 0
    said = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False)
    major = said.stdout.strip().removeprefix("v").split(".")[0]
    return int(major) if major.isdigit() else 0


def _in_node() -> Any:
    done = subprocess.run(
        ["node", str(ROOT / _MAIN)],
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _in_chromium() -> Any:
    from playwright.sync_api import sync_playwright

    with _served() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium())
        page = browser.new_page()
        page.goto(f"{url}/tests/js/harness.mjs")
        page.evaluate(f"import('{url}/{_MAIN}').then(async (t) => {{ found = await t.outcome }})")
        page.wait_for_function("globalThis.found", timeout=_PATIENCE_S * 1000)
        found = page.evaluate("globalThis.found")
        browser.close()
    return found


@contextmanager
def _served() -> Iterator[str]:
    """The project's files on loopback."""
    handler = partial(_Quiet, directory=str(ROOT))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    extensions_map = {  # noqa: RUF012
        **SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",
        ".js": "text/javascript",
    }

    def log_message(self, format: str, *args: Any) -> None:
        return
