"""Runs that can be opened again while Postgres is away."""

from dataclasses import fields
from typing import Any

from common.db.runs import Run
from gateway.services.known import KnownRuns


def run(run_id: str, user: str = "ada") -> Run:
    row: dict[str, Any] = {field.name: None for field in fields(Run)}
    large = {"input": {"content": "x"}, "principal": {"token": "x"}, "output": "x"}
    return Run(**row | large | {"id": run_id, "user_id": user})


def test_a_stranger_neither_finds_a_run_nor_takes_it_from_its_user() -> None:
    known = KnownRuns()
    known.note(run("run_1"))
    assert known.find("run_1", "bo") is None
    known.forget("run_1", "bo")
    assert known.find("run_1", "ada") is not None
    known.forget("run_1", "ada")
    assert known.find("run_1", "ada") is None


def test_only_the_last_runs_are_kept_and_nothing_large_of_them() -> None:
    known = KnownRuns(runs_max=2)
    for number in range(3):
        known.note(run(f"run_{number}"))
    found = known.find("run_2", "ada")
    assert known.find("run_0", "ada") is None
    assert found is not None
    assert (found.input, found.principal, found.output) == ({}, {}, None)
