"""Whether a child is ready: it answers over HTTP, or its log says so."""

import http.client
import sys
from pathlib import Path
from urllib.parse import urlsplit


def is_answering(url: str, timeout_s: float = 1.0) -> bool:
    """True for an answer of status 200."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class LogWord:
    """Whether a word has come into a log since `begin`, for a process that speaks no HTTP."""

    def __init__(self, log: Path, word: str) -> None:
        self._log = log
        self._word = word.encode()
        self._from = 0

    def begin(self) -> None:
        self._from = self._log.stat().st_size if self._log.exists() else 0

    def has_come(self) -> bool:
        with self._log.open("rb") as log:
            log.seek(self._from)
            return self._word in log.read()


def main(urls: list[str]) -> int:
    """For health checks of containers: 0 when one of them answers."""
    return 0 if any(is_answering(url) for url in urls) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
