"""What a run leaves in a cycle does not stay until many more objects are made (I8)."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from runner.__main__ import tidy
from tests.support.until import until


class Box:
    """Refers to itself, as an error does whose traceback holds it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def nothing_is_collected_by_count() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("nothing_is_collected_by_count")
async def test_garbage_in_a_cycle_is_let_go_of_in_a_moment() -> None:
    left = weakref.ref(Box())
    assert left() is not None
    tidying = asyncio.create_task(tidy(0.01))
    await until(lambda: left() is None)
    tidying.cancel()
    await asyncio.wait({tidying})
