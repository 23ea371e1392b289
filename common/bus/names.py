"""The names of every key and channel in Redis; nothing else makes one.

All keys of a run and its channel carry the run's id in braces: one hash tag, so that a cluster
keeps them in one slot and a script may touch them together. A prefix separates installations (and
tests) that share a server: channels know nothing of database numbers.
"""

from hashlib import blake2b


def log_key(prefix: str, run_id: str) -> str:
    """The stream: one entry a batch, entry id `<last>-0`, field `b`."""
    return f"{prefix}run:{{{run_id}}}:log"


def head_key(prefix: str, run_id: str) -> str:
    """The hash that fences the log: epoch, base, top, closed."""
    return f"{prefix}run:{{{run_id}}}:head"


def present_key(prefix: str, run_id: str) -> str:
    """The sorted set of those who watch a run, by the time at which they expire."""
    return f"{prefix}run:{{{run_id}}}:present"


def rate_key(prefix: str, user: str) -> str:
    """How fast a user's requests come. No user's name is in a key: it could be anything."""
    return f"{prefix}user:{{{_digest(user)}}}:rate"


def places_key(prefix: str, user: str) -> str:
    """The hash of how many streams each gateway has open for a user."""
    return f"{prefix}user:{{{_digest(user)}}}:places"


def _digest(user: str) -> str:
    return blake2b(user.encode(), digest_size=16).hexdigest()


def run_channel(prefix: str, run_id: str) -> str:
    """Carries each batch of the run, as it stands in the log."""
    return f"{prefix}run:{{{run_id}}}"


def wake_channel(prefix: str) -> str:
    """Carries the id of a run that was queued; every runner listens."""
    return f"{prefix}wake"


def runner_channel(prefix: str, runner_id: str) -> str:
    """Carries orders to one runner (common.bus.signals)."""
    return f"{prefix}runner:{runner_id}"


def roster_key(prefix: str) -> str:
    """The hash of gateways that are there: each says what it is at, under its id."""
    return f"{prefix}gateways"


def probe_channel(prefix: str, process_id: str) -> str:
    """What one process says to itself to learn that its subscriptions are alive."""
    return f"{prefix}probe:{process_id}"
