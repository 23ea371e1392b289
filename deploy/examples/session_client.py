"""A person at a terminal and the session facade: one question after the other (contract §6).

    export STEADYRUN_TOKEN=$(steadyrun token --user ada --permission ops.restart)
    python deploy/examples/session_client.py --user ada

The client keeps nothing. Whatever it did when it was stopped, the session tells at the next start
what there is to do: wait while it runs, answer its question, or read the last answer. Where nothing
answers it tries again for half a minute. Then, and for what trying again does not heal (a token
that is refused, another server), it says so in one line and ends with status 1.
"""

import argparse
import json
import os
import time
import uuid
from typing import Any
from urllib.parse import quote

import httpx

Json = dict[str, Any]
LATER = (429, 502, 503, 504)
ATTEMPTS_MAX = 12
PAUSE_MIN_S, PAUSE_MAX_S = 0.5, 4.0


class Hopeless(Exception):
    """Trying again does not heal it; one line for the person."""


class Agent:
    """The facade. Calls are repeated until something answers; a POST has one key for all tries."""

    def __init__(self, http: httpx.Client, user: str) -> None:
        self._http = http
        self._session = f"/agent/session/{quote(user, safe='')}"

    def session(self, wait_s: float) -> Json:
        """As it is now, or as soon as it does not run any more."""
        status, found = self._call("GET", self._session, params={"wait_s": wait_s})
        nothing: Json = {"status": "idle", "last_response": None}
        return nothing if status == 404 else found

    def post(self, path: str, body: Json) -> Json | None:
        """None: taken. Else why it is refused."""
        key = {"Idempotency-Key": uuid.uuid4().hex}
        status, found = self._call("POST", path, json={**body, "mode": "async"}, headers=key)
        return None if status < 400 else found

    def end(self) -> None:
        self._call("DELETE", self._session)

    def _call(self, method: str, path: str, **what: Any) -> tuple[int, Json]:
        """Status and body of an answer, or of a refusal that a person can do something about."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                response = self._http.request(method, path, **what)
                if response.status_code not in LATER:
                    return response.status_code, self._read(response)
                cause = f"the server answers {response.status_code}"
            except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
                raise Hopeless(f"{self._http.base_url} is no address: {error}") from None
            except httpx.TransportError as error:
                cause = f"{self._http.base_url} does not answer: {type(error).__name__}"
            if attempt < ATTEMPTS_MAX:
                print(f"({cause}; trying again)", flush=True)
                time.sleep(min(PAUSE_MAX_S, PAUSE_MIN_S * 2 ** (attempt - 1)))
        raise Hopeless(f"{cause}; given up after {ATTEMPTS_MAX} attempts")

    def _read(self, response: httpx.Response) -> Json:
        try:
            body = response.json() if response.content else {}
        except ValueError:
            body = None
        if not isinstance(body, dict) or (response.is_error and "code" not in body):
            raise Hopeless(f"{self._http.base_url} is no Steadyrun: {response.status_code}")
        why = f"{body.get('detail')} ({body.get('code')})"
        if response.status_code == 401:
            raise Hopeless(f"the token is refused: {why}; set STEADYRUN_TOKEN anew")
        if response.status_code == 403 and response.request.method == "GET":
            raise Hopeless(f"the token is another user's: {why}")
        if response.status_code >= 500:
            raise Hopeless(f"the server fails: {why}")
        return body


def talk(agent: Agent) -> None:
    """Until the person leaves."""
    session = agent.session(0)
    while True:
        if session["status"] == "running":
            print("(running)", flush=True)
            while session["status"] == "running":
                session = agent.session(20)
        if session["status"] == "interrupted":
            answer(agent, session)
        else:
            show(session)
            ask(agent)
        session = agent.session(0)


def show(session: Json) -> None:
    last = session["last_response"]
    if last is None:
        return
    said = [m["content"] for m in (last["result"] or {}).get("messages", ())]
    print(f"[{last['status']}] {last['message'] or (said[-1] if said else '')}", flush=True)


def ask(agent: Agent) -> None:
    query = ""
    while not (query := query.strip()):
        query = input("you > ")
    if query == "/new":
        agent.end()
    elif refusal := agent.post("/agent/invoke", {"query": query}):
        print(f"refused: {refusal['detail']}", flush=True)


def answer(agent: Agent, session: Json) -> None:
    """The card, and the person's answer to it; again if what it is about has changed meanwhile."""
    asked = session["last_response"]["interrupt_data"]
    print(f"[{asked['type']}] {shown(asked['payload'])}", flush=True)
    for action in asked["actions"]:
        print(f"  {action['name']} {shown(action['args'])}", flush=True)
    about = {"session_id": session["session_id"], "interrupt_id": asked["interrupt_id"]}
    while refused := agent.post("/agent/resume", {**about, **decision(asked)}):
        print(f"refused: {refused['detail']}", flush=True)
        if "confirmVersion" not in refused:
            return
        print(f"  now: {shown(refused.get('changed') or refused.get('facts'))}", flush=True)
        about["confirm_version"] = refused["confirmVersion"]


def decision(asked: Json) -> Json:
    words = asked["allowed_response_types"]
    word = ""
    while word not in words:
        word = input(f"{' | '.join(words)} > ").strip()
    needs_args = word in ("edit", "response")
    args = {"args": typed(input("args (JSON or text) > "))} if needs_args else {}
    return {"response_type": word, **args}


def shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def typed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def main() -> None:
    options = argparse.ArgumentParser(description="Talks to an agent over the session facade.")
    options.add_argument("--user", required=True)
    options.add_argument("--url", default=os.environ.get("STEADYRUN_URL", "http://127.0.0.1:8080"))
    given = options.parse_args()
    token = os.environ.get("STEADYRUN_TOKEN", "")
    if not token or not token.isascii() or not token.isprintable():
        options.error("STEADYRUN_TOKEN must hold a token: `steadyrun token --user …` prints one")
    try:
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=given.url, headers=headers, timeout=40) as http:
            talk(Agent(http, given.user))
    except (KeyboardInterrupt, EOFError):
        print("\nleft; the session goes on", flush=True)
    except (Hopeless, httpx.InvalidURL) as error:
        raise SystemExit(f"session_client: {error}") from None


if __name__ == "__main__":
    main()
