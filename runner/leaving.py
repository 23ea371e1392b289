"""How a runner is asked to leave: in peace, and then in a hurry."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Leaving:
    """`stop`: hand the runs over, each at its next step boundary. `hurry`, which may be set while
    that is waited for: wherever they are. Neither loses or charges anything."""

    stop: asyncio.Event
    hurry: asyncio.Event


async def unless(given_up: asyncio.Event, act: Coroutine[Any, Any, None]) -> bool:
    """`act`, cancelled when `given_up` is set; whether it was done."""
    acting, told = asyncio.create_task(act), asyncio.create_task(given_up.wait())
    try:
        await asyncio.wait({acting, told}, return_when="FIRST_COMPLETED")
        if acting.done():
            acting.result()
        return acting.done()
    finally:
        for task in (acting, told):
            task.cancel()
        await asyncio.wait({acting, told})
