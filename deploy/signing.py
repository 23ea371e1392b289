"""Tokens for trying things out; in production an identity provider signs them."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import jwt

from common.errors import Misconfigured, Unusable
from deploy.topology import Topology


def signing_secret(state: Path) -> str:
    """STEADYRUN_JWT_SECRET, else the secret of the `up` that runs with this state folder."""
    if secret := os.environ.get("STEADYRUN_JWT_SECRET"):
        if len(secret.encode()) < 32:  # as gateways see it
            raise Unusable("STEADYRUN_JWT_SECRET: must have at least 32 bytes")
        return secret
    try:
        return Topology.read(state / "topology.json").jwt_secret
    except (OSError, ValueError):
        raise Misconfigured(
            f"no secret to sign with: set STEADYRUN_JWT_SECRET, or start `steadyrun up` (looked"
            f" in {state})"
        ) from None


def sign(secret: str, user: str, permissions: Sequence[str], *, ttl_s: float) -> str:
    """Claims as the gateway reads them (contract §4)."""
    now = int(time.time())
    claims = {"sub": user, "permissions": list(permissions), "iat": now, "exp": now + int(ttl_s)}
    return jwt.encode(claims, secret, algorithm="HS256")
