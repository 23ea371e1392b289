"""A TCP proxy whose streams can die without a word, as behind a router that has forgotten them.

Threads, since Playwright's loop has the test's own one. Other connections are passed on.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

_PIECE = 1 << 16


class Silence:
    """`streams` were opened through it; what reached one after its death counts as `swallowed`."""

    def __init__(self, url: str) -> None:
        target = urlsplit(url)
        self._target = (target.hostname, target.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.streams = self.swallowed = self._dead = 0

    def fall_silent(self) -> None:
        """Every stream that was opened so far; later ones live."""
        self._dead = self.streams

    def serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._link, args=(client,), daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _link(self, client: socket.socket) -> None:
        """One connection, for one request after the other; with a stream on it, for that alone."""
        number = [0]
        with contextlib.suppress(OSError), client, socket.create_connection(self._target) as server:
            back = threading.Thread(target=self._answer, args=(server, client, number), daemon=True)
            back.start()
            while asked := client.recv(_PIECE):
                if b"/events?after=" in asked and b"text/event-stream" in asked:
                    self.streams += 1
                    number[0] = self.streams
                server.sendall(asked)

    def _answer(self, server: socket.socket, client: socket.socket, number: list[int]) -> None:
        with contextlib.suppress(OSError):
            while said := server.recv(_PIECE):
                if 0 < number[0] <= self._dead:
                    self.swallowed += len(said)
                else:
                    client.sendall(said)
            client.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def between(url: str) -> Iterator[Silence]:
    proxy = Silence(url)
    threading.Thread(target=proxy.serve, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.close()
