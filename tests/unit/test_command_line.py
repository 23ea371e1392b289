"""Unusable arguments end a command with status 2 and one line, before anything is done."""

from pathlib import Path

import pytest

from deploy import cli


def status(*arguments: str) -> int:
    return cli.status_of(lambda: cli.cli(list(arguments), standalone_mode=False))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["token", "--user", ""], "--user"),
        (["chat"], "nothing to say"),
        (["chat", " "], "nothing to say"),
        (["chat", "hello", "--user", " "], "--user"),
        (["chat", "hello", "--url", "nonsense"], "--url"),
        (["chat", "hello", "--url", "http://"], "--url"),
        (["load", "nonsense"], "no such shape"),
        (["load", "--replicas", "x"], "--replicas"),
        (["load", "--kind", "nonsense"], "--kind"),
        (["load", "--url", "nonsense", "watchers"], "--url"),
        (["load", "kills", "--url", "http://127.0.0.1:1"], "kills"),
        (["drill", "nonsense"], "no such scenario"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_status_2(
    arguments: list[str],
    named: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("STEADYRUN_JWT_SECRET", "s" * 32)
    monkeypatch.chdir(tmp_path)
    assert status(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("steadyrun: ")
    assert printed.err.count("\n") == 1
    assert named in printed.err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STEADYRUN_URL", "nonsense"),
        ("STEADYRUN_URL", "ftp://x"),
        ("STEADYRUN_TOKEN", "a\nb"),
        ("STEADYRUN_TOKEN", "Bearer x"),
        ("STEADYRUN_TOKEN", "тест"),
    ],
)
def test_where_chat_goes_and_with_what_is_looked_at_before_it_is_used(
    name: str,
    value: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable, good in {"STEADYRUN_URL": "http://127.0.0.1:1", "STEADYRUN_TOKEN": "t"}.items():
        monkeypatch.setenv(variable, value if variable == name else good)
    assert status("chat", "hello") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("steadyrun: ")
    assert printed.err.count("\n") == 1
    assert name in printed.err
    assert "Bearer x" not in printed.err
