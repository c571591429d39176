"""JSON lines cut at every boundary come out whole."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.ndjson import DataLineSplitter, Line, NdjsonSplitter

LINES = st.lists(st.sampled_from([b"{}", b'{"a": "\\n"}', b"", b"  ", b"\xff", '{"é": 1}'.encode()]), max_size=6)
END = st.sampled_from([b"\n", b"\r\n"])


@given(LINES, END, st.sampled_from([b"", b'{"done": tr']), st.lists(st.integers(0, 200), max_size=12))
def test_any_cut_gives_the_same_lines(lines: list[bytes], end: bytes, remainder: bytes, cuts: list[int]) -> None:
    raw = b"".join(line + end for line in lines) + remainder
    at = sorted({min(c, len(raw)) for c in cuts} | {0, len(raw)})
    splitter = NdjsonSplitter()
    got = [e.raw for a, b in pairwise(at) for e in splitter.feed(raw[a:b])]
    assert got == [line + end for line in lines]
    assert splitter.remainder() == remainder and splitter.remainder() == b""


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_no_byte_is_lost_or_made_up(chunks: list[bytes]) -> None:
    splitter = NdjsonSplitter()
    out = b"".join(e.raw for chunk in chunks for e in splitter.feed(chunk))
    assert out + splitter.remainder() == b"".join(chunks)


def test_lines_of_data_are_events() -> None:
    splitter = DataLineSplitter()
    first, second = splitter.feed(b'\xef\xbb\xbfdata: {"a": 1}\r\ndata: {"b": 2}\ndata: ')
    assert (first.data, second.data, splitter.remainder()) == (b'{"a": 1}', b'{"b": 2}', b"data: ")
    assert first.with_data(b"{}") == b"\xef\xbb\xbfdata: {}\r\n"
    assert second.raw == b'data: {"b": 2}\n' and second.with_data(b"{}") == b"data: {}\n"


def test_data_and_another_in_its_place() -> None:
    assert Line(b'{"a": 1}\r\n').data == b'{"a": 1}'
    assert Line(b" \n").data is None
    assert Line(b' {"a": 1}\r\n').with_data(b"{}") == b" {}\r\n"
    assert Line(b"\n").with_data(b"{}") == b"{}\n"
