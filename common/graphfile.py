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
from typing import Any

from dotenv import dotenv_values

from common.environment import VARIABLES
from common.errors import Misconfigured
from common.graphspec import (
    INTERRUPT_TTL_S,
    KEYS,
    Entry,
    GraphSpec,
    InterruptFormat,
    OnDisconnect,
    OnExpire,
    OnReject,
)
from common.loading import Reference, cause, load_object

__all__ = [
    "INTERRUPT_TTL_S",
    "KEYS",
    "GraphFile",
    "GraphSpec",
    "InterruptFormat",
    "OnDisconnect",
    "OnExpire",
    "OnReject",
    "Reference",
    "load_object",
    "parse",
]

log = logging.getLogger(__name__)

OUR_PACKAGES = ("gateway", "runner", "common", "deploy")
_KNOWN = frozenset({"$schema", "graphs", "dependencies", "env", "steadyrun"})


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
        name: Entry(path, roots, name).spec(entry, ours.get(name, {}))
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


def _env(path: Path, document: Mapping[str, Any]) -> dict[str, str]:
    """Variables as an object, or the name of a file in dotenv format."""
    env = document.get("env", {})
    if isinstance(env, str):
        file = path.parent / env
        if not file.is_file():
            raise Misconfigured(f"{path}: 'env' names {file}, which does not exist")
        env = _dotenv(path, file)
    if not isinstance(env, dict):
        raise Misconfigured(f"{path}: 'env' must be an object or the name of a file")
    named = {str(name): str(value) for name, value in env.items() if value is not None}
    for name, value in named.items():
        if not name or "=" in name or "\0" in name + value:
            raise Misconfigured(f"{path}: 'env' has a variable that no process can have: {name!r}")
        if name.upper() in VARIABLES:
            log.warning("%s: env: %s is a setting; it counts in a process's own", path, name)
    return named


def _dotenv(path: Path, file: Path) -> Mapping[str, str | None]:
    try:
        return dotenv_values(file)
    except (OSError, UnicodeDecodeError) as error:  # a decoder's words would quote the file
        raise Misconfigured(f"{path}: 'env' names {file}, which cannot be read") from error
