"""Byte-exact edits: what a rule does not name comes out as it went in."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.json_edit import EACH, HIDDEN, Rules, dumps, loads, loads_arguments, rewrite
from proxy.core.json_skip import STEP
from proxy.core.offload import LARGE

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)
KEYS = st.sampled_from(["id", "model", "choices", "logprobs", "token_ids", "x"])
OBJECTS = st.dictionaries(KEYS, JSON, max_size=6)
SPACES = st.sampled_from([None, 0, 1, 2])


def plain(value: dict[str, Any], removed: set[str], add: dict[str, Any]) -> dict[str, Any]:
    """The same edit on parsed values."""
    return {k: v for k, v in value.items() if k not in removed} | add


@given(OBJECTS, SPACES, st.booleans(), st.sets(KEYS), st.dictionaries(KEYS, JSON, max_size=2))
def test_equals_the_edit_on_parsed_values(
    value: dict[str, Any], indent: int | None, ascii: bool, removed: set[str], add: dict[str, Any]
) -> None:
    raw = json.dumps(value, indent=indent, ensure_ascii=ascii).encode()
    rules: dict[str, Any] = dict.fromkeys(removed)
    expected = plain(value, dict.fromkeys(removed, "remove"), add)
    assert json.loads(rewrite(raw, rules, {k: dumps(v) for k, v in add.items()})) == expected


@given(st.lists(OBJECTS, max_size=4), SPACES)
def test_every_element_of_a_list(choices: list[dict[str, Any]], indent: int | None) -> None:
    raw = json.dumps({"a": 1, "choices": choices, "z": [{"logprobs": 1}]}, indent=indent).encode()
    changed = json.loads(rewrite(raw, {"choices": {EACH: {"logprobs": b"null", "token_ids": None}}}))
    for before, after in zip(choices, changed["choices"], strict=True):
        kept = {k: v for k, v in before.items() if k != "token_ids"}
        assert after == (kept | {"logprobs": None} if "logprobs" in kept else kept)
    assert changed["z"] == [{"logprobs": 1}]


@given(OBJECTS, SPACES)
def test_nothing_to_change_changes_nothing(value: dict[str, Any], indent: int | None) -> None:
    raw = b" \n" + json.dumps(value, indent=indent).encode() + b"\n "
    assert rewrite(raw, {"absent": b"1"}) == raw


def test_other_bytes_stay() -> None:
    raw = b'{ "id" : "a", "n": 1.50e+3, "t":"\\u00e9\\/",\t"big":123456789012345678901234567890 }'
    rules: Rules = {"id": b'"b"'}
    assert rewrite(raw, rules) == raw.replace(b'"a"', b'"b"')


@pytest.mark.parametrize("raw", [b"", b"[]", b"3", b'"x"', b'{"a"', b'{"a":', b'{"a":1', b'{"a":[1', b"not json", b"{"])
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="JSON"):
        rewrite(raw, {"a": b"1"})


@given(st.binary(max_size=200))
def test_any_bytes_end_in_bytes_or_value_error(raw: bytes) -> None:
    with contextlib.suppress(ValueError):
        rewrite(b"{" + raw, {"a": b"1", "b": None, "c": {EACH: {"d": None}}}, {"e": b"2"})


def test_loads_takes_what_backends_send() -> None:
    assert (
        loads(b'{"logprob": -Infinity, "n": 123456789012345678901234567890}')["n"] == 1.2345678901234568e29
    )  # as orjson reads it
    assert loads(dumps({"n": 2**70})) == {"n": 2**70}


def test_what_is_hidden_is_not_told_from_what_never_was() -> None:
    rules: Rules = {"logprobs": HIDDEN}
    assert rewrite(b'{"logprobs": [1]}', rules) == b'{"logprobs": null}'
    assert rewrite(b'{"logprobs": []}', rules) == b'{"logprobs": []}'


@given(OBJECTS, SPACES, st.booleans(), st.integers(0, 60))
def test_no_other_byte_of_a_large_body_changes(value: dict[str, Any], indent: int | None, ascii: bool, at: int) -> None:
    """Wherever a step ends: in a string, in an escape, between two tokens."""
    value = {key: found for key, found in value.items() if key != "model"}
    text = json.dumps({"pad": "", **value, "model": "theirs"}, indent=indent, ensure_ascii=ascii)
    raw = text.encode().replace(b'""', b'"%s"' % (b"\\n" * ((STEP - at) // 2)), 1)
    first, _, last = raw.rpartition(b'"theirs"')
    assert rewrite(raw, {}, {"model": b'"ours"'}) == first + b'"ours"' + last


@pytest.mark.parametrize("raw", [b'{"a":"', b'{"a":"\\', b'{"a":"\\"', b'{"', b'{"a":"' + b'\\"' * STEP])
def test_a_string_without_an_end_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="too early"):
        rewrite(raw, {})


def test_a_large_body_is_changed_like_any_other() -> None:
    raw = json.dumps({"model": "a", "messages": ["x" * LARGE, '\\\\"', {"model": "b"}]}).encode()
    assert rewrite(raw, {}, {"model": b'"c"'}) == raw.replace(b'"a"', b'"c"', 1)


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63) - 1, 2**64, 2**127 + 1, -(10**299) + 1])
def test_arguments_of_a_call_keep_long_integers(number: int) -> None:
    assert loads_arguments(b'{"id": %d}' % number) == {"id": number}
    assert loads_arguments(b'{"id": %d, "x": NaN, "t": "\\ud83d"}' % number) == {
        "id": number, "x": None, "t": "\ufffd",
    }  # fmt: skip
