"""The API as it is described: its difference is the change of the API, so it is reviewed.

`tests/openapi.json` is renewed by `STEADYRUN_RENEW=1 pytest tests/unit/test_openapi.py`.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.app import create_app
from tests.support.edge import graph_file, settings

SNAPSHOT = Path(__file__).parents[1] / "openapi.json"
FACADE = {  # snake_case, as the contract says
    "AgentAnswer",
    "AgentResumeRequest",
    "InterruptData",
    "InvokeRequest",
    "SessionAnswer",
}
CALLS = {
    "POST /api/conversations",
    "GET /api/conversations",
    "GET /api/conversations/{conversation_id}",
    "DELETE /api/conversations/{conversation_id}",
    "GET /api/conversations/{conversation_id}/messages",
    "PATCH /api/conversations/{conversation_id}/facts",
    "GET /api/conversations/{conversation_id}/resume-state",
    "POST /api/conversations/{conversation_id}/runs",
    "POST /api/chat",
    "GET /api/runs/{run_id}",
    "GET /api/runs/{run_id}/events",
    "POST /api/runs/{run_id}/ticket",
    "POST /api/runs/{run_id}/resume",
    "POST /api/runs/{run_id}/cancel",
    "GET /api/interrupts",
    "POST /agent/invoke",
    "POST /agent/resume",
    "GET /agent/session/{user_id}",
    "GET /agent/tasks/{task_id}",
    "DELETE /agent/session/{user_id}",
    "GET /api/operations",
    "POST /api/demo-token",
    "GET /healthz",
    "GET /readyz",
}


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    options = settings("postgresql://nowhere/x", "redis://nowhere", "")
    return create_app(options, graph_file()).openapi()


def test_the_description_is_the_one_that_was_reviewed(described: dict[str, Any]) -> None:
    if os.environ.get("STEADYRUN_RENEW"):
        SNAPSHOT.write_text(json.dumps(described, indent=1, sort_keys=True) + "\n")
    assert described == json.loads(SNAPSHOT.read_text()), __doc__


def test_every_call_of_the_contract_is_there(described: dict[str, Any]) -> None:
    found = {f"{verb.upper()} {path}" for path, of in described["paths"].items() for verb in of}
    assert found >= CALLS


def test_requests_refuse_unknown_fields_and_speak_camel_case(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    requests = {name: s for name, s in schemas.items() if name.endswith("Request")}
    assert requests
    for schema in requests.values():
        assert schema["additionalProperties"] is False
    camel = [schema for name, schema in schemas.items() if name not in FACADE]
    names = [name for schema in camel for name in schema.get("properties", {})]
    assert [name for name in names if "_" in name] == []


def test_every_error_is_a_problem(described: dict[str, Any]) -> None:
    for of in described["paths"].values():
        for operation in of.values():
            [kind] = operation["responses"]["default"]["content"]
            assert kind == "application/problem+json"
            assert "422" not in operation["responses"]
