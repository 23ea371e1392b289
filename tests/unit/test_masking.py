"""No secret leaves (I9), and what leaves is bounded (I8)."""

import dataclasses
import json
import re
import uuid
from datetime import UTC, datetime
from enum import Enum
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from common.errors import Misconfigured
from common.masking import MASK, Masker, TextMask, names_secret
from common.masking.patterns import Patterns
from common.masking.texts import HOLD_CHARS_MAX

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlLXZhbHVl"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\nabc\n-----END RSA PRIVATE KEY-----"
SECRETS = {
    "private key": (PEM, PEM),
    "jwt": (JWT, JWT),
    "bearer": ("Authorization: Bearer abcdef0123456789", "abcdef0123456789"),
    "basic": ("Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA=="),
    "postgres": ("postgresql://app:s3cr3t@db:5432/x", "s3cr3t"),
    "url with odd password": ("redis://:p/a@s@host:6379", "p/a@s"),
    "openai": ("sk-proj-abcdefghij0123456789", "sk-proj-abcdefghij0123456789"),
    "aws": ("key AKIAIOSFODNN7EXAMPLE.", "AKIAIOSFODNN7EXAMPLE"),
    "github": ("ghp_0123456789abcdefghij0123", "ghp_0123456789abcdefghij0123"),
    "slack": ("xoxb-123456789012-abcdef", "xoxb-123456789012-abcdef"),
    "assignment": ("export DB_PASSWORD=hunter2;", "hunter2"),
    "quoted": ('{"api_key": "with spaces too"}', "with spaces too"),
    "colon": ("token: abc123def", "abc123def"),
}
MENTIONS = [
    "The turkey passes the back of the house",
    "Each account has a token, which the task asks for",
    "Whoever takes the key of the basic plan acts on the author's behalf",
    "The cookies are for everybody",
    "A secret that is kept by three is none - ask the secretary",
    "The password was changed since the last webhook was sent",
    "The signature is valid: see https://example.org/passes",
    "Every credential has its bearer",
    "请不要把密码告诉别人",
]
HARMLESS = [
    "Your password must have at least twelve characters.",
    "The token: please renew it",
    "http://localhost:8080/a@b and http://host:80",
    "Basic understanding of bearer authentication",
    "sk-learn is a library, and eye is a word",
    "1 - 2 -- 3 --- x",
    "risk-based disk-usage-in-percent",
    "日本語のテキスト",
    "s",
    "",
]


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_in_a_text_is_hidden(kind: str) -> None:
    text, secret = SECRETS[kind]
    masked = Masker().text(f"see {text} there")
    assert secret not in masked
    assert MASK in masked
    assert masked.startswith("see ")


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_text_is_left_alone(text: str) -> None:
    assert Masker().text(text) == text


def test_masking_twice_changes_nothing() -> None:
    masked = Masker().text(" ".join(text for text, _ in SECRETS.values()))
    assert Masker().text(masked) == masked


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "db_password",
        "apiKey",
        "API-KEY",
        "X-Auth-Token",
        "Authorization",
        "clientSecret",
        "accesstoken",
        "private_key",
        "set-cookie",
        "connectionString",
        "DATABASE_URL",
        "PIN",
        "数据库密码",
        "accountKey",
        "Ocp-Apim-Subscription-Key",
    ],
)
def test_keys_that_name_secrets(key: str) -> None:
    assert names_secret(key)
    assert Masker().value({key: "harmless looking"}) == {key: MASK}
    assert Masker().value({key: {"a": ["b"]}}) == {key: MASK}


@pytest.mark.parametrize(
    "key",
    ["inputTokens", "author", "key", "keyboard", "pinned", "tokenizer", "secret_name", "tokenType"],
)
def test_keys_that_do_not(key: str) -> None:
    assert Masker().value({key: "shown"}) == {key: "shown"}


def test_counts_are_no_secrets_but_numeric_passwords_are() -> None:
    assert Masker().value({"token_usage": {"total": 12}}) == {"token_usage": {"total": 12}}
    value = {"token_count": 5, "max_token": 7, "password": 1234, "has_secret": True, "token": None}
    assert Masker().value(value) == {**value, "password": MASK}


def test_a_secret_named_beside_its_value_is_hidden() -> None:
    assert Masker().value([{"name": "X-Api-Key", "value": "abc"}]) == [
        {"name": "X-Api-Key", "value": MASK}
    ]


def test_a_secret_after_its_flag_or_header_in_a_list_is_hidden() -> None:
    value = [
        ["mysql", "--password", "letmein", "db"],
        ["Authorization", "Basic YWE6YmI"],
        ["a", "b"],
    ]
    assert Masker().value(value) == [
        ["mysql", "--password", MASK, "db"],
        ["Authorization", MASK],
        ["a", "b"],
    ]


