"""What a child that was run once has said, and what an earlier one has said into the same log."""

import sys
from pathlib import Path

import pytest

from deploy.process import Command
from deploy.signals import Signals
from deploy.supervisor import ChildFailed, Supervisor


def failed(log: Path, code: str) -> ChildFailed:
    log.write_text("settings and graphs are fine: shop\n")
    command = Command([sys.executable, "-c", code], log)
    with Signals.watched() as signals:
        supervisor = Supervisor(signals, on_change=lambda _: None, say=lambda _: None)
        with pytest.raises(ChildFailed) as caught:
            supervisor.run_once("check", command)
    return caught.value


def test_a_child_that_was_killed_has_said_nothing(tmp_path: Path) -> None:
    killed = failed(tmp_path / "log", "import os; os.kill(os.getpid(), 9)")
    assert killed.last_words == ""
    assert str(killed).startswith("check was killed by SIGKILL")


def test_the_last_words_are_of_the_child_that_failed(tmp_path: Path) -> None:
    assert failed(tmp_path / "log", "import sys; sys.exit('no')").last_words == "no"
    assert failed(tmp_path / "log", "import os; os._exit(3)").last_words == ""
