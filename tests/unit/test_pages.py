"""What the pages for people say of commands, routes, codes, metrics and scenarios is so."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from deploy.cli import cli
from deploy.drill.scenarios import SCENARIOS
from deploy.readme import all_metrics
from tests.support.manifests import ROOT

DOCS, RECORDS = ROOT / "deploy" / "docs", ROOT / "deploy" / "adr"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(RECORDS.glob("*.md"))]
COMMANDS = typer.main.get_command(cli).commands  # type: ignore[attr-defined]
NOT_OURS = re.compile(r"OOM|OTEL_.*|TEST_.*|STEADYRUN_.*")  # the last: see test_manifests
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def quoted(page: Path) -> list[str]:
    """What stands in backticks, and each line of indented or fenced code."""
    text = page.read_text(encoding="utf-8")
    return [*re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text), *code(text)]


def code(text: str) -> Iterator[str]:
    fenced = False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if fenced or line.startswith("    "):
            yield line.strip()


def program() -> str:
    """All code that runs, as one text."""
    listed = subprocess.run(
        ["git", "ls-files", "gateway", "runner", "common", "deploy"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    kinds = (".py", ".js", ".lua")
    return "\n".join(
        (ROOT / name).read_text(encoding="utf-8")
        for name in listed.stdout.split()
        if name.endswith(kinds)
    )


@each_page
def test_commands_are_named_as_they_can_be_typed(page: Path) -> None:
    for said in quoted(page):
        for verb, rest in re.findall(r"(?:^|(?<!-n)[\s(/])steadyrun ([a-z]+)\b([^|;&#)]*)", said):
            assert verb in COMMANDS, said
            options = {o for p in COMMANDS[verb].params for o in (*p.opts, *p.secondary_opts)}
            assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", rest)) <= options | {"--help"}, said


def test_the_readme_lists_every_command_and_every_option_of_up() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.split("## Commands")[1].split("\n\n")[1]
    rows = {
        verb: row for row in table.splitlines() for verb in re.findall(r"`steadyrun (\w+)", row)
    }
    assert rows.keys() == COMMANDS.keys()
    for verb in rows:
        known = {o for p in COMMANDS[verb].params for o in (*p.opts, *p.secondary_opts)}
        named = set(re.findall(r"--[a-z][\w-]*", rows[verb]))
        assert named <= known, verb
    up = {o for p in COMMANDS["up"].params for o in (p.secondary_opts or p.opts)}
    assert set(re.findall(r"--[a-z][\w-]*", rows["up"])) == up


@each_page
def test_targets_of_make_exist(page: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for said in quoted(page):
        for target in re.findall(r"(?:^|\s)make ([a-z-]+)", said):
            assert target in targets, said


@each_page
def test_routes_exist(page: Path) -> None:
    known = json.loads((ROOT / "tests" / "openapi.json").read_text())["paths"]
    routes = {(m.upper(), _shape(path)) for path, methods in known.items() for m in methods}
    for said in quoted(page):
        for method, path in re.findall(r"\b(GET|POST|PATCH|DELETE) (?:…)?(/[^\s`,]*)", said):
            shape = _shape(path.split("?")[0])
            assert any(m == method and p.endswith(shape) for m, p in routes), said


def _shape(path: str) -> str:
    return re.sub(r"\{\w+\}", "{}", path)


@each_page
def test_codes_and_constants_exist(page: Path) -> None:
    """`EFFECT_UNKNOWN` stood in a record long after it had gone."""
    running = program()
    for said in re.findall(r"`([A-Z]+(?:_[A-Z]+)*)`", page.read_text(encoding="utf-8")):
        if not NOT_OURS.fullmatch(said):
            assert re.search(rf"\b{said}\b", running), said


@each_page
def test_metrics_exist(page: Path) -> None:
    known = {metric.name for metric in all_metrics()}
    for said in re.findall(
        r"`(steadyrun_[a-z_]+)(?:\{[^}]*\})?`", page.read_text(encoding="utf-8")
    ):
        assert said in known, said


@each_page
def test_files_exist(page: Path) -> None:
    named = r"`((?:deploy|nginx|runner|common|gateway|tests)/[\w./-]*\w)`"
    for path in re.findall(named, page.read_text(encoding="utf-8")):
        assert path == "tests/output" or (ROOT / path).exists() or (ROOT / f"{path}.py").exists(), (
            path
        )


def test_the_page_of_drills_has_every_scenario() -> None:
    table = (
        (DOCS / "drill.md").read_text(encoding="utf-8").split("| scenario |")[1].split("\n\n")[0]
    )
    rows = [row.split("|")[1] for row in table.splitlines()[2:]]
    assert [name for row in rows for name in re.findall(r"`([\w-]+)`", row)] == [
        *SCENARIOS,
    ]
