"""Every error of ours has a status and leaves as a problem document (contract §4)."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from common.errors import CODES, Refused, Unavailable
from gateway.problems import STATUS, install, problem

ROOT = Path(__file__).parents[2]


class Body(BaseModel):
    secret: int


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI()
    install(app)

    @app.post("/body")
    async def body(body: Body) -> dict[str, int]:
        return {}

    @app.get("/refused")
    async def refused() -> None:
        raise Refused("VERSION_CONFLICT", "stale", currentVersion=3)

    @app.get("/away")
    async def away() -> None:
        raise Unavailable("Postgres")

    return app


@pytest.fixture
def client(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


def document(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = response.json()
    assert found["status"] == response.status_code
    assert found["type"] == "about:blank"
    return found


def test_every_code_has_a_status() -> None:
    assert set(STATUS) == set(CODES)


def test_every_code_that_is_refused_anywhere_is_a_known_one() -> None:
    refused = {
        code
        for floor in ("gateway", "common", "runner", "deploy")
        for path in (ROOT / floor).rglob("*.py")
        for code in re.findall(r'Refused\(\s*"([A-Z_]+)"', path.read_text())
    }
    assert refused
    assert refused <= set(STATUS)


@pytest.mark.parametrize("code", CODES)
def test_a_problem_says_its_code_and_status_once(code: Any) -> None:
    response = problem(code, "why", extra={"status": 999, "current": {"a": 1}})
    body = json.loads(bytes(response.body))
    assert (body["code"], body["status"]) == (code, STATUS[code])
    assert body["current"] == {"a": 1}
    assert response.status_code == STATUS[code]


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RATE_LIMITED"])
def test_what_passes_says_when_to_try_again(code: Any) -> None:
    assert int(problem(code, "later").headers["retry-after"]) >= 1


async def test_a_refusal_carries_what_the_client_needs(client: httpx.AsyncClient) -> None:
    found = document(await client.get("/refused"))
    assert (found["code"], found["currentVersion"]) == ("VERSION_CONFLICT", 3)


async def test_a_missing_server_is_503_with_retry_after(client: httpx.AsyncClient) -> None:
    response = await client.get("/away")
    assert document(response)["code"] == "UNAVAILABLE"
    assert response.headers["retry-after"] == "1"


async def test_an_unknown_path_is_a_problem(client: httpx.AsyncClient) -> None:
    assert document(await client.get("/nowhere"))["code"] == "NOT_FOUND"


async def test_a_wrong_method_is_a_problem_that_says_what_is_allowed(
    client: httpx.AsyncClient,
) -> None:
    response = await client.put("/body")
    assert document(response)["code"] == "METHOD_NOT_ALLOWED"
    assert response.headers["allow"] == "POST"


async def test_a_validation_error_names_the_field_and_never_the_value(
    client: httpx.AsyncClient,
) -> None:
    response = await client.post("/body", json={"secret": "hunter2"})
    found = document(response)
    assert found["code"] == "VALIDATION"
    assert found["errors"][0]["path"] == "secret"
    assert "hunter2" not in response.text


async def test_a_body_that_is_no_json_is_a_bad_request(client: httpx.AsyncClient) -> None:
    headers = {"Content-Type": "application/json"}
    response = await client.post("/body", content=b'{"secret": hunter2', headers=headers)
    assert document(response)["code"] == "BAD_REQUEST"
    assert "hunter2" not in response.text