@pytest.mark.parametrize("limit", [64, 200, 2_000])
def test_a_secret_that_is_cut_by_the_limit_is_not_shown_in_part(limit: int) -> None:
    """What decides that it is one stands behind the cut."""
    for before in range(0, 4_000, 97):
        text = "x" * before + " postgresql://app:s3cr3tpassword@db/x and more" + " y" * 4_000
        assert "s3cr" not in Masker().text(text, limit)
        assert "s3cr" not in str(Masker().value({"text": text}, limit))


def test_own_patterns_are_hidden_too() -> None:
    assert Masker([r"ACME-\d+"]).text("id ACME-123 ok") == f"id {MASK} ok"


def test_an_own_pattern_that_is_no_expression_is_told() -> None:
    with pytest.raises(Misconfigured, match="is no regular expression"):
        Masker(["("])


class Model(BaseModel):
    password: str
    city: str


@dataclasses.dataclass
class Record:
    token: str
    city: str


class Colour(Enum):
    RED = "red"


class Strange:
    def __repr__(self) -> str:
        return "Strange(inner='hidden')"


def test_objects_that_are_no_json_become_safe_text() -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    value = {
        "model": Model(password="x", city="Ulm"),
        "record": Record(token="x", city="Ulm"),
        "when": moment,
        "id": uuid.UUID(int=1),
        "bytes": b"abc",
        "set": {1},
        "tuple": (1, 2),
        "enum": Colour.RED,
        "strange": Strange(),
        "nan": float("nan"),
        "huge": 2**80,
        3: "number as key",
    }
    assert Masker().value(value) == {
        "model": {"password": MASK, "city": "Ulm"},
        "record": {"token": MASK, "city": "Ulm"},
        "when": str(moment),
        "id": str(uuid.UUID(int=1)),
        "bytes": "<3 bytes>",
        "set": [1],
        "tuple": [1, 2],
        "enum": "red",
        "strange": "<Strange>",
        "nan": None,
        "huge": str(2**80),
        "3": "number as key",
    }


def test_what_postgres_and_utf8_cannot_hold_is_replaced() -> None:
    assert Masker().text("a\0b\ud800c\ud83d\ude00") == "a\ufffdb\ufffdc\U0001f600"


def test_a_value_that_contains_itself_ends() -> None:
    ring: dict[str, Any] = {}
    ring["ring"] = ring
    assert "…" in json.dumps(Masker().value(ring), ensure_ascii=False)


@pytest.mark.parametrize(
    "value",
    [
        "x" * 100_000,
        ["x" * 50] * 10_000,
        {f"key{n}": n for n in range(10_000)},
        [[[["deep" * 100] * 10] * 10] * 10] * 10,
        [1] * 5_000,
        {"k" * 5_000: 1},
        "\n" * 5_000,
    ],
)
@pytest.mark.parametrize("limit", [64, 500, 4_096])
def test_what_leaves_is_bounded(value: Any, limit: int) -> None:
    assert len(orjson.dumps(Masker().value(value, limit))) <= limit


JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)


@settings(deadline=None)
@given(JSONISH, st.integers(64, 2_000))
def test_any_value_becomes_bounded_json(value: Any, limit: int) -> None:
    assert len(orjson.dumps(Masker().value(value, limit))) <= limit


@settings(deadline=None)
@given(JSONISH)
def test_small_harmless_json_is_left_alone(value: Any) -> None:
    text = orjson.dumps(Masker().value(value, 1_000_000))
    assert orjson.loads(text) == Masker().value(orjson.loads(text), 1_000_000)


