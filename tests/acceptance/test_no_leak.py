"""I9: secrets are put everywhere in a running system, and nothing that leaves it holds one."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.support.api import Api
from tests.support.cluster import ROOT, Cluster

SEED = re.compile(r"sEed-[a-z-]+-7Qx")
GRAPHS = ROOT / "tests" / "support" / "graphs" / "leaky.json"
MASKED_COLUMNS = (
    ("messages", "content", "role <> 'user'"),
    ("runs", "output::text", "true"),
    ("runs", "error::text", "true"),
    ("interrupts", "payload::text", "true"),
    ("interrupts", "actions::text", "true"),
    ("interrupts", "decision::text", "true"),
    ("run_events", "convert_from(frames, 'UTF8')", "true"),
)


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("leaking")
    folder.chmod(0o755)
    cluster = Cluster(folder / "state", environment={"STEADYRUN_LOG_LEVEL": "debug"})
    with cluster.running("--graphs", str(GRAPHS)) as running:
        yield running


class Seen:
    """All answers that left the system, with where they came from."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.answers: list[tuple[str, str]] = []

    async def ask(self, method: str, path: str, **request: Any) -> Any:
        response = await self.api.http.request(method, path, **request)
        self.answers.append((f"{method} {path}", response.text + str(dict(response.headers))))
        return response

    def leaks(self, allowed: set[str]) -> list[tuple[str, str]]:
        return [
            (where, found)
            for where, text in self.answers
            for found in SEED.findall(text)
            if found not in allowed
        ]


async def test_no_secret_leaves_a_system_that_is_full_of_them(leaking: Cluster) -> None:
    """Except what a user said or noted, to that user alone."""
    secret = leaking.topology.jwt_secret
    async with (
        Api(leaking.url, secret) as ada,
        Api(leaking.url, secret, permissions=("raise",)) as raising,
        Api(leaking.url, secret, user="eve") as eve,
    ):
        seen, others = Seen(ada), Seen(eve)
        run = await _leak_everything(seen, raising, others)
        await _fail(seen)
        await _look_at_everything(seen, run)
        mine = {"sEed-user-7Qx", "sEed-metadata-7Qx", "sEed-fact-7Qx"}
        assert seen.leaks(mine) == []
        assert others.leaks(set()) == []
        assert any(mine & set(SEED.findall(text)) for _, text in seen.answers), "the test looks"
    assert _stored_leaks(leaking) == []
    assert _written_leaks(leaking) == []
    for _, text in seen.answers + others.answers:
        assert _given(leaking, text) == []
        assert "Traceback" not in text


async def _leak_everything(seen: Seen, raising: Api, others: Seen) -> dict[str, Any]:
    """One run through all that shows something; what it answered last."""
    facts = {"env": "prod", "note": "password=sEed-fact-7Qx"}
    made = await seen.ask("POST", "/api/conversations", json={"graph": "leaks", "facts": facts})
    body = {
        "message": {"content": "use password=sEed-user-7Qx"},
        "metadata": {"token": "sEed-metadata-7Qx"},
    }
    started = await seen.ask("POST", f"/api/conversations/{made.json()['id']}/runs", json=body)
    run_id = str(started.json()["run"]["id"])
    await seen.api.read(run_id, until="interrupt")
    asked = (await seen.ask("GET", f"/api/runs/{run_id}")).json()
    assert asked["status"] == "interrupted", asked
    [question] = asked["pendingInterrupts"]
    failed = await raising.resume(run_id, interruptId=question["id"], decision="approve")
    assert failed.status_code == 503, failed.text
    seen.answers.append(("a guard that raises", failed.text))
    await _answer(seen, run_id, question)
    await others.ask("GET", "/api/interrupts")
    await seen.api.read(run_id)
    ended: dict[str, Any] = (await seen.ask("GET", f"/api/runs/{run_id}")).json()
    assert ended["status"] == "completed", ended
    assert ended["output"]["settings"] == {"clientSecret": "***"}
    return ended


