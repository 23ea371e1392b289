"""Faults are tried on a whole system, as acceptance tests use it."""

from tests.acceptance.conftest import api, cluster, gateways

__all__ = ["api", "cluster", "gateways"]
