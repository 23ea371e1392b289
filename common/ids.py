"""Ids: text with a prefix that tells the kind, made in Python before the row is stored.

`new_id` gives a UUIDv7 (RFC 9562): roughly ordered by time, so that B-trees grow at their end.
Clients treat ids as opaque (contract, introduction).
"""

import os
import re
import time
from hashlib import blake2b
from typing import Literal, NewType

ConversationId = NewType("ConversationId", str)
MessageId = NewType("MessageId", str)
RunId = NewType("RunId", str)
InterruptId = NewType("InterruptId", str)
RunnerId = NewType("RunnerId", str)
UserId = NewType("UserId", str)

Prefix = Literal["conv", "msg", "run", "int", "rnr"]

_ID = re.compile(r"(conv|msg|run|int|rnr)_[0-9a-f]{32}")


def new_id(prefix: Prefix) -> str:
    """A fresh id; unique without asking anybody."""
    return f"{prefix}_{_uuid7():032x}"


def stable_id(prefix: Prefix, *parts: str) -> str:
    """The same id for the same parts, anywhere: a text streamed now is stored under it later."""
    digest = blake2b("\x1f".join(parts).encode(errors="surrogatepass"), digest_size=16)
    return f"{prefix}_{digest.hexdigest()}"


def is_id(text: str, prefix: Prefix) -> bool:
    """Whether `text` can be an id of this kind at all; the edge answers 404 otherwise."""
    match = _ID.fullmatch(text)
    return match is not None and match[1] == prefix


def _uuid7() -> int:
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10))
    return (
        (milliseconds & 0xFFFF_FFFF_FFFF) << 80
        | 0x7 << 76
        | (random >> 68 & 0xFFF) << 64
        | 0b10 << 62
        | random & 0x3FFF_FFFF_FFFF_FFFF
    )