def pieces(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def streamed(mask: TextMask, deltas: list[str]) -> str:
    return "".join([*(mask.feed(delta) for delta in deltas), mask.flush()])


WORDS = st.sampled_from(
    [text for text, _ in SECRETS.values()]
    + HARMLESS
    + [
        "s",
        "sk",
        "sk-",
        "eyJ",
        "-----",
        "BEGIN ",
        "password",
        "=",
        ":",
        " ",
        "\n",
        '"',
        "@",
        "://u:",
    ]
    + ["AKIA", "bearer ", "abc123def456ghi789"]
)


@settings(deadline=None)
@given(st.lists(WORDS, max_size=8), st.lists(st.integers(0, 10_000), max_size=12))
def test_a_streamed_text_is_masked_alike_however_it_is_cut(
    words: list[str], cuts: list[int]
) -> None:
    text = "".join(words)
    masker = Masker()
    assert streamed(masker.stream(), pieces(text, cuts)) == masker.text(text)


@settings(deadline=None)
@given(st.lists(WORDS, max_size=8))
def test_a_streamed_text_is_masked_alike_letter_by_letter(words: list[str]) -> None:
    text = "".join(words)
    assert streamed(Masker().stream(), list(text)) == Masker().text(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"password": "the long first part, it\\"s hunter2x", "y": 2}',
        "password = 'the long first part, it\\'s hunter2x' and more",
        'Cookie: sid="abcdefghijklmnop"; b=2\n',
        "the PASSWORD_FOR_THE_PRODUCTION_DATABASE WAS Hunter2x here",
        "the token令牌\n=\nHunter2x here",
        'curl "-uadmin:hunter2x" and\t-uadmin:hunter2x',
    ],
)
def test_a_secret_is_hidden_wherever_its_text_is_cut(text: str) -> None:
    """In JSON, between a stroke and the sign that it stands before, too."""
    masked = Masker().text(text)
    assert "unter2x" not in masked
    assert MASK in masked
    assert streamed(Masker().stream(), list(text)) == masked
    for at in range(len(text)):
        assert streamed(Masker().stream(), [text[:at], *text[at:]]) == masked


@settings(deadline=None)
@given(st.lists(st.sampled_from(["ACME-", "1", "23", " ", "x", "token=", "é"]), max_size=12))
def test_an_own_pattern_is_found_across_pieces(parts: list[str]) -> None:
    masker = Masker([r"ACME-\d+"])
    assert streamed(masker.stream(), parts) == masker.text("".join(parts))


@pytest.mark.parametrize(
    "text", ["Hello", "Hello wor", "It is 5 o'clock.", "日本語", "a - b", "tok"]
)
def test_ordinary_text_is_not_held_back(text: str) -> None:
    assert Masker().stream().feed(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the key is sk-ab", "the key is "),
        ("password=hun", "password="),
        ("postgresql://app:s3c", "postgresql://app:"),
        ("-----BEGIN PRI", ""),
        ("say ey", "say "),
    ],
)
def test_text_is_held_back_while_its_end_may_begin_a_secret(text: str, shown: str) -> None:
    mask = Masker().stream()
    assert mask.feed(text) == shown
    assert mask.feed(" ") + mask.flush() != ""


@pytest.mark.parametrize("text", MENTIONS)
def test_a_word_that_secrets_have_does_not_make_all_that_follows_suspicious(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """A model's words are looked at alone again soon after, not with all that stands before."""
    reads: list[str] = []
    read = Patterns.read

    def counted(patterns: Patterns, text: str) -> Any:
        reads.append(text)
        return read(patterns, text)

    stream, words = Masker().stream(), re.findall(r" ?\w+|\W", "and nothing else is meant.")
    shown = stream.feed(f"{text}, and so it goes on and on ")
    monkeypatch.setattr(Patterns, "read", counted)
    shown += "".join([*map(stream.feed, words), stream.flush()])
    assert shown == f"{text}, and so it goes on and on and nothing else is meant."
    assert not [text for text in reads if text.endswith("meant")]


def test_half_a_character_waits_for_the_other_half() -> None:
    mask = Masker().stream()
    assert mask.feed("a\ud83d") == "a"
    assert mask.feed("\ude00b") == "\U0001f600b"


@pytest.mark.parametrize("head", ["sk-1234567890abcdefghij", "password=1"])
def test_a_secret_without_an_end_does_not_fill_the_memory(head: str) -> None:
    mask, shown = Masker().stream(), ""
    for _ in range(40):
        shown += mask.feed(head if not shown else "x" * 1_000)
        assert len(mask._held) <= HOLD_CHARS_MAX
        head = "x" * 1_000
    shown += mask.feed(" end") + mask.flush()
    assert "xxx" not in shown
    assert shown.endswith(f"{MASK} end")


def test_a_private_key_without_an_end_stays_hidden() -> None:
    mask = Masker().stream()
    parts = [
        "-----BEGIN PRIVATE KEY-----\n",
        *["QUJD\n" * 500] * 10,
        "-----END PRIVATE KEY-----",
        "ok",
    ]
    assert streamed(mask, parts) == f"{MASK}ok"


def test_a_secret_that_is_a_key_is_masked_and_keys_stay_apart() -> None:
    one, two = ("ghp_" + letter * 36 for letter in "ab")
    masked = Masker().value({one: 1, two: 2, "password": "x"})
    assert list(masked.values()) == [1, 2, "***"]
    assert "ghp_" not in str(masked)


def test_an_integer_that_python_does_not_write_out_is_described() -> None:
    assert Masker().value({"n": 10**6000}) == {"n": "<integer of 19932 bits>"}
    assert Masker().value(2**70) == str(2**70)
