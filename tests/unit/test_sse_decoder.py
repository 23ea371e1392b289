"""The event stream decoder against the rules of the WHATWG standard.

The vectors are those of web-platform-tests' `eventsource/format-*`, told in our own words.
"""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.sse import Decoder, ServerEvent

BOM = b"\xef\xbb\xbf"


def texts(*chunks: bytes) -> list[str]:
    decoder = Decoder()
    return [event.data for chunk in chunks for event in decoder.feed(chunk)]


def pairs(stream: bytes) -> list[tuple[str, str]]:
    return [(event.type, event.data) for event in Decoder().feed(stream)]


def test_one_byte_order_mark_at_the_start_is_dropped() -> None:
    assert texts(BOM + b"data:1\n\n" + b"data:2\n\n") == ["1", "2"]


def test_a_second_byte_order_mark_belongs_to_the_field_name() -> None:
    assert texts(BOM + BOM + b"data:1\n\ndata:2\n\n" + BOM + b"data:3\n\n") == ["2"]


def test_a_byte_order_mark_that_is_cut_is_still_one() -> None:
    assert texts(b"\xef", b"\xbb", b"\xbfdata:1\n\n") == ["1"]


def test_bytes_that_only_begin_like_a_byte_order_mark_are_kept() -> None:
    assert texts(b"\xef", b"\xbb:\n", b"data:1\n\n") == ["1"]


def test_comments_are_no_fields_and_dispatch_nothing() -> None:
    stream = b"data:1\r:\0\n:\r\ndata:2\n:" + b"x" * 4096 + b"\rdata:3\n:data:fail\r:x\n\n"
    assert texts(stream) == ["1\n2\n3"]


def test_a_blank_line_after_a_comment_alone_dispatches_nothing() -> None:
    assert texts(b": keep-alive\n\n: keep-alive\n\n") == []


def test_a_final_block_without_its_blank_line_was_not_received() -> None:
    assert texts(b"retry:1000\ndata:test1\n\nid:test\ndata:test2") == ["test1"]


def test_the_last_field_before_the_blank_line_may_be_empty_data() -> None:
    assert texts(b"retry:1000\ndata:test1\n\nid:test\ndata\n\n") == ["test1", ""]


def test_empty_data_fields_dispatch_empty_text_and_join_as_lines() -> None:
    assert texts(b"data:\n\ndata\ndata\n\ndata:test\n\n") == ["", "\n", "test"]


def test_field_names_are_case_sensitive_and_exact() -> None:
    stream = b"Data:1\ndata :2\n data:3\ndata\0:4\nda-ta:5\nXdata:6\ndata:7\n\n"
    assert texts(stream) == ["7"]


def test_a_field_without_colon_has_the_empty_value() -> None:
    assert texts(b"data:test\ndata\ndata:test\n\n") == ["test\n\ntest"]


def test_exactly_one_space_after_the_colon_is_dropped() -> None:
    assert texts(b"data:\ttest\rdata: \ndata:test\n\ndata:  two\n\n") == ["\ttest\n\ntest", " two"]


def test_a_colon_in_the_value_is_part_of_it() -> None:
    assert texts(b"data:a:b: c\n\n") == ["a:b: c"]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_each_line_end_alone_ends_lines(end: bytes) -> None:
    assert texts(b"data:1" + end + b"data:2" + end + end) == ["1\n2"]


def test_line_ends_may_be_mixed() -> None:
    assert texts(b"data:test\r\ndata\ndata:test\r\n\r") == ["test\n\ntest"]


def test_a_line_feed_after_a_cut_carriage_return_is_no_second_line() -> None:
    assert texts(b"data:1\r", b"\ndata:2\r", b"", b"\n\r", b"\n") == ["1\n2"]


def test_an_event_ended_by_carriage_return_does_not_wait_for_more_bytes() -> None:
    assert texts(b"data:1\r\r") == ["1"]


def test_only_cr_and_lf_end_a_line() -> None:
    stream = "data:a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\n\n"
    assert texts(stream.encode()) == ["a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg"]


def test_a_nul_in_data_is_kept() -> None:
    assert texts(b"data:\0\n\n\n\n") == ["\0"]


def test_utf8_is_decoded_and_broken_bytes_are_replaced() -> None:
    assert texts("data:ok…重启\n\n".encode(), b"data:\xff\xe9\n\n") == ["ok…重启", "��"]


def test_the_type_is_message_unless_named_and_lasts_for_one_event() -> None:
    stream = b"event:test\ndata:1\n\ndata:2\n\nevent:\ndata:3\n\nevent:x\n\ndata:4\n\n"
    assert pairs(stream) == [
        ("test", "1"), ("message", "2"), ("message", "3"), ("message", "4"),
    ]  # fmt: skip


def test_the_last_of_several_types_counts() -> None:
    assert pairs(b"event:a\nevent:b\ndata:x\n\n") == [("b", "x")]


def test_an_id_outlives_the_event_that_set_it() -> None:
    events = Decoder().feed(b"id:7\ndata:1\n\ndata:2\n\nid\ndata:3\n\n")
    assert [event.id for event in events] == ["7", "7", ""]


def test_an_id_with_nul_is_ignored() -> None:
    events = Decoder().feed(b"id:1\ndata:a\n\nid:2\0\ndata:b\n\n")
    assert [event.id for event in events] == ["1", "1"]


def test_an_id_without_data_moves_the_cursor_at_its_blank_line() -> None:
    decoder = Decoder("3")
    assert decoder.feed(b"id:9\n") == []
    assert decoder.last_event_id == "3"
    assert decoder.feed(b"\n") == []
    assert decoder.last_event_id == "9"


@pytest.mark.parametrize(
    ("line", "retry_ms"),
    [(b"retry:3000", 3000), (b"retry:03000", 3000), (b"retry:1000x", None), (b"retry:-1", None),
     (b"retry:", None), (b"retry", None), ("retry:\uff11".encode(), None)],
)  # fmt: skip
def test_retry_takes_digits_only(line: bytes, retry_ms: int | None) -> None:
    decoder = Decoder()
    decoder.feed(line + b"\n")
    assert decoder.retry_ms == retry_ms


PIECES = st.sampled_from(
    [b"data:", b"data: ", b"event:", b"id:", b"retry:", b":", b"\n", b"\n\n", b"\r", b"\r\n",
     b" ", b"\0", b"1", b"x", "重".encode(), "𝄞".encode(), BOM, b"\xef", b"\xff"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=40).map(b"".join), st.data())
def test_where_the_bytes_are_cut_never_matters(stream: bytes, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8).map(sorted))
    edges = [0, *cuts, len(stream)]
    whole, cut = Decoder(), Decoder()
    got: list[ServerEvent] = []
    for start, end in pairwise(edges):
        got += cut.feed(stream[start:end])
    assert got == whole.feed(stream)
    assert (cut.last_event_id, cut.retry_ms) == (whole.last_event_id, whole.retry_ms)


@given(st.lists(st.text(), max_size=5))
def test_what_is_encoded_as_frames_comes_back(values: list[str]) -> None:
    lines = [value.replace("\r", " ").replace("\n", " ") for value in values]
    stream = "".join(f"id: {n}\nevent: e\ndata: {line}\n\n" for n, line in enumerate(lines, 1))
    decoder = Decoder()
    got = [event for byte in stream.encode() for event in decoder.feed(bytes([byte]))]
    assert got == [ServerEvent("e", line, str(n)) for n, line in enumerate(lines, 1)]
