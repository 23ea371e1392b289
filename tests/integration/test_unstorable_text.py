"""Text that neither Postgres nor UTF-8 can hold, wherever a request can have it: a clear refusal.

Half a surrogate pair and NUL come as JSON escapes, in tokens, and as raw or escaped bytes of the
path, the query and the headers.
"""

import asyncio
import json
from typing import Any

import jwt
import pytest

from common.ids import new_id
from gateway.auth import Tickets
from tests.support import rows
from tests.support.edge import SECRET, Edge, token

BAD = ["\ud800", "a\udfffb", "a\0b"]
BYTES = ["%00", "%ED%A0%80", "%FF", "%ff%fe", "%C3", "a%00b"]
RAW = [b"\x00", b"\xed\xa0\x80", b"\xff", b"\xc3\xa9"]
RUN, TALK, ASKED = new_id("run"), new_id("conv"), new_id("int")
GET = [
    "/api/conversations/{}",
    "/api/conversations/{}/messages",
    "/api/conversations/{}/resume-state",
    "/api/conversations?cursor={}",
    "/api/conversations?limit={}",
    "/api/interrupts?cursor={}",
    "/api/interrupts?status={}",
    "/api/runs/{}",
    "/api/runs/{}/events",
    f"/api/runs/{RUN}/events?ticket={{}}",
    f"/api/runs/{RUN}/events?after={{}}",
    f"/api/runs/{RUN}/events?until={{}}",
    "/agent/session/{}",
    "/agent/tasks/{}",
    "/agent/tasks/{}?wait_s={}",
    "/{}",
    "/console/{}",
    "/healthz?{}",
]
BODIES: list[tuple[str, str, Any]] = [
    ("POST", "/api/conversations", {"title": "{}"}),
    ("POST", "/api/conversations", {"graph": "{}"}),
    ("POST", "/api/conversations", {"facts": {"{}": 1}}),
    ("POST", "/api/conversations", {"facts": {"a": ["{}"]}}),
    ("POST", "/api/conversations", {"{}": 1}),
    ("POST", "/api/chat", {"message": {"content": "{}"}}),
    ("POST", "/api/chat", {"message": {"content": "x", "{}": 1}}),
    ("POST", "/api/chat", {"message": {"content": "x"}, "conversationId": "{}"}),
    ("POST", "/api/chat", {"message": {"content": "x"}, "idempotencyKey": "{}"}),
    ("POST", "/api/chat", {"message": {"content": "x"}, "onConflict": "{}"}),
    ("POST", "/api/chat", {"message": {"content": "x"}, "interruptBefore": ["{}"]}),
    ("POST", "/api/chat", {"message": {"content": "x"}, "metadata": {"{}": {"a": 1}}}),
    ("POST", "/api/chat", "{}"),
    ("POST", "/api/chat", {"{}": {"{}": "{}"}}),
    ("PATCH", f"/api/conversations/{TALK}/facts", {"set": {"{}": 1}, "version": 1}),
    ("PATCH", f"/api/conversations/{TALK}/facts", {"unset": ["{}"], "version": 1}),
    ("PATCH", f"/api/conversations/{TALK}/facts", {"set": {"a": "{}"}, "version": 1}),
    ("POST", f"/api/runs/{RUN}/resume", {"interruptId": "{}", "decision": "approve"}),
    ("POST", f"/api/runs/{RUN}/resume", {"interruptId": ASKED, "decision": {"{}": 1}}),
    ("POST", f"/api/runs/{RUN}/resume", {"interruptId": ASKED, "decision": {"edit": {"a": "{}"}}}),
    ("POST", f"/api/runs/{RUN}/resume", {"resume": {"{}": 1}}),
    ("POST", f"/api/runs/{RUN}/resume", {"resume": {ASKED: {"{}": 1}}}),
    ("POST", f"/api/runs/{RUN}/resume", {"continue": True, "{}": 1}),
    ("POST", "/agent/invoke", {"query": "{}"}),
    ("POST", "/agent/invoke", {"query": "x", "user_id": "{}"}),
    ("POST", "/agent/invoke", {"query": "x", "{}": 1}),
    ("POST", "/agent/invoke", {"query": "x", "mode": "{}"}),
    ("POST", "/agent/resume", {"session_id": "{}", "response_type": "accept"}),
    ("POST", "/agent/resume", {"session_id": "s", "response_type": "edit", "args": {"{}": 1}}),
]
HEADERS = ["Idempotency-Key", "Authorization", "Last-Event-ID", "Accept", "traceparent", "X-{}"]


