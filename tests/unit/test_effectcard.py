"""The card of an effect whose outcome nobody knows."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from common.graphfile import GraphSpec
from common.loading import Reference
from common.masking import Masker
from runner.asking import Unknown
from runner.effectcard import question

SPEC = GraphSpec("agent", Reference(Path("agent.py"), "graph"))


@pytest.mark.parametrize(
    ("permission", "required"), [("ops.pay", "ops.pay"), ("", None), (None, None)]
)
def test_the_owner_answers_where_no_permission_is_named(
    permission: str | None, required: str | None
) -> None:
    unknown = Unknown("pay", 1, "rnr_1", datetime(2026, 1, 1, tzinfo=UTC), permission)
    assert question(unknown, SPEC, Masker()).required_permission == required
