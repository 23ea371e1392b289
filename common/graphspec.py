"""One graph of the graph file, and what our section says about it (contract §8).

`Entry` reads and checks it. Strictly: a misspelt key would silently switch off a guard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from common import facts
from common.errors import Misconfigured
from common.loading import Reference

InterruptFormat = Literal["auto", "opaque", "langchain-hitl", "agent-inbox"]
OnReject = Literal["cancel", "continue"]
OnExpire = Literal["cancel", "reject"]
OnDisconnect = Literal["continue", "cancel"]

INTERRUPT_TTL_S = 86_400.0


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
class Entry:
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
