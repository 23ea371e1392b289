"""Looks again before a restart that a person has confirmed: the guard of the sample agent.

Between the card and the click anything may have happened. Somebody else may have restarted the
instance: then what the person saw is no longer so, and they are told what is. Gateways load this
file, so it imports no graph. Who may decide at all is the question's `required_permission`.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

from runner.graphs.opspilot.fleet import Fleet, fleet_of
from runner.graphs.opspilot.permissions import RESTART


class Person(Protocol):
    """What a guard is told of whoever decides."""

    @property
    def user(self) -> str: ...
    @property
    def permissions(self) -> frozenset[str]: ...


class Guard:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def reload(self, resource: Mapping[str, Any]) -> Any:
        """The instance as it is now. `type`, `id` and `version` were noted when it was asked about
        and are compared; the rest is for the person to see. None: there is no such instance."""
        instance = await self._fleet.find_instance(resource["id"])
        return None if instance is None else {"type": resource["type"]} | asdict(instance)

    def revalidate(self, resource: Any, principal: Person) -> None:
        """An instance that is gone cannot be restarted, whoever accepts that."""
        if resource is None or RESTART not in principal.permissions:
            raise PermissionError


guard = Guard(fleet_of(os.environ))
