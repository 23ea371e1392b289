"""Bad input gets a clear error and leaves nothing behind, through nginx as well."""

from typing import Any

import pytest

from tests.support.api import Api, Json

HUGE = b'{"message": {"content": "' + b"x" * (10 << 20) + b'"}}'


def problem(answer: Any, status: int, code: str) -> Json:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("application/problem+json")
    body: Json = answer.json()
    assert body["code"] == code
    assert body["status"] == status
    return body


async def conversations(api: Api) -> int:
    return len((await api.http.get("/api/conversations", params={"limit": 200})).json()["items"])


@pytest.mark.parametrize(
    "body",
    [
        {"message": {"content": "hi"}, "unknown": 1},
        {"message": {"content": 5}},
        {"message": "hi"},
        {"message": {"content": "nul \u0000 here"}},
        {"message": {"content": ""}},
        {"message": {"content": "hi"}, "graph": "no-such-graph"},
        {"message": {"content": "hi"}, "onConflict": "perhaps"},
        {"message": {"content": "hi"}, "metadata": []},
        {"message": {"content": "hi"}, "idempotencyKey": "x" * 10_000},
        [],
        "text",
        None,
    ],
)
async def test_a_wrong_body_is_refused_and_makes_nothing(api: Api, body: Any) -> None:
    before = await conversations(api)
    problem(await api.http.post("/api/chat", json=body), 422, "VALIDATION")
    assert await conversations(api) == before


async def test_what_is_no_json_is_refused(api: Api) -> None:
    headers = {"Content-Type": "application/json"}
    for raw in (b"{", b"\xff\xfe", b'{"message": {"content": "\xff"}}', b"", b"NaN"):
        answer = await api.http.post("/api/chat", content=raw, headers=headers)
        assert answer.status_code in (400, 422), answer.text
        assert answer.json()["code"] in ("BAD_REQUEST", "VALIDATION")


async def test_ten_mebibytes_are_too_large_also_in_chunks(gateways: list[Api]) -> None:
    async def chunks() -> Any:
        for start in range(0, len(HUGE), 1 << 16):
            yield HUGE[start : start + (1 << 16)]

    headers = {"Content-Type": "application/json"}
    for api in gateways:
        for content in (HUGE, chunks()):
            answer = await api.http.post("/api/chat", content=content, headers=headers)
            problem(answer, 413, "PAYLOAD_TOO_LARGE")


@pytest.mark.parametrize("name", ["run_%00", "run_x", "..", "run_" + "0" * 32, "run_" + "g" * 32])
async def test_an_id_that_names_nothing_is_not_found(api: Api, name: str) -> None:
    for path in (f"/api/runs/{name}", f"/api/runs/{name}/events"):
        answer = await api.http.get(path)
        assert answer.status_code in (400, 404), answer.text
        if answer.status_code == 404:
            assert answer.json()["code"] == "NOT_FOUND"


async def test_without_a_token_and_with_a_foreign_one_nothing_is_seen(
    api: Api, gateways: list[Api]
) -> None:
    run = await api.start("{}", graph="events")
    answer = await api.http.get(f"/api/runs/{run['id']}", headers={"Authorization": "Bearer x.y.z"})
    problem(answer, 401, "UNAUTHENTICATED")
    secret = "x" * 40
    async with Api(str(api.http.base_url), secret) as forger:
        problem(await forger.http.get("/api/conversations"), 401, "UNAUTHENTICATED")


async def test_another_users_run_is_not_found(api: Api, cluster: Any) -> None:
    run = await api.start("{}", graph="events")
    async with Api(cluster.url, cluster.topology.jwt_secret, user="eve") as eve:
        for path in ("", "/events"):
            problem(await eve.http.get(f"/api/runs/{run['id']}{path}"), 404, "NOT_FOUND")
        for path in ("/cancel", "/ticket"):
            problem(await eve.http.post(f"/api/runs/{run['id']}{path}"), 404, "NOT_FOUND")
        answer = await eve.resume(run["id"], **{"continue": True})
        problem(answer, 404, "NOT_FOUND")
    await api.read(run["id"])


async def test_unknown_routes_and_methods_are_problems_too(api: Api) -> None:
    problem(await api.http.get("/api/nothing"), 404, "NOT_FOUND")
    problem(await api.http.put("/api/conversations"), 405, "METHOD_NOT_ALLOWED")


async def test_a_stale_answer_gets_409_and_who_decided(api: Api) -> None:
    run = await api.start("go", graph="ask")
    await api.read(run["id"], until="interrupt")
    [question] = (await api.run(run["id"]))["pendingInterrupts"]
    wrong = await api.resume(run["id"], interruptId=question["id"], decision="perhaps")
    problem(wrong, 422, "VALIDATION")
    good = await api.resume(run["id"], interruptId=question["id"], decision="approve")
    assert good.status_code == 202, good.text
    late = await api.resume(run["id"], interruptId=question["id"], decision="reject")
    body = problem(late, 409, "INTERRUPT_NOT_PENDING")
    assert "ada" in str(body)
    await api.read(run["id"])
