"""A graph author's code at the edge: guard and resume validator (contract §8, design §6).

A guard is an object (or a class without arguments) with any of these, sync or async:

    authorize(principal, interrupt)     raises PermissionError, or gives False: not this caller
    resource(action, interrupt)         what an action is about, where its question cannot name it
                                        (LangChain's approvals, Agent Inbox): fields that identify
                                        it and that must not have changed; None: nothing. `action`
                                        has `name` and `args`, as shown or as the person made them
    reload(resource)                    the resource as it is now, with the fields that were noted
                                        and any others to show; None: it is gone
    revalidate(resource, principal)     the same as authorize, on the resource as it is now

A resume validator is `validate(values, interrupts, principal)`: what the graph would get by
interrupt id; raises ValueError with a message for the person. `principal` has `user` and
`permissions`; `interrupt` is the wire's object. All are called outside of any transaction, perhaps
for a decision that then loses, so they only look. Anything else that goes wrong refuses the
decision (503): an unknown state is never let through.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from common import hitl
from common.db.values import decode_jsonb, encode_jsonb
from common.errors import Misconfigured, Refused
from common.graphfile import GraphFile
from common.loading import Reference, cause, load_object
from common.masking import Masker
from gateway.auth import Principal
from gateway.services.calling import AuthorCode, failed

GuardAct = Literal["authorize", "resource", "reload", "revalidate"]
Wire = dict[str, Any]

_DETAIL_BYTES_MAX = 500
_GUARDING: tuple[GuardAct, ...] = ("authorize", "reload", "revalidate")


class Hooks:
    """All hooks of the graph file, loaded at once: a broken one stops the gateway's start."""

    def __init__(self, graphs: GraphFile, timeout_s: float, masker: Masker | None = None) -> None:
        self._code = AuthorCode(timeout_s)
        self._masker = masker or Masker()
        self._known = frozenset(graphs.graphs)
        self._guards: dict[str, Any] = {}
        self._validators: dict[str, Callable[..., Any]] = {}
        for name, spec in graphs.graphs.items():
            if spec.guard is not None:
                self._guards[name] = _guard(name, spec.guard)
            if spec.resume_validator is not None:
                self._validators[name] = load_object(spec.resume_validator)

    async def authorize(self, graph: str, principal: Principal, interrupt: Wire) -> None:
        """Also refuses what concerns a graph that is not in this gateway's file: it may have a
        guard that is not known here."""
        if graph not in self._known:
            raise Refused("UNAVAILABLE", "the graph is not known here; nothing was decided")
        await self._permitted(graph, "authorize", principal, interrupt)

    async def reload(self, graph: str, resource: Any) -> Any:
        """The resource now; as it was noted where the graph has no guard that can tell."""
        act = self._act(graph, "reload")
        if act is None:
            return resource
        return await self._read("reload", act, resource)

    def names_resources(self, graph: str) -> bool:
        return self._act(graph, "resource") is not None

    async def resource(self, graph: str, action: Wire, interrupt: Wire) -> Any:
        """What the action is about; None where the guard does not tell."""
        act = self._act(graph, "resource")
        return None if act is None else await self._read("resource", act, action, interrupt)

    async def _read(self, name: GuardAct, act: Callable[..., Any], *arguments: Any) -> Any:
        what = f"the guard's {name}"
        found = await self._code.call(what, act, *arguments)
        try:  # written as a noted resource is stored: the two are compared
            return decode_jsonb(encode_jsonb(hitl.plain(found)))
        except (TypeError, ValueError, RecursionError) as error:
            raise failed(what, act, error) from error

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
        given = dict(values), list(interrupts), principal
        try:
            await self._code.call("the resume validator", validator, *given, expects=(ValueError,))
        except ValueError as error:
            detail = self._masker.text(str(error), _DETAIL_BYTES_MAX)
            raise Refused("VALIDATION", detail or "the value is not valid") from error

    async def _permitted(self, graph: str, name: GuardAct, *arguments: Any) -> None:
        act = self._act(graph, name)
        if act is None:
            return
        what = f"the guard's {name}"
        try:
            found = await self._code.call(what, act, *arguments, expects=(PermissionError,))
            if found is not None and not found:
                raise PermissionError
        except PermissionError as error:
            raise Refused("PERMISSION_REVOKED", "this is not permitted any more") from error

    def _act(self, graph: str, name: GuardAct) -> Callable[..., Any] | None:
        act: Callable[..., Any] | None = getattr(self._guards.get(graph), name, None)
        return act


def _guard(graph: str, reference: Reference) -> Any:
    found = load_object(reference)
    try:
        guard = found() if inspect.isclass(found) else found
    except Exception as error:  # whatever a user's class does when it is made
        raise Misconfigured(f"graph {graph!r}: {reference} failed: {cause(error)}") from error
    acts = [getattr(guard, name) for name in get_args(GuardAct) if hasattr(guard, name)]
    guards = any(hasattr(guard, name) for name in _GUARDING)
    if not guards or not all(map(callable, acts)):
        known = ", ".join(_GUARDING)
        raise Misconfigured(f"graph {graph!r}: {reference} is no guard: it needs one of {known}")
    return guard
