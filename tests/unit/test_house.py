"""The rules of the house that no tool checks by itself."""

import re
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


@pytest.mark.parametrize(
    "path", sorted((ROOT / "deploy" / "adr").glob("*.md")), ids=lambda p: p.name
)
def test_a_decision_record_is_short_and_names_what_enforces_it(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 60
    assert lines[0].startswith(f"# {path.name[:4]} ")
    heads = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    assert heads == ["Context", "Decision", "Consequences", "Alternatives", "Enforced by"]
    enforced = path.read_text(encoding="utf-8").split("## Enforced by")[1]
    tests = re.findall(r"`(tests/[\w/]+\.py)`", enforced)
    assert tests
    assert all((ROOT / test).exists() for test in tests)
