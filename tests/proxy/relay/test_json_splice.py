"""Edits by search: the very bytes of `json_edit.rewrite`, for any JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.core.json_edit import EACH, HIDDEN, loads, rewrite
from proxy.relay.json_splice import Splicer, with_members

RULES: dict[str, Any] = {
    "id": b'"ours"',
    "model": b'"theirs"',
    "prompt_token_ids": b"null",
    "choices": {EACH: {"logprobs": HIDDEN, "token_ids": b"null", "prompt_token_ids": b"null"}},
}
# As the dialects have them: a name in two places, members to be removed, objects in objects.
MORE: dict[str, Any] = {
    "id": b'"ours"', "prompt_token_ids": b"null", "x": {"id": b"1", "model": None}, "delta": None,
    "choices": {EACH: {"logprobs": HIDDEN, "token_ids": b"null", "prompt_token_ids": b"null"}},
}  # fmt: skip
# As a server has them that leaves members out: several are removed.
GONE: dict[str, Any] = {
    "id": b'"ours"', "prompt_token_ids": None,
    "choices": {EACH: {"logprobs": b"null", "token_ids": None, "prompt_token_ids": None}},
}  # fmt: skip
NAMES = ("id", "model", "choices", "logprobs", "token_ids", "prompt_token_ids", "x", "delta")
TEXTS = st.one_of(
    st.text(max_size=8), st.sampled_from(NAMES), st.sampled_from([f'"{n}"' for n in NAMES] + ['"id":', "\\", '\\"id'])
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(allow_nan=False, allow_infinity=False), TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(st.sampled_from(NAMES), TEXTS), inner, max_size=4)
    ),
    max_leaves=14,
)
CHOICE = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4)
OBJECTS = st.dictionaries(st.sampled_from(NAMES), st.one_of(VALUES, st.lists(CHOICE, max_size=2)), max_size=6)
DUMPS = st.sampled_from([
    lambda v: json.dumps(v), lambda v: json.dumps(v, ensure_ascii=False, separators=(",", ":")),
    lambda v: " " + json.dumps(v, indent=1, ensure_ascii=False) + "\n ",
])  # fmt: skip
ADDS = st.dictionaries(st.sampled_from(("model", "logprobs", "new")), st.sampled_from([b"true", b'"m"']), max_size=3)


@given(OBJECTS, DUMPS, ADDS)
@example({"choices": [{"logprobs": [], "token_ids": [1, 2]}], "id": 'say "id'}, json.dumps, {})
@example({"id": "a", "choices": [{"delta": {"tool_calls": [{"id": "call"}]}}]}, json.dumps, {})
def test_it_is_the_same_as_looking_at_every_token(found: Any, dumps: Any, add: dict[str, bytes]) -> None:
    raw = dumps(found).encode("utf-8", "surrogatepass")
    try:
        parsed = loads(raw)
    except ValueError:
        return
    for rules in (RULES, MORE, GONE):
        assert Splicer(rules).edited(raw, parsed) == rewrite(raw, rules)
    assert with_members(raw, parsed, add) == rewrite(raw, {}, add)


FIRST = st.sampled_from(['"id":"a",', '"id":"b",', '"id": "a", ', '"id":"a","id":"b",', '"id":{"id":1},', ""])


@given(st.lists(st.tuples(FIRST, OBJECTS, DUMPS), max_size=5))
@example([('"id":"a",', {"x": 1}, json.dumps), ('"id":"a",', {"x": {"id": "b"}}, json.dumps)])
@example([('"id":"a",', {"x": 1}, json.dumps), ('"id":"a",', {"id": "b"}, json.dumps)])
def test_bodies_of_one_stream_begin_alike(bodies: list[tuple[str, Any, Any]]) -> None:
    rules: dict[str, Any] = {"id": b'"ours"', "choices": {EACH: {}}}
    splicer = Splicer(rules)
    for first, found, dumps in bodies:
        raw = dumps({"y": 0} | found).encode("utf-8", "surrogatepass").replace(b"{", b"{" + first.encode(), 1)
        try:
            parsed = loads(raw)
        except ValueError:
            continue
        assert splicer.edited(raw, parsed) == rewrite(raw, rules)


FEW: dict[str, Any] = {"id": rb'"ours\\1"', "choices": {EACH: {}}}
NULLS = RULES | {"choices": {EACH: {"logprobs": b"null", "token_ids": b"null", "prompt_token_ids": b"null"}}}


@given(st.lists(st.tuples(FIRST, OBJECTS, DUMPS), min_size=1, max_size=4), st.sampled_from([FEW, NULLS, GONE]))
@example([('"id":"a",', {}, json.dumps), ('"id":"a",', {"x": {"id": "a"}}, json.dumps)], FEW)
@example([('"id":"a",', {}, json.dumps), ("", {"x": {"id": "a"}}, json.dumps)], NULLS)
@example([('"id":"a",', {"choices": [{"x": 1, "token_ids": [1], "prompt_token_ids": [2]}]}, json.dumps)] * 2, GONE)
def test_the_events_of_a_read_are_edited_as_each_of_them(
    bodies: list[tuple[str, Any, Any]], rules: dict[str, Any]
) -> None:
    """At once or not at all; and never otherwise than each token by token."""
    splicer, raws, parsed = Splicer(rules), [], []
    for first, found, dumps in bodies:
        raw = dumps({"y": 0} | found).encode("utf-8", "surrogatepass").replace(b"{", b"{" + first.encode(), 1)
        try:
            parsed.append(loads(raw))
        except ValueError:
            continue
        raws.append(raw.replace(b"\n", b" "))
    if not raws:
        return
    assert splicer.edited(raws[0], parsed[0]) == rewrite(raws[0], rules)
    piece = b"".join(b"data: %s\n\n" % raw for raw in raws)
    expected = b"".join(b"data: %s\n\n" % rewrite(raw, rules) for raw in raws)
    assert splicer.through(piece) in (None, expected)
    assert splicer.edited_all(piece, parsed) in (None, expected)
    assert Splicer(rules).edited_all(piece, parsed) in (None, expected)  # nothing of it was seen before


@pytest.mark.parametrize(
    "raw",
    [
        rb'{"\u0069d": "a", "x": {"id": "b"}}',  # the key with an escape in it, and another one below
        rb'{"id": "a", "id": "b"}',
        rb'{"choices": {"logprobs": 1}}',
        rb'{"choices": [[{"logprobs": 1}]]}',
        rb'{"choices": [{"logprobs": {"content": [{"token": "}\"]", "bytes": [1], "top_logprobs": [{"a": {}}]}]}}]}',
    ],
)
def test_odd_ones(raw: bytes) -> None:
    assert Splicer(RULES).edited(raw, loads(raw)) == rewrite(raw, RULES)


def test_what_needs_no_change_is_not_copied() -> None:
    raw = b'{"model": "m", "messages": []}'
    assert with_members(raw, loads(raw), {"model": b'"m"'}) is raw
