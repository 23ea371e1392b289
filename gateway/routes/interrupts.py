"""The approval inbox (contract §4)."""

from typing import Any

from fastapi import APIRouter, Depends

from common.db import interrupts
from common.db.engine import Database
from common.runs import InterruptStatus
from gateway.auth import Principal
from gateway.routes.callers import Caller
from gateway.routes.conversations import Cursor, Limit
from gateway.schemas import InterruptOut, Page


def router(db: Database, caller: Caller) -> APIRouter:
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
        async with db.connect() as connection:
            rows, after = await interrupts.inbox(
                connection, principal.user, sorted(principal.permissions), status, cursor, limit
            )
        return Page(items=[InterruptOut.of(row) for row in rows], next_cursor=after)

    return routes
