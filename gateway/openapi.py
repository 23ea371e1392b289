"""The API's description: FastAPI's own, the stream beside it, problems as every error's shape.

`tests/openapi.json` is a snapshot of it: its difference is the change of the API.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gateway.problems import STATUS
from gateway.routes.events import PATH
from gateway.schemas import EventPage, Problem

_REF = "#/components/schemas/{model}"


def install(app: FastAPI) -> None:
    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _description(app)
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]


def _description(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title, version=app.version, summary=app.summary, routes=app.routes
    )
    schemas = document["components"]["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for model in (Problem, EventPage):
        schemas[model.__name__] = model.model_json_schema(ref_template=_REF)
    document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"bearer": []}]
    document["paths"][PATH] = {"get": _events()}
    for operations in document["paths"].values():
        for operation in operations.values():
            _with_problems(operation)
    return document


def _with_problems(operation: dict[str, Any]) -> None:
    problem = {"application/problem+json": {"schema": {"$ref": _REF.format(model="Problem")}}}
    operation["responses"].pop("422", None)
    codes = ", ".join(f"{code} {status}" for code, status in sorted(STATUS.items()))
    operation["responses"]["default"] = {"description": f"RFC 9457: {codes}", "content": problem}


def _events() -> dict[str, Any]:
    page = {"application/json": {"schema": {"$ref": _REF.format(model="EventPage")}}}
    stream = {"text/event-stream": {"schema": {"type": "string"}}}
    return {
        "tags": ["runs"],
        "summary": "A run's events, as a stream or as a page",
        "operationId": "run_events",
        "parameters": [
            _parameter("run_id", "path", {"type": "string"}),
            _parameter("Last-Event-ID", "header", {"type": "integer", "minimum": -1}),
            _parameter("after", "query", {"type": "integer", "minimum": -1}),
            _parameter("until", "query", {"enum": ["interrupt", "end"], "default": "end"}),
            _parameter("limit", "query", {"type": "integer", "minimum": 1, "maximum": 1000}),
            _parameter("ticket", "query", {"type": "string"}),
        ],
        "responses": {
            "200": {"description": "Events after the given sequence", "content": page | stream},
            "204": {"description": "Nothing follows: the run has ended and all was received"},
        },
    }


def _parameter(name: str, place: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": schema}
