"""Streams cut at every boundary come out whole."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.sse import Event, EventSplitter, event

END = st.sampled_from([b"\n", b"\r\n", b"\r"])
LINE = st.sampled_from(
    [b"data: {}", b"data:x", b"data: ", b"data", b": note", b"event: message", b"id: 7", b"\xff\xfe", b"y"]
)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream and its events."""
    end = draw(END)
    events = [
        b"".join(line + end for line in draw(st.lists(LINE, min_size=1, max_size=3))) + end
        for _ in range(draw(st.integers(0, 5)))
    ]
    return b"".join(events), events


@given(streams(), st.lists(st.integers(0, 200), max_size=12))
def test_any_cut_gives_the_same_events(stream: tuple[bytes, list[bytes]], cuts: list[int]) -> None:
    raw, expected = stream
    at = sorted({min(c, len(raw)) for c in cuts} | {0, len(raw)})
    splitter = EventSplitter()
    got = [e.raw for a, b in pairwise(at) for e in splitter.feed(raw[a:b])]
    rest = splitter.remainder()
    assert b"".join(got) + rest == raw
    assert [*got, rest] == expected or got == expected  # a lone CR at the end waits for one byte more
    assert splitter.remainder() == b""


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_no_byte_is_lost_or_made_up(chunks: list[bytes]) -> None:
    splitter = EventSplitter()
    out = b"".join(e.raw for chunk in chunks for e in splitter.feed(chunk))
    assert out + splitter.remainder() == b"".join(chunks)


# As the standard reads a stream: WHATWG HTML, 9.2.5 and 9.2.6, word for word, and not as `sse` does it.


def dispatched(stream: bytes) -> list[bytes]:
    """The data of each event that a browser would dispatch."""
    lines = re.split(rb"\r\n|\n|\r", stream.removeprefix(b"\xef\xbb\xbf"))
    found, data, has_data = [], b"", False
    for line in lines[:-1]:  # what no line end ends is dropped
        if not line:
            if has_data:
                found.append(data.removesuffix(b"\n"))
            data, has_data = b"", False
            continue
        name, _, value = line.partition(b":")
        if name == b"data":
            data, has_data = data + value.removeprefix(b" ") + b"\n", True
    return found


LINES = st.sampled_from([
    b"", b"data", b"data:", b"data: ", b"data: {", b"data:}", b"data:  a", b"datum: x", b": c", b"id: 1", b"event: e",
    b"retry: 5", b"data : x", b" data: x", b"\xef\xbb\xbfdata: x", b"x",
])  # fmt: skip
MIXED = st.lists(st.tuples(LINES, END), max_size=14).map(lambda lines: b"".join(line + end for line, end in lines))


def split(stream: bytes, piece: int) -> list[Event]:
    splitter = EventSplitter()
    found = [event for at in range(0, len(stream), piece) for event in splitter.feed(stream[at : at + piece])]
    return [*found, Event(splitter.remainder())]


@given(st.booleans(), MIXED, st.integers(1, 40))
@settings(max_examples=400)
def test_any_stream_is_read_as_the_standard_reads_it(bom: bool, stream: bytes, piece: int) -> None:
    stream = b"\xef\xbb\xbf" * bom + stream
    whole = stream + b"\n\n"  # so that the last event ends, too
    assert [event.data for event in split(whole, piece) if event.data is not None] == dispatched(whole)
    assert b"".join(event.raw for event in split(stream, piece)) == stream


DATA = st.lists(
    st.sampled_from([b"{", b"}", b'"a": 1', b"", b" ", b"data: x", b"\xc3\xa9", b":"]), min_size=1, max_size=5
)


@given(st.booleans(), MIXED, DATA, END)
@settings(max_examples=500)
def test_other_data_is_read_as_it_was_given_and_all_else_stays(
    bom: bool, stream: bytes, lines: list[bytes], between: bytes
) -> None:
    """`between`: the line ends in the data. JSON may be laid out over lines; a reader gets LF for each of them."""
    data, wanted = between.join(lines), b"\n".join(lines)
    stream = stream.replace(b"\xef\xbb\xbf", b"")  # where the line before it goes, it would begin the stream
    events = split(b"\xef\xbb\xbf" * bom + stream + b"\n\n", 7)
    for at, one in enumerate(events):
        raw = one.with_data(data)
        if one.data is None:
            assert raw == one.raw
            continue
        out = b"".join([*(e.raw for e in events[:at]), raw, *(e.raw for e in events[at + 1 :])])
        told = [wanted if other is one else other.data for other in events if other.data is not None]
        assert dispatched(out) == told
        assert Event(raw, first=at == 0).data == wanted
        assert _others(raw) == _others(one.raw)


def _others(raw: bytes) -> list[bytes]:
    lines = re.split(rb"\r\n|\n|\r", raw.removeprefix(b"\xef\xbb\xbf"))
    return [line for line in lines if line and line != b"data" and not line.startswith(b"data:")]


@given(MIXED, DATA)
def test_the_data_of_a_stream_that_was_cut_is_replaced_too(stream: bytes, lines: list[bytes]) -> None:
    for left in (Event(b"data: {" + stream), Event(stream + b"data: }")):
        assert Event(left.with_data(b"\n".join(lines))).data == b"\n".join(lines)


def test_data_as_the_standard_reads_it() -> None:
    assert Event(b"data: a\ndata:b\nid: 1\n\n").data == b"a\nb"
    assert Event(b"data:  a\r\n\r\n").data == b" a"
    assert Event(b": note\n\n").data is None
    assert Event(b"data\ndata\n\n").data == b"\n"
    assert Event(b"\xef\xbb\xbfdata: a\n\n", first=True).data == b"a"
    assert Event(b"\xef\xbb\xbfdata: a\n\n").data is None


def test_with_data_keeps_the_rest() -> None:
    assert Event(b"event: x\r\ndata: a\r\nid: 1\r\n\r\n").with_data(b"{}") == b"event: x\r\ndata: {}\r\nid: 1\r\n\r\n"
    assert Event(b"data: a\ndata: b\n\n").with_data(b"{}") == b"data: {}\n\n"
    assert Event(b"data: a\n\n").with_data(b"{}") == b"data: {}\n\n"
    assert Event(b"data: a\n\n").with_data(b"{\n}") == b"data: {\ndata: }\n\n"
    assert Event(b"data: {\r\ndata: }\r\nid: 1\r\n\r\n").with_data(b"{\n\n}") == (
        b"data: {\r\ndata: \r\ndata: }\r\nid: 1\r\n\r\n"
    )
    assert Event(b"id: 1\ndata: a\ndata: b").with_data(b"{}") == b"id: 1\ndata: {}"
    assert Event(b"data: a\rdata: b\r\n\n").with_data(b"{}") == b"data: {}\r\n\n"
    assert Event(b"data: a").with_data(b"{\n}") == b"data: {\ndata: }"
    assert Event(b"\xef\xbb\xbfdata: a\n\n", first=True).with_data(b"b") == b"\xef\xbb\xbfdata: b\n\n"
    assert Event(b": note\n\n").with_data(b"{}") == b": note\n\n"
    assert event(b"{\r\n}") == b"data: {\ndata: }\n\n"


@given(st.binary(max_size=12))
def test_the_short_way_reads_as_the_long_one(data: bytes) -> None:
    """An event of one data line is read without being split; a second line end before it forces the long way."""
    raw = b"data: " + data + b"\n\n"
    plain, other = Event(raw).data, Event(b": x\n" + raw).data
    assert plain == other