async def _answer(seen: Seen, run_id: str, question: dict[str, Any]) -> None:
    """Refused by the validator and for the changed resource, then accepted."""
    url = f"/api/runs/{run_id}/resume"
    raw = {"resume": {question["id"]: "password=sEed-value-7Qx"}, "idempotencyKey": "a"}
    refused = await seen.ask("POST", url, json=raw)
    assert refused.status_code == 422, refused.text
    decision = {"edit": {"password": "sEed-edit-7Qx", "text": "token=sEed-edit-text-7Qx"}}
    edit = {"interruptId": question["id"], "decision": decision, "idempotencyKey": "b"}
    changed = await seen.ask("POST", url, json=edit)
    assert changed.json()["code"] == "RESOURCE_CHANGED", changed.text
    again = {**edit, "confirmVersion": changed.json()["confirmVersion"], "idempotencyKey": "c"}
    accepted = await seen.ask("POST", url, json=again)
    assert accepted.status_code == 202, accepted.text


async def _fail(seen: Seen) -> None:
    """Exceptions with connection strings: of a graph, and of a guard."""
    chat = {"graph": "fails", "message": {"content": "go"}}
    await seen.ask("POST", "/api/chat", json=chat)
    async with Api(str(seen.api.http.base_url), "x" * 32, user="nobody") as stranger:
        bad = {"Authorization": "Bearer sEed-token-7Qx.a.b"}
        answer = await stranger.http.get("/api/conversations?token=sEed-query-7Qx", headers=bad)
        seen.answers.append(("a bad token", answer.text))
    await seen.ask("POST", "/api/conversations", json={"password": "sEed-field-7Qx", "title": 5})
    await seen.ask("POST", "/api/chat", content=b'{"password": "sEed-broken-7Qx"')


async def _look_at_everything(seen: Seen, run: dict[str, Any]) -> None:
    conversation = f"/api/conversations/{run['conversationId']}"
    runs = f"/api/runs/{run['id']}"
    paths = ["/api/conversations", conversation, f"{conversation}/messages", runs]
    paths += [f"{conversation}/resume-state", "/api/interrupts?status=resolved", "/metrics"]
    paths += ["/readyz", "/openapi.json", f"{runs}/events?limit=1000", "/api/operations"]
    await asyncio.gather(
        *(seen.ask("GET", p, headers={"Accept": "application/json"}) for p in paths)
    )
    await seen.ask("GET", f"{runs}/events?after=0", headers={"Accept": "text/event-stream"})


def _stored_leaks(cluster: Cluster) -> list[tuple[str, str]]:
    """In rows that are shown to others than their user."""
    found = []
    with psycopg.connect(cluster.topology.database_url) as connection:
        for table, column, where in MASKED_COLUMNS:
            rows = connection.execute(f"SELECT {column} FROM {table} WHERE {where}").fetchall()
            assert rows, f"nothing in {table}"
            found += [(f"{table} {column}", s) for [t] in rows for s in SEED.findall(t or "")]
    return found


def _written_leaks(cluster: Cluster) -> list[tuple[str, str]]:
    """In what any process wrote: logs of all, and what `up` says."""
    files = [p for p in cluster.state.rglob("*.log") if p.is_file()]
    texts = [(p.name, p.read_text(errors="replace")) for p in files] + [("up", cluster.said)]
    ours = [text for name, text in texts if "runner" in name or "gateway" in name]
    assert any("was told" in text for text in ours), "the runners' logs are looked at"
    return [
        (name, found)
        for name, text in texts
        for found in [*SEED.findall(text), *_given(cluster, text)]
    ]


def _given(cluster: Cluster, text: str) -> list[str]:
    """The secrets that the processes were given."""
    topology = cluster.topology
    urls = [urlsplit(url).password for url in (topology.database_url, topology.redis_url)]
    return [s for s in (topology.jwt_secret, *urls) if s and s in text]
