"""Names of environment variables that nobody reads: they are told, not ignored in silence.

A name that is a slip away from one of ours ends the process at its start: what was meant is not in
force. Any other STEADYRUN_ name is a warning only, with the nearest name that is known: a newer
version may know it, and while versions are rolled out, or back, both read one configuration. So
that an older version never takes a newer setting for a slip, names of ours differ by more than one
slip from each other (a test holds that).
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

PREFIX: Final = "STEADYRUN_"
SLIP: Final = 2
"""Letters that are wrong, missing, too many or swapped with their neighbour."""
_SHORT: Final = 6
"""Of a name with fewer letters after the prefix one is a slip: two make most other words of it."""

ELSEWHERE: Final = frozenset(
    PREFIX + name
    for name in (
        *("URL", "TOKEN"),  # `steadyrun chat` and other clients
        *("LISTEN", "LISTEN_TLS", "IMAGE"),  # docker-compose.yml
        *("OPSPILOT_MODEL", "OPSPILOT_DELAY_MS", "OPSPILOT_CONTEXT_TOKENS", "OPSPILOT_RELAPSE_S"),
        "DRILL_EFFECTS",  # the graph of drills
        *("CHROMIUM", "COUNTS", "FAULT_ROUNDS", "FAULT_SEED", "LOG_HISTORIES", "RENEW"),  # tests
    )
)
"""Read, but no settings of gateways and runners."""
FAMILIES: Final = (f"{PREFIX}TEST_",)


@dataclass(frozen=True, slots=True)
class Unknown:
    """`nearest` is a name that is known, None where nothing is alike."""

    name: str
    nearest: str | None
    is_slip: bool

    def __str__(self) -> str:
        meant = "" if self.nearest is None else f": did you mean {self.nearest}?"
        return f"{self.name} is no setting{meant}"


def unknown(names: Iterable[str], settings: Collection[str]) -> list[Unknown]:
    """Those of the environment's names that should be known, and are not; slips first."""
    known = frozenset(settings) | ELSEWHERE
    found = [look for name in sorted(names) if (look := _look(name, known)) is not None]
    return sorted(found, key=lambda one: not one.is_slip)


def _look(name: str, known: frozenset[str]) -> Unknown | None:
    upper = name.upper()  # settings are read in either case
    if upper in known or upper.startswith(FAMILIES):
        return None
    if distance(upper[: len(PREFIX)], PREFIX) > SLIP:
        return None  # somebody else's
    slips = [other for other in known if abs(len(other) - len(upper)) <= SLIP]
    nearest = min(slips, key=lambda other: (distance(upper, other), other), default="")
    if nearest and (slips_made := distance(upper, nearest)) <= SLIP:
        return Unknown(name, nearest, is_slip=slips_made <= _slips_in(nearest))
    return Unknown(name, _alike(upper, known), False) if upper.startswith(PREFIX) else None


def _slips_in(known: str) -> int:
    return SLIP if len(known) - len(PREFIX) >= _SHORT else 1


def _alike(name: str, known: frozenset[str]) -> str | None:
    rests = sorted(other.removeprefix(PREFIX) for other in known)
    found = get_close_matches(name.removeprefix(PREFIX), rests, n=1, cutoff=0.5)
    return PREFIX + found[0] if found else None


def distance(one: str, other: str) -> int:
    """Slips between two words (optimal string alignment)."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        row = [i]
        for j, b in enumerate(other, 1):
            row.append(min(last[j] + 1, row[-1] + 1, last[j - 1] + (a != b)))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                row[-1] = min(row[-1], before[j - 2] + 1)
        before, last = last, row
    return last[-1]
