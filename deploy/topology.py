"""topology.json: what runs where, kept true while `up` runs (contract §7)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from deploy.state import write_private

Role = Literal["postgres", "redis", "nginx", "gateway", "runner"]
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True)
class Process:
    name: str
    role: Role
    pid: int
    url: str | None = None


@dataclass(frozen=True)
class Topology:
    url: str
    database_url: str
    redis_url: str
    jwt_secret: str
    processes: Sequence[Process] = ()

    def of(self, role: Role) -> list[Process]:
        return [p for p in self.processes if p.role == role]

    def write(self, file: Path) -> None:
        """Holds secrets: mode 0600, replaced as a whole so that readers never see half of it."""
        write_private(file, json.dumps(_wire(self), indent=2) + "\n")

    @classmethod
    def read(cls, file: Path) -> "Topology":
        """Raises OSError when there is none, ValueError when it is not one."""
        raw = json.loads(file.read_text())
        try:
            return cls(
                url=raw["url"],
                database_url=raw["databaseUrl"],
                redis_url=raw["redisUrl"],
                jwt_secret=raw["jwtSecret"],
                processes=[Process(**p) for p in raw["processes"]],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{file} is not a topology") from error


def _wire(topology: Topology) -> dict[str, Any]:
    return {
        "url": topology.url,
        "databaseUrl": topology.database_url,
        "redisUrl": topology.redis_url,
        "jwtSecret": topology.jwt_secret,
        "processes": [
            {k: v for k, v in vars(p).items() if v is not None} for p in topology.processes
        ],
    }
