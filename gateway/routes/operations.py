"""What runs where (contract §4)."""

from typing import Any

from fastapi import APIRouter, Depends

from gateway.auth import Principal
from gateway.routes.callers import Caller
from gateway.schemas import OperationsOut
from gateway.services.operations import Operations


def router(operations: Operations, caller: Caller) -> APIRouter:
    routes = APIRouter(prefix="/api/operations", tags=["operation"])
    who: Any = Depends(caller)

    @routes.get("")
    async def get_operations(principal: Principal = who) -> OperationsOut:
        """Runs by status, runners, gateways and takeovers; needs the permission `ops.view`."""
        return await operations.look(principal)

    return routes
