"""Resume validators, as an author writes them beside the graphs: gateways load this file."""

from typing import Any


def positive(values: dict[str, Any], interrupts: list[dict[str, Any]], principal: Any) -> None:
    """Only ada may ask for more than ten."""
    for value in values.values():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError("a positive number, please")
        if value > 10 and principal.user != "ada":
            raise ValueError("more than ten is for ada")


def anything(values: dict[str, Any], interrupts: list[dict[str, Any]], principal: Any) -> None:
    """Lets wrong answers through."""
