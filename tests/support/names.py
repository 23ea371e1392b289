"""A name server that knows one name, as Docker's does: its addresses come and go."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_ANSWER = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x01\x00\x04"  # the asked name, A, IN, 1 s, 4 bytes


class Names:
    """Set `addresses` at any time; every question gets them all."""

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]

    def answer(self) -> None:
        """Until it is closed."""
        while True:
            try:
                question, client = self._socket.recvfrom(512)
            except OSError:
                return
            self._socket.sendto(self._reply(question), client)

    def close(self) -> None:
        self._socket.close()

    def _reply(self, question: bytes) -> bytes:
        end = question.index(b"\x00", 12) + 5
        found = self.addresses
        head = question[:2] + b"\x81\x80\x00\x01" + len(found).to_bytes(2, "big") + bytes(4)
        return head + question[12:end] + b"".join(_ANSWER + socket.inet_aton(a) for a in found)


@contextmanager
def answering(addresses: list[str]) -> Iterator[Names]:
    names = Names(addresses)
    thread = threading.Thread(target=names.answer, daemon=True)
    thread.start()
    try:
        yield names
    finally:
        names.close()
