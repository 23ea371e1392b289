"""A system of stand-ins under the real supervisor, with the real servers and nginx.

`python -m tests.support.standin up …` is `steadyrun up …` with gateways that only answer and
runners that only wait: what is tested is how processes are kept and stopped. The environment
variable STANDIN_FAIL names a verb that fails, STANDIN_STUBBORN one that ignores SIGTERM.
"""

import argparse
import os
import re
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PROGRAM = (sys.executable, "-m", "tests.support.standin")


class Answer(BaseHTTPRequestHandler):
    """The pid of the gateway, for every path but that of another's console; a POST to /die never
    gets an answer."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = str(os.getpid()).encode()
        foreign = re.fullmatch(r"/console/\d+/.*", self.path) and body.decode() not in self.path
        self.send_response(404 if foreign else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        if self.path.startswith("/die"):
            with open(os.environ["STANDIN_DEATHS"], "a") as deaths:
                deaths.write("x")
            os._exit(9)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        return None


def up(arguments: list[str]) -> int:
    from deploy import cli, local  # only here: a stand-in starts faster without

    parser = argparse.ArgumentParser()
    for number in ("--gateways", "--runners", "--port"):
        parser.add_argument(number, type=int, default=1)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--no-nginx", dest="nginx", action="store_false")
    choices = local.Choices(**vars(parser.parse_args(arguments)))
    return cli.status_of(lambda: local.up(choices, say, PROGRAM))


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def main() -> int:
    verb = sys.argv[1]
    if os.environ.get("STANDIN_FAIL") == verb:
        sys.exit(f"steadyrun: this {verb} was told to fail")
    if os.environ.get("STANDIN_STUBBORN") == verb:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if verb == "gateway":
        port = int(os.environ["STEADYRUN_GATEWAY_PORT"])
        ThreadingHTTPServer(("127.0.0.1", port), Answer).serve_forever()
    if verb == "runner":
        os.write(2, b'{"event": "runner_started"}\n')
        threading.Event().wait()
    if verb == "up":
        return up(sys.argv[2:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
