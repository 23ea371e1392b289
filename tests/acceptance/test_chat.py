"""The terminal client and the sample agent, through the whole system."""

import io
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from deploy.chat import chat
from tests.support.cluster import Cluster


@pytest.fixture(scope="module")
def system() -> Iterator[Cluster]:
    """The sample agent, as `up` runs it when no graph is named."""
    with tempfile.TemporaryDirectory(prefix="steadyrun-") as name:
        Path(name).chmod(0o755)
        environment = {"STEADYRUN_OPSPILOT_DELAY_MS": "10"}
        with Cluster(Path(name) / "state", environment=environment).running() as cluster:
            yield cluster


class Page(io.StringIO):
    """What the person sees; `when` is done once, as soon as the page says `word`."""

    def __init__(self, word: str = "", when: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._word = word
        self._when = when

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._word and self._word in self.getvalue():
            self._word = ""
            self._when()
        return written


def talk(cluster: Cluster, text: str | None, *lines: str, **more: Any) -> tuple[int, str, str]:
    """Exit status, page, conversation. The person's lines end with the end of the input."""
    left = iter(lines)
    out: Page = more.pop("out", Page())

    def ask(prompt: str) -> str:
        for line in left:
            return line
        raise EOFError

    status = chat(cluster.url, text, state=cluster.state, out=out, ask=ask, **more)
    page = out.getvalue()
    return status, page, page.rpartition("conversation ")[2].strip()


@pytest.mark.parametrize(
    ("restart", "again", "done"),
    [
        ("Restart the abnormal instance of {}", "Keep investigating it", "was restarted"),
        ("重启 {} 的异常实例", "继续排查它", "已重启"),
    ],
)
def test_an_instance_is_restarted_after_a_yes_and_then_looked_at_again(
    system: Cluster, restart: str, again: str, done: str
) -> None:
    service = f"sandbox-{'en' if restart.isascii() else 'zh'}"
    status, page, conversation = talk(system, restart.format(service), "y")
    assert status == 0
    assert f"instance: {service}-2" in page
    assert page.index("✓ read_errors") < page.index("confirm_action") < page.index(done)
    status, page, _ = talk(system, again, conversation=conversation)
    assert status == 0
    assert f"→ read_errors service={service} instance={service}-2" in page
    assert page.count(f"{service}-2") >= 2


def test_a_no_ends_the_run_and_changes_nothing(system: Cluster) -> None:
    status, page, conversation = talk(
        system, "Restart the abnormal instance of sandbox-no", "n", "not now"
    )
    assert status == 0
    assert "cancelled (rejected)" in page
    _, page, _ = talk(system, "Show its instances", conversation=conversation)
    assert "sandbox-no-2 on node-2: degraded, version 1, restarted 0 times" in page


def test_a_decision_can_wait_until_somebody_comes_back(system: Cluster) -> None:
    text = "Restart the abnormal instance of sandbox-later"
    status, page, conversation = talk(system, text)
    assert status == 0
    assert f"steadyrun chat --conversation {conversation}" in page
    status, page, _ = talk(system, None, "y", conversation=conversation)
    assert status == 0
    assert "sandbox-later-2 was restarted" in page


def test_conversations_at_once_do_not_disturb_each_other(system: Cluster) -> None:
    def visit(name: str) -> tuple[int, str, str]:
        return talk(system, f"Restart the abnormal instance of sandbox-{name}", yes=True)

    names = [f"at{n}" for n in range(6)]
    with ThreadPoolExecutor(len(names)) as pool:
        visits = list(pool.map(visit, names))
    for name, (status, page, _) in zip(names, visits, strict=True):
        assert status == 0
        assert f"sandbox-{name}-2 was restarted. It is running again, now at version 2" in page


@pytest.mark.parametrize("role", ["gateway", "runner"])
def test_the_talk_goes_on_when_all_of_a_kind_are_killed_in_the_middle_of_a_word(
    system: Cluster, role: str
) -> None:
    def kill_all() -> None:
        for process in system.topology.processes:
            if process.role == role:
                os.kill(process.pid, signal.SIGKILL)

    page = Page("I'll look", kill_all)
    text = f"Restart the abnormal instance of sandbox-k{role}"
    status, said, _ = talk(system, text, yes=True, out=page)
    assert status == 0
    assert f"sandbox-k{role}-2 was restarted. It is running again, now at version 2" in said


def test_the_command_finds_the_running_system_by_its_state_folder(system: Cluster) -> None:
    argv = [sys.executable, "-m", "deploy.cli", "chat", "--state", str(system.state), "hello"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("STEADYRUN_")}
    done = subprocess.run(
        argv, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "payment-api" in done.stdout
