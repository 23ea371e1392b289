"""The chat list (contract §4)."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from gateway.auth import Principal
from gateway.routes.callers import Caller
from gateway.schemas import (
    ConversationOut,
    ConversationRequest,
    FactsRequest,
    MessageOut,
    Page,
    ResumeState,
)
from gateway.services.conversations import Conversations

Limit = Annotated[int, Query(ge=1, le=200)]
Cursor = Annotated[str | None, Query(max_length=500)]


def router(conversations: Conversations, caller: Caller) -> APIRouter:
    routes = APIRouter(prefix="/api/conversations", tags=["conversations"])
    who: Any = Depends(caller)

    @routes.post("", status_code=201)
    async def create_conversation(
        body: ConversationRequest, response: Response, principal: Principal = who
    ) -> ConversationOut:
        made = await conversations.create(principal, body)
        response.headers["Location"] = f"/api/conversations/{made.id}"
        return made

    @routes.get("")
    async def list_conversations(
        principal: Principal = who, cursor: Cursor = None, limit: Limit = 50
    ) -> Page[ConversationOut]:
        return await conversations.page(principal, cursor, limit)

    @routes.get("/{conversation_id}")
    async def get_conversation(conversation_id: str, principal: Principal = who) -> ConversationOut:
        return await conversations.get(principal, conversation_id)

    @routes.delete("/{conversation_id}", status_code=204)
    async def delete_conversation(conversation_id: str, principal: Principal = who) -> None:
        await conversations.delete(principal, conversation_id)

    @routes.get("/{conversation_id}/messages")
    async def list_messages(
        conversation_id: str,
        principal: Principal = who,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> Page[MessageOut]:
        return await conversations.messages(principal, conversation_id, cursor, limit)

    @routes.patch("/{conversation_id}/facts")
    async def patch_facts(
        conversation_id: str, body: FactsRequest, principal: Principal = who
    ) -> ConversationOut:
        return await conversations.set_facts(principal, conversation_id, body)

    @routes.get("/{conversation_id}/resume-state")
    async def resume_state(conversation_id: str, principal: Principal = who) -> ResumeState:
        return await conversations.resume_state(principal, conversation_id)

    return routes
