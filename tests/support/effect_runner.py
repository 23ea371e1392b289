"""A runner process whose ledger of effects has the places of tests/support/effect_faults.py."""

import sys
from typing import Any

from common.db import effects
from runner.__main__ import main
from tests.support.effect_faults import come_to


def with_places(statement: Any, before: str, after: str) -> Any:
    async def placed(connection: Any, run_id: str, epoch: int, key: str, *rest: Any, **more: Any):  # type: ignore[no-untyped-def]
        come_to(before, key)
        answer = await statement(connection, run_id, epoch, key, *rest, **more)
        come_to(after, key)
        return answer

    return placed


effects.begin = with_places(effects.begin, "asking", "begun")
effects.complete = with_places(effects.complete, "returned", "noted")

if __name__ == "__main__":
    sys.exit(main())
