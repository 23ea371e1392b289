"""Looks again for a random while, so that decisions overtake each other."""

import asyncio
import random
from typing import Any


class Guard:
    async def reload(self, resource: Any) -> Any:
        await asyncio.sleep(random.uniform(0, 0.05))
        return resource
