"""The ledger of one execution's guarded effects (common/db/effects): what is begun, known and said.

Every act is fenced by (run, epoch) in its own statement and raises LeaseLost where another owner
has the run. A Postgres that is away is waited for; whoever calls is cancelled when that is in vain.
"""

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import orjson

from common.db import effects
from common.db.effects import CancelAsked, Effect, Word
from common.db.engine import Connection, Database
from common.db.values import is_storable
from common.errors import LeaseLost, Unavailable
from runner.authoring.effects import OutcomeRefused
from runner.effectcard import native_id
from runner.patience import patiently

KEY_CHARS_MAX: Final = 256
OUTCOME_BYTES_MAX: Final = 256 * 1024


class Ledger:
    """Of one (run, epoch)."""

    def __init__(self, db: Database, run_id: str, epoch: int) -> None:
        self.run_id, self.epoch = run_id, epoch
        self._db = db

    async def begin(self, key: str) -> Effect | CancelAsked:
        """Writes the intent, or finds what an earlier execution left."""
        begun = await patiently(self._db, lambda c: effects.begin(c, self.run_id, self.epoch, key))
        if begun is None:
            raise self.lost
        return begun

    async def word(self, key: str) -> Word | None:
        """What a person has said of an effect that nobody knows the outcome of."""
        asked = native_id(self.run_id, key)
        return await patiently(self._db, lambda c: effects.word(c, self.run_id, asked))

    async def take_over(self, key: str) -> None:
        """The intent of an earlier owner becomes ours: it is known not to have been performed."""
        await self._fenced(lambda c: effects.take_over(c, self.run_id, self.epoch, key))

    async def repeat(self, key: str, word: Word) -> None:
        """It becomes ours because a person says so."""
        said = word.interrupt_id
        await self._fenced(lambda c: effects.repeat(c, self.run_id, self.epoch, key, said))

    async def believe(self, key: str, word: Word, value: Any) -> None:
        """A person says that it has happened, and gave this."""
        said = word.interrupt_id
        await self._fenced(lambda c: effects.believe(c, self.run_id, self.epoch, key, said, value))

    async def complete(self, key: str, value: Any) -> Any:
        """The value as every later execution will get it. Raises OutcomeRefused."""
        kept, refused = as_json(value)
        await self._fenced(
            lambda c: effects.complete(c, self.run_id, self.epoch, key, kept, refused=refused)
        )
        if refused is not None:
            raise OutcomeRefused(refused)
        return kept

    async def forget(self, key: str) -> None:
        """The intent is taken back: nothing has happened."""
        await self._fenced(lambda c: effects.forget(c, self.run_id, self.epoch, key))

    async def try_to_forget(self, key: str) -> None:
        """Once, and the fence decides: another owner may have the run already."""
        with suppress(Unavailable):
            async with self._db.connect() as connection:
                await effects.forget(connection, self.run_id, self.epoch, key)

    @property
    def lost(self) -> LeaseLost:
        return LeaseLost(self.run_id, self.epoch)

    async def _fenced(self, act: Callable[[Connection], Awaitable[bool]]) -> None:
        if not await patiently(self._db, act):
            raise self.lost


def check_key(key: str) -> None:
    """Raises ValueError or TypeError before anything is done."""
    if not isinstance(key, str):
        raise TypeError("the key of an effect is a text")
    if not 1 <= len(key) <= KEY_CHARS_MAX or not is_storable(key):
        raise ValueError(f"the key of an effect has 1 to {KEY_CHARS_MAX} printable characters")


def as_json(value: Any) -> tuple[Any, str | None]:
    """The value as every later execution will see it, or why it cannot be kept."""
    try:
        json.dumps(value, allow_nan=False)
        encoded = orjson.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        return None, f"a guarded effect has to return JSON: {str(error)[:200]}"
    if len(encoded) > OUTCOME_BYTES_MAX:
        return None, f"a guarded effect may return {OUTCOME_BYTES_MAX} bytes, not {len(encoded)}"
    if b"\\u0000" in encoded:
        return None, "a guarded effect returned a text with NUL, which cannot be stored"
    return orjson.loads(encoded), None


def kept(outcome: dict[str, Any]) -> Any:
    """What an outcome of the ledger gives. Raises OutcomeRefused."""
    if "refused" in outcome:
        raise OutcomeRefused(outcome["refused"])
    return outcome["value"]
