"""Where values of JSON end, against the parser's own word for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core import json_skip
from proxy.core.json_skip import STEP, skip_rest, skip_text, skip_value, skip_white

TEXTS = st.text(alphabet='\\"{[]},: \n€x', max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=30,
)
LAYOUTS = st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False, "indent": "\t"}])
AFTER = st.sampled_from(["", ",", "]", "}", " ]", '\n,"', ':{"'])
STEPS = st.sampled_from([2, 3, 5, 16, STEP])  # bytes; a large body is one whose values are larger than a step


@given(VALUES, LAYOUTS, AFTER, STEPS)
def test_a_value_ends_where_the_parser_says(value: Any, layout: Any, after: str, step: int) -> None:
    text = json.dumps(value, **layout)
    raw = f"[[{text}{after}".encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_skip, "STEP", step)
        assert skip_value(raw, 2) == 2 + len(text.encode())


@given(st.lists(VALUES, max_size=6), LAYOUTS, STEPS, st.data())
def test_the_rest_of_a_list_is_passed_over_from_each_of_its_items(
    items: list[Any], layout: Any, step: int, data: st.DataObject
) -> None:
    raw = json.dumps(items, **layout).encode() + b"]]"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_skip, "STEP", step)
        at = 1
        for _ in range(data.draw(st.integers(0, len(items)))):
            at = skip_value(raw, skip_white(raw, at + (raw[at] == 0x2C)))
        assert skip_rest(raw, at) == len(raw) - 2


@pytest.mark.parametrize("deep", range(1, 12))
def test_no_depth_is_too_deep(deep: int) -> None:
    raw = b'{"a":["]",' * deep + b"1" + b"]}" * deep
    assert skip_value(raw + b",", 0) == len(raw)
    with pytest.raises(ValueError, match="too early"):
        skip_value(raw[:-1], 0)


@pytest.mark.parametrize("after", range(40))
def test_a_value_across_the_end_of_a_step(after: int) -> None:
    value = b'{"a\\\\": ["\\"}]", {"b": [1, "\\\\"]}], "c": "' + b"\\n" * 9 + b'"}'
    raw = b"[" + b" " * (STEP - after) + value + b"]"
    assert skip_value(raw, 0) == len(raw)
    text = json.dumps("x" * (STEP - after) + value.decode()).encode()
    assert skip_value(text + b",", 0) == len(text)


@pytest.mark.parametrize("raw", [b'"', b'"\\', b'"\\"', b'["', b'{"a":"\\', b'[[1]', b'"' + b'\\"' * STEP])  # fmt: skip
def test_what_has_no_end_is_said_to_have_none(raw: bytes) -> None:
    with pytest.raises(ValueError, match="too early"):
        skip_value(raw, 0)


@pytest.mark.parametrize("raw", [b",", b"]", b"}", b":", b" 1"])
def test_where_no_value_begins_there_is_none(raw: bytes) -> None:
    with pytest.raises(ValueError, match="no value"):
        skip_value(raw, 0)


def test_a_text_is_passed_over_from_within() -> None:
    assert skip_text(b'"a\\"b",', 1) == 6
