"""nginx in front of the gateways: the templates of nginx/ filled in, and the process.

The templates use `${NAME}` for ours and `$name` for nginx's own variables, so the same files work
with string.Template here and with envsubst in the official image.
"""

import re
import resource
import signal
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from deploy.binaries import find_nginx
from deploy.child import Child
from deploy.probe import is_answering
from deploy.process import Command, group_members, kill_group, read_pid, stop_leftover
from deploy.state import LOOPBACK, StateFolder

PLAIN = "steadyrun.conf.template"
TLS = "steadyrun-tls.conf.template"


def template(name: str) -> str:
    """From the repository's nginx folder, or from where the wheel keeps it."""
    installed = Path(str(files("deploy"))) / "nginx_templates" / name
    source = Path(str(files("deploy"))).parent / "nginx" / name
    return (installed if installed.exists() else source).read_text()


def render(name: str, values: Mapping[str, str]) -> str:
    """Raises KeyError when the template asks for a value that is not given."""
    text = Template(template(name)).safe_substitute(values)
    if missing := re.findall(r"\$\{([A-Z_]+)\}", text):
        raise KeyError(f"{name} needs {', '.join(sorted(set(missing)))}")
    return text


def values_for(
    *, listen: str, gateways: Sequence[str], workers: int, connections: int
) -> dict[str, str]:
    """What `up` fills in; every path is relative to nginx's prefix."""
    servers = (f"server {address} max_fails=3 fail_timeout=1s;" for address in gateways)
    return {
        "LISTEN": listen,
        "GATEWAY_SERVERS": "\n    ".join(servers),
        "WORKER_PROCESSES": str(workers),
        "WORKER_CONNECTIONS": str(connections),
        "BODY_BYTES_MAX": str(8 << 20),
        "PID_FILE": "nginx.pid",
        "TEMP_FOLDER": "temp",
        "ACCESS_LOG": "../logs/nginx-access.log",
        "ERROR_LOG": "../logs/nginx.log",
    }


class NginxServer:
    """One nginx on loopback over gateways on loopback."""

    def __init__(self, state: StateFolder, *, port: int, gateways: Sequence[str]) -> None:
        self._folder = state.path / "nginx"
        self._log = state.log("nginx")
        self._port = port
        self._gateways = gateways
        self._server = find_nginx()

    def child(self) -> Child:
        url = f"http://{LOOPBACK}:{self._port}"
        return Child(
            name="nginx",
            role="nginx",
            command=self.command(),
            url=url,
            prepare=self.prepare,
            is_ready=lambda pid: is_answering(f"{url}/readyz"),
            patience_s=3.0,
        )

    def prepare(self) -> None:
        (self._folder / "temp").mkdir(parents=True, exist_ok=True)
        self.stop_leftovers()
        connections = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 16_384)
        values = values_for(
            listen=f"{LOOPBACK}:{self._port}",
            gateways=self._gateways,
            workers=2,
            connections=connections,
        )
        (self._folder / "nginx.conf").write_text(render(PLAIN, values))

    def command(self) -> Command:
        return Command(
            argv=[
                *(str(self._server), "-p", f"{self._folder}/", "-c", "nginx.conf"),
                *("-e", "../logs/nginx.log", "-g", "daemon off;"),
            ],
            log=self._log,
            cwd=self._folder,
            death_signal=signal.SIGTERM,
        )

    def stop_leftovers(self) -> None:
        """The workers of a killed master live on, under no name that holds our path: they are
        known by the group of the master whose pid file lies here, and by their folder."""
        if (pid := read_pid(self._folder / "nginx.pid")) is None:
            return
        stop_leftover(pid, str(self._folder), signal.SIGTERM, patience_s=3.0)
        if any(_works_in(member, self._folder) for member in group_members(pid)):
            kill_group(pid)
        (self._folder / "nginx.pid").unlink(missing_ok=True)


def _works_in(pid: int, folder: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == folder.resolve()
    except OSError:
        return False
