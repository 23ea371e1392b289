"""What the agent can do to the fleet. Every tool answers one JSON text, also for what went wrong.

`restart_instance` is the dangerous one: it asks a person and changes nothing before the answer.
LangGraph executes the tool from its beginning again when the answer comes, and once more if the
process dies before the tool's result is saved. So what stands before the question only reads, the
version comes with the call (the one that the person has seen), and the restart is guarded: it is
performed once, and when a process dies in the middle of it, the fleet is asked whether it happened.
The question names the instance at that version, so that guard.py can tell when it has changed.
"""

import json
from collections import Counter
from dataclasses import asdict
from typing import Any

from langchain.tools import ToolRuntime
from langchain_core.tools import BaseTool, StructuredTool

from runner.authoring import (
    NOT_PERFORMED,
    Approval,
    Performed,
    confirm_action,
    effect_key,
    guarded,
    recall,
    remember,
)
from runner.graphs.opspilot.fleet import ErrorEntry, Fleet, Instance, Restart
from runner.graphs.opspilot.permissions import RESTART
from runner.graphs.opspilot.phrases import risk_of_restart

Runtime = ToolRuntime[Any, Any]
MINUTES = 15


class OpsTools:
    """The tools over one fleet; the docstrings are what a model reads."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def all(self) -> list[BaseTool]:
        functions = (
            self.list_services,
            self.list_instances,
            self.read_errors,
            self.restart_instance,
            self.break_instance,
        )
        return [StructuredTool.from_function(coroutine=function) for function in functions]

    async def list_services(self) -> str:
        """List the services with how many instances each has and how many are abnormal."""
        return _json(services=[asdict(service) for service in await self._fleet.services()])

    async def list_instances(self, service: str, runtime: Runtime) -> str:
        """List the instances of a service with their state and version."""
        instances = await self._fleet.instances(service, _visitor(runtime))
        if not instances:
            return await self._unknown(service)
        before = (await recall()).facts.get("instance")
        gone = [] if before in [instance.id for instance in instances] else ["instance"]
        remember({"service": service}, forget=gone)
        return _json(service=service, instances=[_shown(instance) for instance in instances])

    async def read_errors(self, service: str, runtime: Runtime, instance: str | None = None) -> str:
        """Read the errors that a service, or one instance of it, logged in the last 15 minutes."""
        instances = await self._fleet.instances(service, _visitor(runtime))
        if not instances:
            return await self._unknown(service)
        entries = await self._fleet.errors(service, minutes=MINUTES, visitor=_visitor(runtime))
        read = [_diagnosis(i, entries) for i in instances if instance in (None, i.id)]
        if instance is None:
            remember({"service": service}, forget=["instance"])
        elif read:
            _dealt_with(service, instance)
        return _json(service=service, minutes=MINUTES, instances=read)

    async def restart_instance(
        self, instance: str, version: int, reason: str, runtime: Runtime
    ) -> str:
        """Restart an instance after a person has confirmed it. `version` is the one listed.

        `reason` is shown to the person: write it in the language of the conversation.
        """
        target = await self._fleet.find_instance(instance)
        if target is None:
            return _json(error="unknown_instance", instance=instance)
        approval = _ask(target, version, reason, str(runtime.tool_call_id))
        if not approval.approved:
            return _json(outcome="rejected", instance=_shown(target))
        return await self._restart(approval, runtime)

    async def break_instance(self, service: str, runtime: Runtime) -> str:
        """For demonstrations: put one healthy instance of a service out of order."""
        visitor = _visitor(runtime)
        if not await self._fleet.instances(service, visitor):
            return await self._unknown(service)
        broken = await self._fleet.break_instance(service, visitor)
        if broken is not None:
            _dealt_with(service, broken.id)
        return _json(service=service, broken=_shown(broken) if broken else None)

    async def _restart(self, approval: Approval, runtime: Runtime) -> str:
        """The fleet's key is the same on every execution of this one call, and of no other. The
        version is the one that the person accepted, perhaps newer than the one asked about."""
        instance = approval.args["instance"]
        version = (approval.resource or approval.args)["version"]
        visitor = _visitor(runtime)

        async def restart() -> Any:
            done = await self._fleet.restart(
                effect_key(), instance, version=version, visitor=visitor
            )
            return _outcome(done)

        async def was_restarted() -> Any:
            done = await self._fleet.find_restart(effect_key(), instance)
            return Performed(_outcome(done)) if done else NOT_PERFORMED

        done = await guarded(f"restart/{runtime.tool_call_id}", restart, was_restarted)
        if done is None:
            return _json(error="unknown_instance", instance=instance)
        if done["outcome"] == "restarted":
            _dealt_with(done["instance"]["service"], instance)
        return _json(**done, by=approval.by)

    async def _unknown(self, service: str) -> str:
        known = [known.name for known in await self._fleet.services()]
        return _json(error="unknown_service", service=service, known=known)


def _ask(target: Instance, version: int, reason: str, call_id: str) -> Approval:
    return confirm_action(
        "restart_instance",
        {"instance": target.id, "version": version},
        description=reason,
        risk=risk_of_restart(target.id, target.service, reason),
        resource={"type": "instance", "id": target.id, "version": version},
        required_permission=RESTART,
        call_id=call_id,
    )


def _dealt_with(service: str, instance: str) -> None:
    """What "it" is from now on. Only what the fleet knows gets here, and what was really done."""
    remember({"service": service, "instance": instance})


def _outcome(done: Restart | None) -> dict[str, Any] | None:
    """None: no such instance."""
    if done is None:
        return None
    return {"outcome": done.outcome, "instance": _shown(done.instance)}


def _visitor(runtime: Runtime) -> str:
    """The conversation."""
    return str(runtime.config["configurable"]["thread_id"])


def _shown(instance: Instance) -> dict[str, Any]:
    restarted = instance.restarted_at
    shown = asdict(instance) | {"restarted_at": restarted and f"{restarted:%H:%M:%S} UTC"}
    return {name: value for name, value in shown.items() if value is not None}


def _diagnosis(instance: Instance, entries: list[ErrorEntry]) -> dict[str, Any]:
    """An instance with its errors: how many in all, how many since its restart, the commonest."""
    own = [entry for entry in entries if entry.instance == instance.id]
    restarted = instance.restarted_at
    counts = Counter[str]()
    for entry in own:
        counts[entry.message] += entry.count
    return _shown(instance) | {
        "errors": counts.total(),
        "since_restart": sum(e.count for e in own if restarted is None or e.at > restarted),
        "messages": dict(counts.most_common(3)),
    }


def _json(**fields: Any) -> str:
    return json.dumps(fields, ensure_ascii=False)
