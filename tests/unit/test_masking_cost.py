"""Masking takes time in proportion to the text, whatever is in it (I8)."""

import threading
import time

import pytest

from common.errors import Misconfigured
from common.masking import MASK, Masker
from common.masking.own import WINDOW_CHARS

# what one rule or another could be made to read again and again
UNITS = [
    "://a:b@", "://a@", "://a:", "://", "token=f(", "token='", "token=a)", "token=((((",
    "password=", "password: ", "password: a", "password : int", "PASSWORD={", "eyJ.",
    "eyJaaaaaaaaa.", "sk-", "sk-a/", "-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "Cookie: a",
    'Cookie: a="', "Authorization: ", "basic ", "AKIAIOSFODNN7EXAMPLE ", "--token ", "mysql -",
    "redis-cli ", "-u a:", "-u a -p ", "<password>", "<password>a", 'name="token" value=',
    "login a password ", "api api ", "密码是", "\\", "a", "a ", "pass",
]  # fmt: skip


def seconds(text: str, masker: Masker) -> float:
    """Of this process's own time, the least of two."""
    spent = []
    for _ in range(2):
        began = time.process_time()
        masker.text(text)
        spent.append(time.process_time() - began)
    return min(spent)


@pytest.mark.parametrize("unit", UNITS)
def test_ten_times_the_text_costs_about_ten_times_as_much(unit: str) -> None:
    """Quadratic would be a hundred times."""
    small, large = (unit * (chars // len(unit)) for chars in (10_000, 100_000))
    masker = Masker()
    assert seconds(large, masker) < 30 * (seconds(small, masker) + 0.001)


@pytest.mark.parametrize("unit", ["key", "auth", "secret-", "auth ", "<key", "-token", "://", "a"])
def test_to_look_at_a_piece_of_a_stream_costs_no_more_than_to_read_it(unit: str) -> None:
    text = unit * (4_000 // len(unit)) + ".x\n"
    masker, spent = Masker(), []
    for _ in range(2):
        stream, began = masker.stream(), time.process_time()
        stream.feed(text)
        spent.append(time.process_time() - began)
    assert min(spent) < 30 * (seconds(text, masker) + 0.001)


@pytest.mark.parametrize("pattern", [r"\w+@acme", r"[a-z0-9]+-[a-z0-9]+!", r"a.*b.{0,9}c"])
def test_an_own_pattern_that_backtracks_costs_in_proportion_to_the_text(pattern: str) -> None:
    masker = Masker([pattern])
    small, large = ("a" * chars for chars in (4_000, 40_000))
    assert seconds(large, masker) < 30 * (seconds(small, masker) + 0.001)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "is no regular expression"),
        ("a*", "matches the empty text"),
        (r"(a+)+b", "repeats a repetition"),
        (r"(?:\w+\s?)*x", "repeats a repetition"),
        (r"(?:(?:ab)*c{2,})+x", "repeats a repetition"),
        (r"(?:\w|\d)(?:a[b]|\w)+x", "repeats a repetition"),
    ],
)
def test_an_own_pattern_that_cannot_be_used_is_refused_by_name(pattern: str, why: str) -> None:
    with pytest.raises(Misconfigured, match="STEADYRUN_MASKING_PATTERNS") as refused:
        Masker([r"ACME-\d+", pattern])
    assert repr(pattern) in str(refused.value)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "pattern",
    [r"ACME-\d+", r"(?:[A-Z0-9]++-)+[A-Z]{4}", r"(?i)acme(?:-[a-z]{4}){3}", r"\bK[A-F0-9]{30,}\b"],
)
def test_ordinary_own_patterns_are_taken(pattern: str) -> None:
    assert Masker([pattern]).text("nothing here") == "nothing here"


@pytest.mark.parametrize("before", [0, 1, 1000, WINDOW_CHARS - 3, WINDOW_CHARS // 2 - 3, 5_000])
def test_an_own_pattern_is_found_wherever_it_stands_in_a_long_text(before: int) -> None:
    text = "x " * (before // 2) + "ACME-123 " + "y " * 3_000
    masked = Masker([r"\bACME-\d+\b"]).text(text)
    assert masked == text.replace("ACME-123", MASK)


def test_other_threads_go_on_while_a_long_text_is_masked() -> None:
    """The thread that renews a runner's lease, for one: a search holds the interpreter's lock."""
    text, over, gaps = "the word secret is one " * 300_000, threading.Event(), [0.0]

    def breathe() -> None:
        last = time.monotonic()
        while not over.wait(0.01):
            now = time.monotonic()
            gaps.append(now - last)
            last = now

    thread = threading.Thread(target=breathe)
    thread.start()
    masked = Masker().text(text)
    over.set()
    thread.join()
    assert masked == text
    assert len(gaps) > 20
    assert max(gaps) < 2
