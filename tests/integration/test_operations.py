"""What the console shows of the system, and the page itself."""

import re
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from common.db import runners
from common.db.engine import Connection, Database
from gateway.routes import console
from tests.support.edge import Edge, bearer, serving, settings
from tests.support.rows import queued_run, running_run
from tests.support.until import until
from tests.support.valkey import private_valkey

BOOT = "/console/boot.js"


async def look(edge: Edge) -> dict[str, Any]:
    answer = await edge.client.get("/api/operations", headers=bearer("ada", "ops.view"))
    assert answer.status_code == 200, answer.text
    seen: dict[str, Any] = answer.json()
    return seen


async def test_only_who_holds_the_permission_sees_operations(edge: Edge) -> None:
    answer = await edge.client.get("/api/operations", headers=bearer("ada", "ops.restart"))
    assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN")
    assert (await edge.client.get("/api/operations", headers={"Authorization": ""})).is_error


async def test_runs_runners_and_gateways_are_there(edge: Edge, connection: Connection) -> None:
    run = await running_run(connection)
    await queued_run(connection)

    async def here() -> bool:
        return [one["healthy"] for one in (await look(edge))["gateways"]] == [True]

    await until(here)
    seen = await look(edge)
    assert {s: seen["runs"][s] for s in ("queued", "running", "completed")} == {
        "queued": 1,
        "running": 1,
        "completed": 0,
    }
    [runner] = [one for one in seen["runners"] if one["id"] == run.runner_id]
    assert (runner["state"], runner["runs"]) == ("alive", 1)
    assert runner["leaseS"] > 0
    [gateway] = seen["gateways"]
    assert (gateway["streams"], gateway["eventsSent"]) == (0, 0)
    assert seen["takeovers"] == []
    assert not seen["degraded"]


async def test_a_run_that_lost_its_runner_is_in_the_history(
    edge: Edge, connection: Connection
) -> None:
    run = await running_run(connection)
    await connection.rows(
        "UPDATE runners SET lease_until = now() - interval '1 second' WHERE id = $1", run.runner_id
    )
    await runners.reap(connection, 1.0, 0.0)
    [taken] = (await look(edge))["takeovers"]
    assert (taken["runId"], taken["epoch"], taken["status"]) == (run.id, 1, "queued")
    await runners.purge(connection, 0.0)
    assert await runners.list_takeovers(connection) == []


async def test_a_gateway_that_leaves_is_gone_and_one_that_died_is_forgotten(
    edge: Edge, database_url: str, redis_url: str, redis_prefix: str
) -> None:
    async def seen() -> set[str]:
        return {one["id"] for one in await edge.gateway.roster.present()}

    async def two() -> bool:
        return len(await seen()) == 2

    async def one() -> bool:
        return len(await seen()) == 1

    async with serving(settings(database_url, redis_url, redis_prefix)):
        await until(two)
    await until(one)
    word = b'{"at": 1.0, "facts": {"id": "gw_dead"}}'
    await edge.gateway.bus.call("HSET", f"{redis_prefix}gateways", "gw_dead", word)
    assert "gw_dead" not in await seen()
    assert not await edge.gateway.bus.call("HEXISTS", f"{redis_prefix}gateways", "gw_dead")


async def test_without_redis_the_gateway_that_answers_is_shown_and_it_says_so(
    database_url: str, database: Database
) -> None:
    with private_valkey() as valkey:
        async with serving(settings(database_url, valkey.url, "")) as edge:
            valkey.kill()

            async def degraded() -> bool:
                return bool((await look(edge))["degraded"])

            await until(degraded)
            assert len((await look(edge))["gateways"]) == 1


async def test_the_page_may_load_nothing_from_elsewhere_and_no_code_in_itself(edge: Edge) -> None:
    page = await edge.client.get("/", headers={"Authorization": ""})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(policy)
    assert "unsafe" not in page.headers["content-security-policy"]
    assert "http" not in page.text.replace("https://", "http").split("<body>")[0]


@pytest.mark.parametrize(("demo", "word"), [(False, "no"), (True, "yes")])
async def test_the_page_is_told_whether_there_is_a_demo_user(
    database_url: str, redis_url: str, redis_prefix: str, demo: bool, word: str
) -> None:
    async with serving(settings(database_url, redis_url, redis_prefix, demo=demo)) as edge:
        page = await edge.client.get("/", headers={"Authorization": ""})
        assert f'<meta name="steadyrun-demo" content="{word}">' in page.text


@pytest.mark.parametrize("path", ["/", "/console/boot.js"])
async def test_what_names_no_version_is_asked_for_every_time_and_sent_when_it_changed(
    edge: Edge, path: str
) -> None:
    first = await edge.client.get(path, headers={"Accept-Encoding": "gzip"})
    assert first.status_code == 200
    assert first.headers["cache-control"] == "no-cache"
    assert first.headers["content-encoding"] == "gzip"
    plain = await edge.client.get(path, headers={"Accept-Encoding": "identity"})
    assert plain.content == first.content
    again = await edge.client.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_all_parts_of_a_page_are_of_its_version_and_kept_for_good(edge: Edge) -> None:
    page = (await edge.client.get("/")).text
    parts = [path for path in re.findall(r'(?:src|href)="([^"]+)"', page) if path != BOOT]
    [version] = {path.split("/")[2] for path in parts}
    for path in [*parts, f"/console/{version}/client.js"]:
        part = await edge.client.get(path)
        assert part.status_code == 200, path
        assert part.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert part.headers["content-security-policy"]
        imported = re.findall(r'from "([^"]+)"', part.text)
        assert [one for one in imported if not re.fullmatch(r"\./\w+\.js", one)] == []


async def test_a_part_of_another_version_is_not_to_be_had(edge: Edge) -> None:
    other = await edge.client.get("/console/0123456789abcdef/client.js")
    assert other.status_code == 404
    assert other.headers["cache-control"] == "no-store"


async def test_a_part_that_is_asked_for_without_a_version_is_this_gateways(edge: Edge) -> None:
    led = await edge.client.get("/console/client.js")
    assert (led.status_code, led.headers["cache-control"]) == (307, "no-cache")
    assert (await edge.client.get(led.headers["location"])).status_code == 200


async def test_a_change_in_any_part_is_another_version(tmp_path: Path) -> None:
    versions = set()
    for name in ("none", "words.js", "style.css"):
        folder: Path = shutil.copytree(str(files("gateway") / "console"), tmp_path / name)
        with (folder / name).open("a") as part:
            part.write(" " if name != "none" else "")
        versions.add(console.version_of(console.read(folder)))
    assert len(versions) == 3


@pytest.mark.parametrize(
    "name", ["package.json", "..%2Fapp.py", "%2e%2e/app.py", "no.js", "index.html"]
)
async def test_nothing_else_is_served(edge: Edge, name: str) -> None:
    assert (await edge.client.get(f"/console/{name}")).status_code == 404
