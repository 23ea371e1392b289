"""The graph file, `langgraph.json` as the LangGraph ecosystem writes it (contract §8).

`parse` reads and checks the file and imports no user code: gateways know the graphs without
loading them. `load_object` (common/loading) imports one object by its reference.

What LangGraph's own tools understand and we do not is ignored with a warning. Our section,
`steadyrun.graphs`, is checked strictly, because a misspelt key there would silently switch off a
guard. Every refusal is `Misconfigured` with one line that names the file and the graph.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from dotenv import dotenv_values

from common import facts
from common.errors import Misconfigured
from common.loading import Reference, cause, load_object

__all__ = ["GraphFile", "GraphSpec", "Reference", "load_object", "parse"]

log = logging.getLogger(__name__)

InterruptFormat = Literal["auto", "opaque", "langchain-hitl", "agent-inbox"]
OnReject = Literal["cancel", "continue"]
OnExpire = Literal["cancel", "reject"]
OnDisconnect = Literal["continue", "cancel"]

INTERRUPT_TTL_S = 86_400.0
OUR_PACKAGES = ("gateway", "runner", "common", "deploy")
_KNOWN = frozenset({"$schema", "graphs", "dependencies", "env", "steadyrun"})


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """One graph and what the `steadyrun` section says about it. `None`: the format's default."""

    name: str
    graph: Reference
    interrupt_format: InterruptFormat = "auto"
    guard: Reference | None = None
    resume_validator: Reference | None = None
    on_reject: OnReject | None = None
    on_expire: OnExpire = "cancel"
    interrupt_ttl_s: float | None = INTERRUPT_TTL_S
    on_disconnect: OnDisconnect = "continue"
    run_timeout_s: float | None = None
    steps: bool = True
    input: Reference | None = None
    context: Reference | None = None
    fact_permissions: Mapping[str, str] = field(default_factory=dict)
    """`common/facts.Rules`."""

    @property
    def file(self) -> Path:
        return self.graph.file

    @property
    def variable(self) -> str:
        return self.graph.name


