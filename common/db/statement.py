"""One fixed SQL text with named parameters, which the driver knows by number."""

import re
from typing import Any

from common.db.engine import Connection

_NAME = re.compile(r"(?<!:):([a-z_]+)")


class Statement:
    """`:name` becomes `$n` once; every call names its values. asyncpg prepares it."""

    __slots__ = ("_names", "sql")

    def __init__(self, sql: str) -> None:
        self._names = tuple(dict.fromkeys(_NAME.findall(sql)))
        numbers = {name: f"${number}" for number, name in enumerate(self._names, 1)}
        self.sql = _NAME.sub(lambda match: numbers[match[1]], sql)

    async def rows(self, connection: Connection, **values: Any) -> list[Any]:
        return await connection.rows(self.sql, *self._arguments(values))

    async def row(self, connection: Connection, **values: Any) -> Any | None:
        return await connection.row(self.sql, *self._arguments(values))

    async def value(self, connection: Connection, **values: Any) -> Any:
        return await connection.value(self.sql, *self._arguments(values))

    async def found(self, connection: Connection, **values: Any) -> bool:
        """Whether there was any row: how fenced statements say that they took effect."""
        return bool(await connection.rows(self.sql, *self._arguments(values)))

    def _arguments(self, values: dict[str, Any]) -> list[Any]:
        if len(values) != len(self._names):
            raise TypeError(f"parameters are {self._names}, got {tuple(values)}")
        return [values[name] for name in self._names]
