"""A misspelt variable is not ignored: a slip ends the process, all else is told."""

import itertools
import re
import subprocess
from pathlib import Path

import pytest

from common import environment, variables
from common.environment import VARIABLES, load, unknown_variables
from common.errors import Unusable
from common.settings import RunnerSettings
from common.variables import ELSEWHERE, FAMILIES, SLIP, distance, unknown
from deploy import cli
from tests.support.manifests import ROOT

AS_OLD_AS_THE_RULE = {frozenset({f"STEADYRUN_{r}_HOST", f"STEADYRUN_{r}_PORT"}) for r in
                      ("GATEWAY", "METRICS")}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("STEADYRUN_LEASE_TLL_S", "STEADYRUN_LEASE_TTL_S"),
        ("STEADYRUN_LEASE_TTL", "STEADYRUN_LEASE_TTL_S"),
        ("STEADYRUN_LEASE_TTL_MS", "STEADYRUN_LEASE_TTL_S"),
        ("STEADYRUN_JWT_SERCET", "STEADYRUN_JWT_SECRET"),
        ("steadyrun_loglevel", "STEADYRUN_LOG_LEVEL"),
        ("STEADRUN_RUN_TIMEOUT_S", "STEADYRUN_RUN_TIMEOUT_S"),
        ("STEADY_RUN_GRAPHS", "STEADYRUN_GRAPHS"),
        ("STEADYRUN_OPSPILOT_MODLE", "STEADYRUN_OPSPILOT_MODEL"),
        ("STEADYRUN_TOKN", "STEADYRUN_TOKEN"),
    ],
)
def test_a_slip_is_named_with_what_was_meant(name: str, meant: str) -> None:
    [found] = unknown([name], VARIABLES)
    assert (found.name, found.nearest, found.is_slip) == (name, meant, True)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("STEADYRUN_CONCURRENCY", "STEADYRUN_RUNNER_CONCURRENCY"),
        ("STEADYRUN_MAX_ATTEMPTS", "STEADYRUN_ATTEMPTS_MAX"),
        ("STEADYRUN_ZZZ", None),
        ("STEADYRUN_DEV", "STEADYRUN_DEMO"),
        ("STEADYRUN_STAGE", "STEADYRUN_IMAGE"),
        ("STEADYRUN_UID", "STEADYRUN_URL"),
        ("STEADYRUN_REPO", "STEADYRUN_DEMO"),
    ],
)
def test_what_may_be_a_newer_setting_is_a_warning(name: str, nearest: str | None) -> None:
    [found] = unknown([name], VARIABLES)
    assert (found.nearest, found.is_slip) == (nearest, False)


@pytest.mark.parametrize("name", ["PATH", "DATABASE_URI", "STEADY", "STEADICAM_URL", "RUN", ""])
def test_what_is_somebody_elses_is_left_alone(name: str) -> None:
    assert unknown([name], VARIABLES) == []


def test_no_name_of_ours_is_a_slip_of_another() -> None:
    """Else an older version, in a roll-out or after the way back, would refuse a newer setting."""
    near = {
        frozenset(pair)
        for pair in itertools.combinations(VARIABLES | ELSEWHERE, 2)
        if distance(*pair) <= SLIP
    }
    assert near == AS_OLD_AS_THE_RULE


def test_every_name_in_this_repository_is_known() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    of_slips = (Path(__file__).name, "test_names_of_settings.py")
    texts = [
        (ROOT / name).read_text(encoding="utf-8", errors="ignore")
        for name in listed.stdout.split()
        if not name.endswith(of_slips)
    ]
    names = {n for text in texts for n in re.findall(r"\bSTEADYRUN_[A-Z_]*[A-Z]\b(?!…)", text)}
    assert len(names) > 80
    assert {one.name for one in unknown(names, VARIABLES)} <= {"STEADYRUN_LEASE_TLL_S"}
    assert {n for n in ELSEWHERE if n not in names} == set(), "nobody reads it any more"
    assert all(any(n.startswith(family) for n in names) for family in FAMILIES)


def test_slips_are_counted_like_a_person_does() -> None:
    assert [
        distance("abcd", other) for other in ("abcd", "abdc", "abc", "xbcd", "abcde", "ba")
    ] == [
        *(0, 1, 1, 1, 1, 3),
    ]


def test_a_slip_ends_the_process_before_it_reads_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEADYRUN_LEASE_TLL_S", "hunter2")
    monkeypatch.setenv("STEADYRUN_GRAPSH", "x")
    with pytest.raises(Unusable) as caught:
        unknown_variables()
    assert str(caught.value) == (
        "STEADYRUN_GRAPSH is no setting: did you mean STEADYRUN_GRAPHS?; "
        "STEADYRUN_LEASE_TLL_S is no setting: did you mean STEADYRUN_LEASE_TTL_S?"
    )


@pytest.mark.parametrize(
    "arguments",
    [["up"], ["migrate"], ["token", "--user", "a"], ["chat", "x"], ["load"], ["drill", "--list"]],
)
def test_every_command_names_a_slip_and_ends_with_2(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEADYRUN_LEASE_TLL_S", "5")
    status = cli.status_of(lambda: cli.cli(arguments, standalone_mode=False))
    said = capsys.readouterr()
    assert (status, said.out) == (2, "")
    assert said.err.startswith("steadyrun: STEADYRUN_LEASE_TLL_S is no setting: did you mean")
    assert said.err.count("\n") == 1


def test_a_command_goes_on_after_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEADYRUN_CONCURRENCY", "5")
    assert cli.status_of(lambda: cli.cli(["drill", "--list"], standalone_mode=False)) == 0
    said = capsys.readouterr()
    assert "STEADYRUN_RUNNER_CONCURRENCY" in said.err
    assert "runner-kill" in said.out


def test_the_module_of_names_reads_no_environment() -> None:
    assert "environ" not in Path(variables.__file__).read_text().replace("environment", "")
    assert {"DATABASE_URL", "REDIS_URL", "STEADYRUN_LEASE_TTL_S"} <= environment.VARIABLES


def test_an_unusable_value_is_an_unusable_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unusable, match="DATABASE_URL: must begin with"):
        load(RunnerSettings, DATABASE_URL="mysql://x", REDIS_URL="redis://h")
