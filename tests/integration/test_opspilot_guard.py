"""The sample agent's guard, as a gateway loads and asks it."""

import subprocess
import sys
from typing import Any

import pytest

from common.errors import Refused
from common.graphfile import parse
from common.loading import load_object
from gateway.auth import Principal
from gateway.services.hooks import Hooks
from runner.graphs.opspilot.fleet import Fleet
from tests.support.cluster import ROOT

GRAPHS = ROOT / "runner" / "graphs" / "opspilot" / "langgraph.json"
SERVICE, SICK = "payment-api", "payment-api-2"
NOTED = {"type": "instance", "id": SICK, "version": 1}
ADA = Principal("ada", frozenset({"ops.restart"}))
EVE = Principal("eve", frozenset({"ops.view"}))

LOADING = f"""
import sys
from pathlib import Path
from common.graphfile import parse
from gateway.services.hooks import Hooks
Hooks(parse(Path({str(GRAPHS)!r})), 5)
files = [getattr(module, "__file__", "") for module in sys.modules.values()]
assert {str(GRAPHS.with_name("guard.py"))!r} in files
print(*(name for name in sys.modules if name.partition(".")[0] in ("langgraph", "langchain_core")))
"""


@pytest.fixture
async def fleet(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """The one that the guard looks at as well."""
    fleet = Fleet(database_url)
    reference = parse(GRAPHS).graphs["opspilot"].guard
    assert reference is not None
    monkeypatch.setattr(load_object(reference), "_fleet", fleet)
    await fleet.services()
    return fleet


@pytest.fixture
def hooks() -> Hooks:
    return Hooks(parse(GRAPHS), 5)


def test_a_gateway_loads_the_guard_without_the_graph() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", LOADING], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert loaded.stdout.strip() == ""


async def test_the_instance_is_read_as_it_is_now(fleet: Fleet, hooks: Hooks) -> None:
    before: Any = await hooks.reload("opspilot", NOTED)
    assert NOTED.items() <= before.items()
    await fleet.restart("somebody else", SICK, version=1)
    after: Any = await hooks.reload("opspilot", NOTED)
    assert (after["version"], after["state"], after["restarts"]) == (2, "running", 1)


async def test_only_who_may_restart_may_confirm_what_is_still_there(
    fleet: Fleet, hooks: Hooks
) -> None:
    now = await hooks.reload("opspilot", NOTED)
    await hooks.revalidate("opspilot", now, ADA)
    with pytest.raises(Refused, match="PERMISSION_REVOKED"):
        await hooks.revalidate("opspilot", now, EVE)
    gone = await hooks.reload("opspilot", {**NOTED, "id": "payment-api-9"})
    assert gone is None
    with pytest.raises(Refused, match="PERMISSION_REVOKED"):
        await hooks.revalidate("opspilot", gone, ADA)
