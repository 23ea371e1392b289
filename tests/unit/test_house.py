"""The rules of the house that no tool checks by itself."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FLOORS = {"gateway", "runner", "common", "deploy"}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_import_rules_and_wheel_know_every_package(project: dict[str, Any]) -> None:
    found = {p.parent.name for p in ROOT.glob("*/__init__.py")} - {"tests"}
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert found == FLOORS
    assert set(project["tool"]["importlinter"]["root_packages"]) == FLOORS
    assert set(wheel["packages"]) == FLOORS


def test_every_dependency_of_the_product_is_pinned(project: dict[str, Any]) -> None:
    def name(requirement: str) -> str:
        return requirement.split(">")[0].split("[")[0]

    extras = project["project"]["optional-dependencies"]
    wanted = {name(r) for r in project["project"]["dependencies"]}
    wanted |= {name(r) for e in extras.values() for r in e}
    pins = {p.split("==")[0] for p in project["tool"]["uv"]["constraint-dependencies"]}
    assert wanted - pins == set()


def test_every_package_says_why_it_exists() -> None:
    silent = [
        str(p.relative_to(ROOT))
        for floor in FLOORS
        for p in (ROOT / floor).rglob("__init__.py")
        if "versions" not in p.parts  # alembic's own
        and not p.read_text().lstrip().startswith('"""')
    ]
    assert silent == []
