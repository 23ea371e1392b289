"""The state folder of `steadyrun up`: data, logs, secrets and ports that outlive a start.

One `up` at a time, held by a lock that ends with its process. Only the owner can read a secret;
when we are root the folder itself can be passed through, since Postgres runs as somebody else.
"""

import fcntl
import json
import os
import random
import secrets
import socket
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.errors import Misconfigured

LOOPBACK = "127.0.0.1"
# below the range from which kernels take the ports of outgoing connections, so that the port of a
# dead child is not taken by somebody's client before it is back
PORTS = range(20_000, 32_000)


@dataclass
class Memory:
    """What a state folder remembers."""

    postgres_password: str = field(default_factory=secrets.token_hex)
    redis_password: str = field(default_factory=secrets.token_hex)
    jwt_secret: str = field(default_factory=secrets.token_hex)
    place: str = field(default_factory=lambda: secrets.token_hex(4))  # names data kept elsewhere
    ports: dict[str, int] = field(default_factory=dict)


class StateFolder:
    """An opened, locked state folder."""

    def __init__(self, path: Path, memory: Memory) -> None:
        self.path = path
        self.memory = memory
        self.logs = path / "logs"
        self.topology = path / "topology.json"

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator["StateFolder"]:
        """Raises Misconfigured when the folder is not usable or another `up` has it."""
        path = path.absolute()
        with ExitStack() as held:
            try:
                state = cls._lock(path, held)
            except BlockingIOError:
                raise Misconfigured(
                    f"another `steadyrun up` is using {path}: stop it, or name a folder by --state"
                ) from None
            except OSError as error:
                raise Misconfigured(
                    f"cannot use the state folder {path}: {error.strerror}"
                    f" ({error.filename or path}); make room or name another by --state"
                ) from error
            yield state

    @classmethod
    def _lock(cls, path: Path, held: ExitStack) -> "StateFolder":
        path.mkdir(parents=True, exist_ok=True)
        lock = held.enter_context((path / "lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.chmod(0o711 if os.geteuid() == 0 else 0o700)
        state = cls(path, _remembered(path / "secrets.json"))
        state.logs.mkdir(mode=0o700, exist_ok=True)
        state.save()
        return state

    def save(self) -> None:
        write_private(self.path / "secrets.json", json.dumps(asdict(self.memory)))

    def port(self, name: str) -> int:
        """The port `name` had before if it is free, so that addresses outlive a restart."""
        port = self.memory.ports.get(name, 0)
        if not port or not is_port_free(port):
            port = self.memory.ports[name] = free_port(avoid=self.memory.ports.values())
            self.save()
        return port

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"


def write_private(path: Path, text: str) -> None:
    """Replace a file as a whole, readable by its owner only."""
    handle, work = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(work).replace(path)
    except BaseException:
        Path(work).unlink(missing_ok=True)
        raise


def is_port_free(port: int, host: str = LOOPBACK) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(avoid: Collection[int] = ()) -> int:
    for port in random.sample(PORTS, k=200):
        if port not in avoid and is_port_free(port):
            return port
    raise Misconfigured(f"no free port between {PORTS.start} and {PORTS.stop} on {LOOPBACK}")


def _remembered(file: Path) -> Memory:
    if not file.exists():
        _refuse_locked_out_data(file.parent)
        return Memory()
    try:
        known: dict[str, Any] = json.loads(file.read_text())
        return Memory(**known)
    except (ValueError, TypeError) as error:
        raise Misconfigured(f"{file} is damaged: restore it, or choose another --state") from error


def _refuse_locked_out_data(folder: Path) -> None:
    if any(folder.glob("pg[0-9]*")):
        raise Misconfigured(
            f"{folder} holds a database but not its password (secrets.json is missing):"
            " restore that file, or choose another --state"
        )
