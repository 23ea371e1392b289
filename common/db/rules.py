"""Conditions that statements, constraints and indexes share, made from the table of statuses."""

from collections.abc import Iterable

from common.runs import ACTIVE_STATUSES, TERMINAL_STATUSES


def one_of(column: str, values: Iterable[str]) -> str:
    quoted = ", ".join(f"'{value}'" for value in sorted(values))
    return f"{column} IN ({quoted})"


IS_ACTIVE = f"{one_of('status', ACTIVE_STATUSES)} AND NOT waiting"
IS_TERMINAL = one_of("status", TERMINAL_STATUSES)
