"""A graph author's code at the edge: guard and resume validator (contract §8, design §6).

A guard is an object (or a class without arguments) with any of these, sync or async:

    authorize(principal, interrupt)     raises PermissionError, or gives False: not this caller
    reload(resource)                    the resource as it is now, in the shape the interrupt named
                                        it; None: it is gone
    revalidate(resource, principal)     the same as authorize, on the resource as it is now

A resume validator is `validate(values, interrupts, principal)`: what the graph would get by
interrupt id; raises ValueError with a message for the person. `principal` has `user` and
`permissions`; `interrupt` is the wire's object. Every call has a time limit; sync code runs in a
thread. Anything else that goes wrong refuses the decision (503): an unknown state is never let
through.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import orjson
import structlog

from common.errors import Refused, Unavailable
from common.graphfile import GraphFile
from common.loading import Reference, load_object
from gateway.auth import Principal

logger = structlog.get_logger(__name__)

GuardAct = Literal["authorize", "reload", "revalidate"]
Wire = dict[str, Any]


class Hooks:
    """All hooks of the graph file, loaded at once: a broken one stops the gateway's start."""

    def __init__(self, graphs: GraphFile, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._guards: dict[str, Any] = {}
        self._validators: dict[str, Callable[..., Any]] = {}
        for name, spec in graphs.graphs.items():
            if spec.guard is not None:
                self._guards[name] = _instance(spec.guard)
            if spec.resume_validator is not None:
                self._validators[name] = load_object(spec.resume_validator)

    async def authorize(self, graph: str, principal: Principal, interrupt: Wire) -> None:
        await self._permitted(graph, "authorize", principal, interrupt)

    async def reload(self, graph: str, resource: Any) -> Any:
        """The resource now; as it was noted where the graph has no guard that can tell."""
        act = self._act(graph, "reload")
        if act is None:
            return resource
        found = await self._call(act, resource)
        return orjson.loads(orjson.dumps(found, default=str, option=orjson.OPT_NON_STR_KEYS))

    async def revalidate(self, graph: str, resource: Any, principal: Principal) -> None:
        await self._permitted(graph, "revalidate", resource, principal)

    async def validate(
        self,
        graph: str,
        values: Mapping[str, Any],
        interrupts: Sequence[Wire],
        principal: Principal,
    ) -> None:
        validator = self._validators.get(graph)
        if validator is None:
            return
        try:
            await self._call(validator, dict(values), list(interrupts), principal)
        except ValueError as error:
            raise Refused("VALIDATION", str(error)[:500] or "the value is not valid") from error

    async def _permitted(self, graph: str, name: GuardAct, *arguments: Any) -> None:
        act = self._act(graph, name)
        if act is None:
            return
        try:
            if await self._call(act, *arguments) is False:
                raise PermissionError
        except PermissionError as error:
            raise Refused("PERMISSION_REVOKED", "this is not permitted any more") from error

    def _act(self, graph: str, name: GuardAct) -> Callable[..., Any] | None:
        act: Callable[..., Any] | None = getattr(self._guards.get(graph), name, None)
        return act

    async def _call(self, act: Callable[..., Any], *arguments: Any) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await _awaited(act, *arguments)
        except (PermissionError, ValueError):
            raise
        except Exception as error:
            logger.exception("a graph's guard or validator failed", act=repr(act))
            raise Unavailable("the graph's guard") from error


async def _awaited(act: Callable[..., Any], *arguments: Any) -> Any:
    """A coroutine function here, anything else in a thread: it may block."""
    if inspect.iscoroutinefunction(act):
        return await act(*arguments)
    found = await asyncio.to_thread(act, *arguments)
    return await found if inspect.isawaitable(found) else found


def _instance(reference: Reference) -> Any:
    found = load_object(reference)
    return found() if inspect.isclass(found) else found