def filled(body: Any, bad: str) -> Any:
    return json.loads(json.dumps(body).replace("{}", json.dumps(bad)[1:-1]))


def refused(status: int, code: str | None, *, of: Any) -> None:
    assert 400 <= status < 500, (status, of)
    assert code in ("VALIDATION", "BAD_REQUEST", "NOT_FOUND", "FORBIDDEN", "UNAUTHENTICATED"), of


async def exchange(edge: Edge, request: bytes) -> tuple[int, bytes]:
    """Status and body of a request as it stands here, byte for byte."""
    port = int(edge.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    async with asyncio.timeout(10):
        raw = await reader.read()
    writer.close()
    assert raw, ("no answer at all", request)
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.mark.parametrize("bad", BAD)
async def test_a_body_that_has_it_is_refused(edge: Edge, bad: str) -> None:
    for method, path, body in BODIES:
        content = json.dumps(filled(body, bad))
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        answer = await edge.client.request(method, path, content=content, headers=headers)
        refused(answer.status_code, answer.json()["code"], of=(path, body, answer.text))
    assert (await edge.client.get("/api/conversations")).json()["items"] == []


@pytest.mark.parametrize("bad", BYTES)
async def test_an_address_that_has_it_is_refused(edge: Edge, bad: str) -> None:
    for template in GET:
        answer = await edge.client.get(template.replace("{}", bad))
        if template.startswith("/healthz"):
            assert answer.status_code == 200
        else:
            refused(answer.status_code, answer.json()["code"], of=(template, bad))


@pytest.mark.parametrize("bad", RAW)
async def test_raw_bytes_in_an_address_are_refused(edge: Edge, bad: bytes) -> None:
    for template in GET:
        target = template.encode().replace(b"{}", bad)
        rest = b"Host: x\r\nConnection: close\r\nAuthorization: Bearer " + token().encode()
        request = b"GET " + target + b" HTTP/1.1\r\n" + rest + b"\r\n\r\n"
        status, body = await exchange(edge, request)
        assert status < 500, (target, body)
        assert status >= 400 or template.startswith("/healthz"), (target, body)


@pytest.mark.parametrize("bad", RAW)
@pytest.mark.parametrize("name", HEADERS)
async def test_raw_bytes_in_a_header_do_no_harm(edge: Edge, name: str, bad: bytes) -> None:
    """They are a latin-1 text, as HTTP has it, or refused."""
    for target in (f"/api/runs/{RUN}/events", "/api/conversations"):
        line = name.encode().replace(b"{}", bad) + b": " + bad
        auth = b"" if name == "Authorization" else b"Authorization: Bearer " + token().encode()
        head = [f"GET {target} HTTP/1.1".encode(), b"Host: x", b"Connection: close", line, auth]
        status, body = await exchange(edge, b"\r\n".join(filter(None, head)) + b"\r\n\r\n")
        assert status < 500, (target, name, body)


@pytest.mark.parametrize("bad", BAD)
async def test_a_token_whose_key_id_has_it_does_no_harm(edge: Edge, bad: str) -> None:
    """The shared secret has no id."""
    text = jwt.encode({"sub": rows.USER, "exp": 2**40}, SECRET, headers={"kid": bad})
    headers = {"Authorization": f"Bearer {text}"}
    assert (await edge.client.get("/api/conversations", headers=headers)).status_code == 200


@pytest.mark.parametrize("bad", BAD)
async def test_a_token_or_ticket_that_has_it_names_nobody(edge: Edge, bad: str) -> None:
    tokens = [token(bad), token(rows.USER, bad), token(rows.USER, permissions=None, scope=bad)]
    for text in tokens:
        headers = {"Authorization": f"Bearer {text}"}
        for method, path in (("GET", "/api/conversations"), ("POST", "/agent/invoke")):
            answer = await edge.client.request(method, path, headers=headers, json={"query": "x"})
            assert (answer.status_code, answer.json()["code"]) == (401, "UNAUTHENTICATED"), path
    key = Tickets(SECRET, 60)._key
    claims = {"aud": "steadyrun:ticket", "run": RUN, "sub": bad, "permissions": [], "exp": 2**40}
    ticket = jwt.encode(claims, key, "HS256")
    del edge.client.headers["Authorization"]
    answer = await edge.client.get(f"/api/runs/{RUN}/events", params={"ticket": ticket})
    assert (answer.status_code, answer.json()["code"]) == (401, "UNAUTHENTICATED")
