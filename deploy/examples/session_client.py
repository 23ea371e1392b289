"""A person at a terminal and the session facade: one question after the other (contract §6).

    export STEADYRUN_TOKEN=$(steadyrun token --user ada --permission ops.restart)
    python deploy/examples/session_client.py --user ada

The client keeps nothing. Whatever it did when it was stopped, the session tells at the next start
what there is to do: wait while it runs, answer its question, or read the last answer.
"""

import argparse
import json
import os
import time
import uuid
from typing import Any

import httpx

Json = dict[str, Any]


class Agent:
    """The facade. Calls are repeated until something answers; a POST has one key for all tries."""

    def __init__(self, http: httpx.Client, user: str) -> None:
        self._http = http
        self._session = f"/agent/session/{user}"

    def session(self, wait_s: float) -> Json:
        """As it is now, or as soon as it does not run any more."""
        response = self._call("GET", self._session, params={"wait_s": wait_s})
        nothing: Json = {"status": "idle", "last_response": None}
        return nothing if response.status_code == 404 else _read(response)

    def post(self, path: str, body: Json) -> Json | None:
        """None: taken. Else why it is refused."""
        key = {"Idempotency-Key": uuid.uuid4().hex}
        response = self._call("POST", path, json={**body, "mode": "async"}, headers=key)
        return None if response.is_success else _read(response, refusals=True)

    def end(self) -> None:
        self._call("DELETE", self._session)

    def _call(self, method: str, path: str, **what: Any) -> httpx.Response:
        while True:
            try:
                response = self._http.request(method, path, **what)
                if response.status_code not in (429, 502, 503, 504):
                    return response
                cause = f"the server answers {response.status_code}"
            except httpx.TransportError as error:
                cause = type(error).__name__
            print(f"({cause}; trying again)", flush=True)
            time.sleep(1)


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


def _read(response: httpx.Response, *, refusals: bool = False) -> Json:
    if response.is_success or (refusals and response.status_code not in (401, 500)):
        found: Json = response.json()
        return found
    raise SystemExit(f"{response.status_code}: {response.text}")


def main() -> None:
    options = argparse.ArgumentParser(description="Talks to an agent over the session facade.")
    options.add_argument("--user", required=True)
    options.add_argument("--url", default=os.environ.get("STEADYRUN_URL", "http://127.0.0.1:8080"))
    given = options.parse_args()
    headers = {"Authorization": f"Bearer {os.environ['STEADYRUN_TOKEN']}"}
    with httpx.Client(base_url=given.url, headers=headers, timeout=40) as http:
        try:
            talk(Agent(http, given.user))
        except (KeyboardInterrupt, EOFError):
            print("\nleft; the session goes on", flush=True)


if __name__ == "__main__":
    main()
