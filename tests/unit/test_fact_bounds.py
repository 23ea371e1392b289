"""How much may be a fact, and how one comes back from more than that (common/facts)."""

from typing import Any

import pytest

from common.facts import FACTS_BYTES_MAX, FACTS_MAX, check_change

BIG: dict[str, Any] = {f"a{n}": "x" * 1024 for n in range(40)}
MANY: dict[str, Any] = {f"a{n}": n for n in range(2 * FACTS_MAX)}


@pytest.mark.parametrize(
    "after",
    [
        {key: BIG[key] for key in list(BIG)[1:]},
        {**BIG, "a1": "y"},
        {**{key: BIG[key] for key in list(BIG)[1:]}, "b": "z"},
        {},
    ],
)
def test_too_much_may_become_less_in_any_steps(after: dict[str, Any]) -> None:
    check_change(BIG, after)


@pytest.mark.parametrize("after", [BIG, {**BIG, "a1": "y" * 1024}, {**BIG, "b": 1}])
def test_too_much_stays_refused_where_it_becomes_no_less(after: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{FACTS_BYTES_MAX} bytes"):
        check_change(BIG, after)


def test_too_many_may_become_fewer_and_not_more() -> None:
    check_change(MANY, {key: MANY[key] for key in list(MANY)[1:]})
    fewer_bytes = {**dict.fromkeys(MANY, 0), "b": 0}
    with pytest.raises(ValueError, match=f"{FACTS_MAX} facts"):
        check_change(MANY, fewer_bytes)


def test_what_fits_is_a_change_like_any_other() -> None:
    check_change({}, {"a": "x" * (FACTS_BYTES_MAX - 100)})
    check_change(BIG, {"a": 1})
    with pytest.raises(ValueError, match="bytes"):
        check_change({}, {"a": "x" * FACTS_BYTES_MAX})
