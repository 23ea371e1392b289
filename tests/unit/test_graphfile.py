"""Reading langgraph.json (contract §8): what is refused, and that that in one clear line."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from common.errors import Misconfigured
from common.graphfile import load_object, parse


def write(folder: Path, document: Any, **files: str) -> Path:
    for name, text in {"agent": "graph = 1\n", **files}.items():
        file = folder / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    path = folder / "langgraph.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def ours(**settings: Any) -> dict[str, Any]:
    return {"graphs": {"a": "./agent.py:graph"}, "steadyrun": {"graphs": {"a": settings}}}


def refusal(path: Path) -> str:
    with pytest.raises(Misconfigured) as error:
        parse(path)
    text = str(error.value)
    assert "\n" not in text
    return text


def test_a_plain_file_gives_graphs_with_defaults(tmp_path: Path) -> None:
    file = parse(write(tmp_path, {"graphs": {"a": "./agent.py:graph", "b": "./agent.py:other"}}))
    assert list(file.graphs) == ["a", "b"]
    assert file.default == "a"
    spec = file.graphs["a"]
    assert (spec.file, spec.variable) == (tmp_path / "agent.py", "graph")
    assert (spec.interrupt_format, spec.on_reject, spec.on_expire) == ("auto", None, "cancel")
    assert (spec.interrupt_ttl_s, spec.run_timeout_s, spec.steps) == (86_400, None, True)
    assert spec.on_disconnect == "continue"


def test_our_section_is_read(tmp_path: Path) -> None:
    document = ours(
        interruptFormat="langchain-hitl",
        guard="./guards.py:guard",
        resumeValidator="./guards.py:check",
        onReject="cancel",
        onExpire="reject",
        interruptTtlS=60,
        onDisconnect="cancel",
        runTimeoutS=1.5,
        steps=False,
        input="./agent.py:input",
        context="./agent.py:context",
    )
    spec = parse(write(tmp_path, document, guards="def guard(): ...\n")).graphs["a"]
    assert spec.interrupt_format == "langchain-hitl"
    assert spec.guard is not None
    assert (spec.guard.file, spec.guard.name) == (tmp_path / "guards.py", "guard")
    assert spec.resume_validator is not None
    assert (spec.on_reject, spec.on_expire, spec.interrupt_ttl_s) == ("cancel", "reject", 60)
    assert (spec.on_disconnect, spec.run_timeout_s, spec.steps) == ("cancel", 1.5, False)
    assert spec.input is not None
    assert spec.context is not None


def test_null_lets_an_interrupt_wait_for_ever(tmp_path: Path) -> None:
    assert parse(write(tmp_path, ours(interruptTtlS=None))).graphs["a"].interrupt_ttl_s is None


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{", "cannot be read"),
        ([], "must be a JSON object"),
        ({}, "'graphs' must name at least one graph"),
        ({"graphs": {}}, "'graphs' must name at least one graph"),
        ({"graphs": {"a": "./agent.py"}}, "must read './file.py:name'"),
        ({"graphs": {"a": 5}}, "must read './file.py:name'"),
        ({"graphs": {"a": "./agent.py:not a name"}}, "must read './file.py:name'"),
        ({"graphs": {"a": "./missing.py:graph"}}, "./missing.py does not exist"),
        ({"graphs": {"a": "./agent.ts:graph"}}, "is no Python file"),
        ({"graphs": {"a": "./agent.py:graph"}, "dependencies": "."}, "list of strings"),
        ({"graphs": {"a": "./agent.py:graph"}, "dependencies": ["./no"]}, "dependency"),
        ({"graphs": {"a": "./agent.py:graph"}, "env": "./.env"}, "does not exist"),
        ({"graphs": {"a": "./agent.py:graph"}, "env": ["A"]}, "'env' must be an object"),
        ({"graphs": {"a": "./agent.py:graph"}, "env": {"A=B": "x"}}, "no process can have"),
        ({"graphs": {"a": "./agent.py:graph"}, "env": {"": "x"}}, "no process can have"),
        ({"graphs": {"a": "./agent.py:graph"}, "env": {"A": "x\0"}}, "no process can have"),
        ({"graphs": {"a": "./agent.py:graph"}, "steadyrun": []}, "'steadyrun' must be"),
        ({"graphs": {"a": "./agent.py:graph"}, "steadyrun": {"x": 1}}, "one key 'graphs'"),
        (
            {"graphs": {"a": "./agent.py:graph"}, "steadyrun": {"graphs": {"b": {}}}},
            "names 'b', which is no graph",
        ),
        (ours(gaurd="./agent.py:guard"), "unknown key 'gaurd'"),
        (ours(interruptFormat="hitl"), "interruptFormat must be one of auto, opaque"),
        (ours(interruptFormat=["auto"]), "interruptFormat must be one of"),
        (ours(onReject="stop"), "onReject must be one of cancel, continue"),
        (ours(onExpire="continue"), "onExpire must be one of cancel, reject"),
        (ours(onDisconnect=True), "onDisconnect must be one of"),
        (ours(interruptTtlS=0), "interruptTtlS must be a positive number"),
        (ours(interruptTtlS=True), "interruptTtlS must be a positive number"),
        (ours(runTimeoutS="1h"), "runTimeoutS must be a positive number"),
        (ours(steps="yes"), "steps must be true or false"),
        (ours(guard="guards.guard"), "guard must read"),
    ],
)
def test_what_is_wrong_is_refused_with_file_and_cause(
    tmp_path: Path, document: Any, words: str
) -> None:
    path = write(tmp_path, document)
    text = refusal(path)
    assert words in text
    assert str(path) in text


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "langgraph.json")


def test_unknown_keys_of_langgraph_are_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    document = {"graphs": {"a": "./agent.py:graph"}, "python_version": "3.12", "$schema": "x"}
    with caplog.at_level(logging.WARNING):
        parse(write(tmp_path, document))
    assert [r.getMessage().partition(": ")[2] for r in caplog.records] == [
        "key 'python_version' is ignored"
    ]


def test_an_entry_may_be_an_object_with_a_path(tmp_path: Path) -> None:
    document = {"graphs": {"a": {"path": "./agent.py:graph", "description": "x"}}}
    assert parse(write(tmp_path, document)).graphs["a"].variable == "graph"


def test_a_dotted_module_is_looked_up_in_folder_and_dependencies(tmp_path: Path) -> None:
    document = {"graphs": {"a": "pkg.flow:graph"}, "dependencies": ["./lib", "langchain"]}
    path = write(tmp_path, document, **{"lib/pkg/flow": "graph = 7\n", "lib/pkg/__init__": ""})
    spec = parse(path).graphs["a"]
    assert spec.file == tmp_path / "lib/pkg/flow.py"


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([], "factPermissions must be an object"),
        ({"a b": "hr.view"}, "'a b' is no key of a fact"),
        ({"*a": "hr.view"}, "'*a' is no key of a fact"),
        ({"salary": ""}, "salary must name a permission"),
        ({"salary": ["hr.view"]}, "salary must name a permission"),
    ],
)
def test_who_may_see_a_fact_is_said_by_keys_and_permissions(
    tmp_path: Path, rules: Any, words: str
) -> None:
    def file(value: Any) -> Path:
        ours = {"graphs": {"a": {"factPermissions": value}}}
        return write(tmp_path, {"graphs": {"a": "./agent.py:graph"}, "steadyrun": ours})

    assert words in refusal(file(rules))
    good = {"salary": "hr.view", "note.*": "notes", "*": "facts"}
    assert parse(file(good)).graphs["a"].fact_permissions == good


@pytest.mark.parametrize("name", ["gateway", "runner", "common", "deploy"])
@pytest.mark.parametrize("shape", ["{}", "{}/__init__"])
def test_a_module_called_like_one_of_ours_is_refused(tmp_path: Path, name: str, shape: str) -> None:
    path = write(tmp_path, {"graphs": {"a": "./agent.py:graph"}}, **{shape.format(name): ""})
    assert "has the name of a package of Steadyrun; rename it" in refusal(path)


def test_a_folder_without_modules_may_be_called_like_one_of_ours(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy" / "chart.yaml").write_text("a: 1")
    assert parse(write(tmp_path, {"graphs": {"a": "./agent.py:graph"}})).default == "a"


def test_env_comes_from_an_object_or_a_file_and_the_process_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEADYRUN_TEST_A", "kept")
    monkeypatch.setenv("STEADYRUN_TEST_B", "x")
    monkeypatch.delenv("STEADYRUN_TEST_B")
    (tmp_path / "vars").write_text("STEADYRUN_TEST_A=lost\nSTEADYRUN_TEST_B='b c'\n")
    document = {"graphs": {"a": "./agent.py:graph"}, "env": "./vars"}
    file = parse(write(tmp_path, document))
    file.apply_env()
    assert (os.environ["STEADYRUN_TEST_A"], os.environ["STEADYRUN_TEST_B"]) == ("kept", "b c")
    assert "b c" not in repr(file)
    document = {"graphs": {"a": "./agent.py:graph"}, "env": {"N": 5}}
    assert parse(write(tmp_path, document)).env == {"N": "5"}


def test_an_object_is_loaded_by_reference_or_by_absolute_text(tmp_path: Path) -> None:
    file = tmp_path / "guards.py"
    file.write_text("def guard(): return 'mine'\n")
    path = write(tmp_path, ours(guard="./guards.py:guard"))
    reference = parse(path).graphs["a"].guard
    assert reference is not None
    assert load_object(reference)() == "mine"
    assert load_object(f"{file}:guard") is load_object(reference)


def test_a_name_that_the_file_does_not_define_is_told(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="has no 'gone'"):
        load_object(parse(write(tmp_path, {"graphs": {"a": "./agent.py:gone"}})).graphs["a"].graph)


def test_a_file_that_cannot_be_imported_is_told_with_the_cause(tmp_path: Path) -> None:
    path = write(tmp_path, {"graphs": {"a": "./bad.py:x"}}, bad="import no_such_module_here\n")
    with pytest.raises(Misconfigured, match=r"bad\.py cannot be imported: ModuleNotFoundError"):
        load_object(parse(path).graphs["a"].graph)


def test_a_file_that_exits_when_it_is_imported_does_not_end_the_process(tmp_path: Path) -> None:
    path = write(tmp_path, {"graphs": {"a": "./bye.py:x"}}, bye="raise SystemExit(3)\n")
    with pytest.raises(Misconfigured, match="SystemExit"):
        load_object(parse(path).graphs["a"].graph)


def test_files_called_alike_in_two_folders_are_two_modules(tmp_path: Path) -> None:
    document = {"graphs": {"a": "./one/flow.py:x", "b": "./two/flow.py:x"}}
    path = write(tmp_path, document, **{"one/flow": "x = 1\n", "two/flow": "x = 2\n"})
    graphs = parse(path).graphs
    assert [load_object(graphs[name].graph) for name in "ab"] == [1, 2]


def test_a_file_called_like_an_installed_package_is_still_the_users(tmp_path: Path) -> None:
    path = write(tmp_path, {"graphs": {"a": "./json.py:x"}}, json="x = 'user'\n")
    assert load_object(parse(path).graphs["a"].graph) == "user"


def test_relative_and_sibling_imports_work(tmp_path: Path) -> None:
    document = {"graphs": {"a": "./relative_pkg/flow.py:x"}}
    path = write(
        tmp_path,
        document,
        **{
            "relative_pkg/__init__": "",
            "relative_pkg/flow": "from .part import y\nfrom sibling_module import z\nx = y + z\n",
            "relative_pkg/part": "y = 20\n",
            "sibling_module": "z = 3\n",
        },
    )
    assert load_object(parse(path).graphs["a"].graph) == 23


def test_a_module_is_imported_once(tmp_path: Path) -> None:
    source = "import itertools\ncount = []\ncount.append(1)\n"
    path = write(tmp_path, {"graphs": {"a": "./my-flow.py:count"}}, **{"my-flow": source})
    reference = parse(path).graphs["a"].graph
    assert load_object(reference) is load_object(reference)


def test_a_file_of_variables_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "agent.py").touch()
    (tmp_path / "vars").write_bytes(b"KEY=\xff\xfe")
    file = tmp_path / "langgraph.json"
    file.write_text('{"graphs": {"a": "./agent.py:graph"}, "env": "./vars"}')
    with pytest.raises(Misconfigured, match="vars, which cannot be read"):
        parse(file)


def test_a_setting_among_the_variables_of_graphs_is_told_to_be_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "agent.py").touch()
    file = tmp_path / "langgraph.json"
    env = {"STEADYRUN_LEASE_TTL_S": "hunter2", "STEADYRUN_OPSPILOT_MODEL": "x", "OTHER": "y"}
    file.write_text(json.dumps({"graphs": {"a": "./agent.py:graph"}, "env": env}))
    with caplog.at_level(logging.WARNING):
        assert parse(file).env == env
    [told] = [record.getMessage() for record in caplog.records]
    assert "STEADYRUN_LEASE_TTL_S is a setting" in told
    assert "hunter2" not in told
