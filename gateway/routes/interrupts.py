"""The approval inbox (contract §4)."""

from typing import Any

from fastapi import APIRouter, Depends

from common.runs import InterruptStatus
from gateway.auth import Principal
from gateway.routes.callers import Caller
from gateway.routes.conversations import Cursor, Limit
from gateway.schemas import InterruptOut, Page
from gateway.services.inbox import Inbox


def router(inbox: Inbox, caller: Caller) -> APIRouter:
    routes = APIRouter(prefix="/api/interrupts", tags=["interrupts"])
    who: Any = Depends(caller)

    @routes.get("")
    async def list_interrupts(
        principal: Principal = who,
        status: InterruptStatus = "pending",
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> Page[InterruptOut]:
        """All that the caller may decide, newest first."""
        return await inbox.page(principal, status, cursor, limit)

    return routes
