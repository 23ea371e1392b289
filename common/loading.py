"""Importing what a user's file defines: graphs, guards, validators and hooks.

Reading the graph file imports nothing; this module does, one object at a time. Gateways use it for
guards and resume validators only, the runner for everything else.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from common.errors import Misconfigured


@dataclass(frozen=True, slots=True)
class Reference:
    """`./file.py:name`, resolved: an object in a file of the user's."""

    file: Path
    name: str
    roots: tuple[Path, ...] = ()
    """Folders that the file's own imports are looked up in (appended to sys.path)."""

    def __str__(self) -> str:
        return f"{self.file}:{self.name}"


def load_object(reference: Reference | str) -> Any:
    """Import the file and return the object. Raises `Misconfigured` with file and cause."""
    if isinstance(reference, str):
        reference = _absolute(reference)
    module = load_module(reference.file, reference.roots)
    try:
        return getattr(module, reference.name)
    except AttributeError as error:
        raise Misconfigured(f"{reference.file} has no {reference.name!r}") from error


def load_module(file: Path, roots: Iterable[Path] = ()) -> ModuleType:
    """Import a file once: under its dotted name where that finds it, else under a name of ours.

    The dotted name makes relative imports work and shares the module with whoever imports it. Two
    graph files called alike in different folders never meet: a name that leads to another file is
    not used. Our name depends on the file's place below the roots only, so that classes in
    checkpoints are found again by every process.
    """
    roots = tuple(roots) or (file.parent,)
    sys.path.extend(str(root) for root in roots if str(root) not in sys.path)
    importlib.invalidate_caches()
    try:
        dotted = _importable(file, roots)
        return importlib.import_module(dotted) if dotted else _by_path(file, roots)
    except (Exception, SystemExit) as error:  # whatever a user's module does when it is imported
        raise Misconfigured(f"{file} cannot be imported: {cause(error)}") from error


def cause(error: BaseException) -> str:
    """One bounded line: the kind of an error and its first words."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _absolute(text: str) -> Reference:
    place, _, name = text.rpartition(":")
    file = Path(place).resolve()
    if not file.is_file() or not name.isidentifier():
        raise Misconfigured(f"{text}: must read './file.py:name' and the file must exist")
    return Reference(file, name)


def _importable(file: Path, roots: Iterable[Path]) -> str | None:
    """The dotted name under which Python's import finds exactly this file, if there is one."""
    for root in roots:
        if not file.is_relative_to(root):
            continue
        parts = _module_path(file.relative_to(root))
        if parts and all(part.isidentifier() for part in parts):
            spec = _find_spec(".".join(parts))
            if spec and spec.origin and Path(spec.origin).resolve() == file:
                return spec.name
    return None


def _module_path(below: Path) -> tuple[str, ...]:
    return below.parent.parts if below.name == "__init__.py" else below.with_suffix("").parts


def _find_spec(dotted: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(dotted)
    except (ModuleNotFoundError, ValueError):  # a parent is no package; a module without a spec
        return None


def _by_path(file: Path, roots: Iterable[Path]) -> ModuleType:
    base = next((root for root in roots if file.is_relative_to(root)), file.parent)
    place = blake2b(file.relative_to(base).as_posix().encode(), digest_size=6).hexdigest()
    name = f"steadyrun_user_{file.stem}_{place}"
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(file):
        return loaded
    return _execute(name, file)


def _execute(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
