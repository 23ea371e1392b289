"""How often a lease has to be renewed to be kept."""

from typing import Final

from common.errors import Unusable

MARGIN_S: Final = 1.0
"""The local half of a lease ends so long before the database's (runner/lease)."""


def usable_s(ttl_s: float) -> float:
    return ttl_s - min(MARGIN_S, ttl_s / 4)


def check_renewal(ttl_s: float, renew_interval_s: float) -> None:
    """Raises Unusable where one renewal that fails would cost the lease."""
    if renew_interval_s > usable_s(ttl_s) / 2:
        raise Unusable(
            "STEADYRUN_LEASE_RENEW_INTERVAL_S is too long: at most half of"
            f" {usable_s(ttl_s):g} s, which is what STEADYRUN_LEASE_TTL_S leaves"
        )