@dataclass(frozen=True, slots=True)
class GraphFile:
    """The whole file. `env` may hold secrets and stays out of every representation."""

    path: Path
    graphs: Mapping[str, GraphSpec]
    default: str
    dependencies: tuple[Path, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    def apply_env(self) -> None:
        """Set the file's variables for graphs to read; what the process was given wins."""
        for name, value in self.env.items():
            os.environ.setdefault(name, value)


def parse(path: str | Path) -> GraphFile:
    """Read the graph file. The first graph is the default one."""
    path = Path(path).resolve()
    document = _read(path)
    _warn_of_unknown(path, document)
    roots = _roots(path, document)
    _refuse_shadows(path, roots)
    graphs = _graphs(path, document, roots)
    return GraphFile(path, graphs, next(iter(graphs)), roots, _env(path, document))


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise Misconfigured(
            f"{path} does not exist; name a graph file by STEADYRUN_GRAPHS, or by --graphs of `up`"
        ) from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise Misconfigured(f"{path} cannot be read: {cause(error)}") from error
    if not isinstance(document, dict):
        raise Misconfigured(f"{path}: must be a JSON object")
    return document


def _warn_of_unknown(path: Path, document: Mapping[str, Any]) -> None:
    for key in sorted(document.keys() - _KNOWN):
        log.warning("%s: key %r is ignored", path, key)


def _roots(path: Path, document: Mapping[str, Any]) -> tuple[Path, ...]:
    """The file's folder and the local dependencies; packages by name are for an installer."""
    names = document.get("dependencies", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Misconfigured(f"{path}: 'dependencies' must be a list of strings")
    local = [(path.parent / name).resolve() for name in names if name.startswith((".", "/"))]
    for folder in local:
        if not folder.exists():
            raise Misconfigured(f"{path}: dependency {folder} does not exist")
    folders = [path.parent, *(folder for folder in local if folder.is_dir())]
    return tuple(dict.fromkeys(folders))


def _refuse_shadows(path: Path, roots: Iterable[Path]) -> None:
    """A user's module called like one of our packages: the two could not both be imported."""
    ours = Path(__file__).resolve().parent.parent
    for root in roots:
        for name in OUR_PACKAGES:
            found = [f for f in (root / f"{name}.py", root / name / "__init__.py") if f.exists()]
            if found and root != ours:
                raise Misconfigured(
                    f"{path}: {found[0]} has the name of a package of Steadyrun; rename it"
                )


def _graphs(
    path: Path, document: Mapping[str, Any], roots: tuple[Path, ...]
) -> dict[str, GraphSpec]:
    entries = document.get("graphs")
    if not isinstance(entries, dict) or not entries:
        raise Misconfigured(f"{path}: 'graphs' must name at least one graph")
    ours = _section(path, document, entries)
    specs = {
        name: _Parser(path, roots, name).spec(entry, ours.get(name, {}))
        for name, entry in entries.items()
    }
    _refuse_shared(path, specs)
    return specs


def _refuse_shared(path: Path, specs: Mapping[str, GraphSpec]) -> None:
    """Gateways load guards and resume validators, and must not load a graph with them."""
    files = {spec.file for spec in specs.values()}
    for name, spec in specs.items():
        for key, reference in (("guard", spec.guard), ("resumeValidator", spec.resume_validator)):
            if reference is not None and reference.file in files:
                raise Misconfigured(
                    f"{path}: graph {name!r}: {key}: {reference.file} holds a graph; put it into a"
                    " file of its own, since gateways load it and no graph"
                )


def _section(
    path: Path, document: Mapping[str, Any], entries: Mapping[str, Any]
) -> dict[str, Mapping[str, Any]]:
    section = document.get("steadyrun", {})
    if not isinstance(section, dict) or section.keys() - {"graphs"}:
        raise Misconfigured(f"{path}: 'steadyrun' must be an object with the one key 'graphs'")
    graphs = section.get("graphs", {})
    if not isinstance(graphs, dict):
        raise Misconfigured(f"{path}: 'steadyrun.graphs' must be an object")
    for name in graphs:
        if name not in entries:
            raise Misconfigured(f"{path}: 'steadyrun.graphs' names {name!r}, which is no graph")
        if not isinstance(graphs[name], dict):
            raise Misconfigured(f"{path}: 'steadyrun.graphs.{name}' must be an object")
    return graphs


@dataclass(frozen=True, slots=True)
class _Parser:
    """Reads one graph's entries; knows what to name in a refusal."""

    path: Path
    roots: tuple[Path, ...]
    name: str

    def spec(self, entry: Any, ours: Mapping[str, Any]) -> GraphSpec:
        place = entry.get("path") if isinstance(entry, dict) else entry
        if unknown := sorted(ours.keys() - KEYS):
            raise self.wrong(f"unknown key {unknown[0]!r}; known are {', '.join(sorted(KEYS))}")
        return GraphSpec(
            name=self.name,
            graph=self.reference(place),
            interrupt_format=cast("InterruptFormat", self.choice(ours, "interruptFormat", "auto")),
            guard=self.optional(ours, "guard"),
            resume_validator=self.optional(ours, "resumeValidator"),
            on_reject=cast("OnReject | None", self.choice(ours, "onReject", None)),
            on_expire=cast("OnExpire", self.choice(ours, "onExpire", "cancel")),
            interrupt_ttl_s=self.seconds(ours, "interruptTtlS", INTERRUPT_TTL_S),
            on_disconnect=cast("OnDisconnect", self.choice(ours, "onDisconnect", "continue")),
            run_timeout_s=self.seconds(ours, "runTimeoutS", None),
            steps=self.flag(ours, "steps"),
            input=self.optional(ours, "input"),
            context=self.optional(ours, "context"),
            fact_permissions=self.permissions(ours, "factPermissions"),
        )

    def wrong(self, what: str) -> Misconfigured:
        return Misconfigured(f"{self.path}: graph {self.name!r}: {what}")

    def choice(self, ours: Mapping[str, Any], key: str, default: str | None) -> str | None:
        value: str | None = ours.get(key, default)
        if value != default and value not in _CHOICES[key]:
            raise self.wrong(f"{key} must be one of {', '.join(_CHOICES[key])}")
        return value

    def seconds(self, ours: Mapping[str, Any], key: str, default: float | None) -> float | None:
        """A positive number; null where there is no limit."""
        value = ours.get(key, default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise self.wrong(f"{key} must be a positive number of seconds")
        return float(value)

    def flag(self, ours: Mapping[str, Any], key: str) -> bool:
        value = ours.get(key, True)
        if not isinstance(value, bool):
            raise self.wrong(f"{key} must be true or false")
        return value

    def permissions(self, ours: Mapping[str, Any], key: str) -> Mapping[str, str]:
        """Keys of facts, or beginnings with `*`, and the permission that seeing them needs."""
        value = ours.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(f"{key} must be an object")
        for pattern, permission in value.items():
            if not facts.is_pattern(pattern):
                raise self.wrong(f"{key}: {pattern!r} is no key of a fact nor the beginning of one")
            if not isinstance(permission, str) or not permission:
                raise self.wrong(f"{key}: {pattern} must name a permission")
        return value

    def optional(self, ours: Mapping[str, Any], key: str) -> Reference | None:
        return None if ours.get(key) is None else self.reference(ours[key], key)

    def reference(self, text: Any, key: str = "graphs") -> Reference:
        """`./file.py:name` relative to the graph file, or `package.module:name`."""
        place, colon, name = text.rpartition(":") if isinstance(text, str) else ("", "", "")
        if not colon or not place or not name.isidentifier():
            raise self.wrong(f"{key} must read './file.py:name'")
        file = self.file(place)
        if file is None:
            raise self.wrong(f"{place} does not exist or is no Python file")
        return Reference(file, name, self.roots)

    def file(self, place: str) -> Path | None:
        if place.endswith(".py") or "/" in place:
            file = (self.path.parent / place).resolve()
            return file if file.suffix == ".py" and file.is_file() else None
        below = Path(*place.split("."))
        found = (root / end for root in self.roots for end in _module_files(below))
        return next((file for file in found if file.is_file()), None)


_CHOICES: Mapping[str, tuple[str, ...]] = {
    "interruptFormat": ("auto", "opaque", "langchain-hitl", "agent-inbox"),
    "onReject": ("cancel", "continue"),
    "onExpire": ("cancel", "reject"),
    "onDisconnect": ("continue", "cancel"),
}
KEYS = frozenset(_CHOICES) | {
    "guard",
    "resumeValidator",
    "interruptTtlS",
    "runTimeoutS",
    "steps",
    "input",
    "context",
    "factPermissions",
}


def _module_files(below: Path) -> tuple[Path, Path]:
    return below.with_suffix(".py"), below / "__init__.py"


def _env(path: Path, document: Mapping[str, Any]) -> dict[str, str]:
    """Variables as an object, or the name of a file in dotenv format."""
    env = document.get("env", {})
    if isinstance(env, str):
        file = path.parent / env
        if not file.is_file():
            raise Misconfigured(f"{path}: 'env' names {file}, which does not exist")
        env = dotenv_values(file)
    if not isinstance(env, dict):
        raise Misconfigured(f"{path}: 'env' must be an object or the name of a file")
    return {str(name): str(value) for name, value in env.items() if value is not None}
