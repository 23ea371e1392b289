"""Unusable arguments end a command with status 2 and one line, before anything is done."""

from pathlib import Path

import pytest

from deploy import cli
from deploy.arguments import writable


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
        (["token", "--user", "a", "--ttl", "inf"], "--ttl"),
        (["token", "--user", "a", "--ttl", "1e300"], "--ttl"),
        (["chat", "hello", "--url", "http://127.0.0.1:99999"], "--url"),
        (["chat", "hello", "--url", "http://a b"], "--url"),
        (["load", "--rate", "inf"], "--rate"),
        (["load", "--seconds", "inf"], "--seconds"),
        (["load", "--replicas", "1,100000"], "--replicas"),
        (["load", "--gateways", "100000"], "--replicas"),
        (["load", "--json", "nowhere/x.json"], "--json"),
        (["load", "--markdown", "."], "--markdown"),
        (["drill", "--seconds", "inf"], "--seconds"),
        (["drill", "--json", "nowhere/x.json"], "--json"),
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


def test_nothing_is_signed_with_a_secret_that_no_gateway_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEADYRUN_JWT_SECRET", "hunter22")
    assert status("token", "--user", "ada") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "at least 32 bytes" in printed.err
    assert "hunter22" not in printed.err


def test_a_file_that_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("kept")
    for file in (None, tmp_path / "there", tmp_path / "new"):
        writable(file, "--json")
    assert [f.name for f in tmp_path.iterdir()] == ["there"]
    assert (tmp_path / "there").read_text() == "kept"
