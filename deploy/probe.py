"""Whether something answers over HTTP."""

import http.client
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
