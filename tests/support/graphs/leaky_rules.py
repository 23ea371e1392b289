"""A guard and a validator whose errors and resources hold secrets: gateways load this file."""

from typing import Any


class guard:
    """Reloads a resource that has changed, with a secret in it; raises for one permission."""

    @staticmethod
    def authorize(principal: Any, interrupt: Any) -> bool:
        if "raise" in principal.permissions:
            raise RuntimeError("postgresql://app:sEed-guard-7Qx@db/x is away")
        return True

    @staticmethod
    def reload(resource: dict[str, Any]) -> dict[str, Any]:
        return {**resource, "version": 2, "apiKey": "sEed-resource-7Qx"}


def valid(values: dict[str, Any], interrupts: list[dict[str, Any]], principal: Any) -> None:
    if any(isinstance(value, str) for value in values.values()):
        raise ValueError("refused: password=sEed-validator-7Qx")
