"""What holds for every dialect, whatever a client may send."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.core.errors import BadRequest
from proxy.core.json_edit import loads
from proxy.dialects import DIALECTS, Dialect
from tests.harness.chat_strategies import completions, unhurried

BY_NAME = {dialect.name: dialect for dialect in DIALECTS}

_KEYS = (
    "messages role content type text system tools name input_schema tool_use tool_result tool_use_id "
    "source url title thinking input prompt images tool_calls function arguments options num_predict "
    "temperature metadata user_id stop_sequences stream tool_choice output_config format data context think logprobs "
    "top_logprobs max_tokens "
)
_VALUES = (
    "user assistant system tool text image document search_result tool_use tool_result thinking content "
    "base64 url json any "
)
_atoms = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.sampled_from(_VALUES.split())
    | st.text('ab"', max_size=3)
)
_trees = st.recursive(
    _atoms,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS.split()), inner, max_size=5),
    max_leaves=30,
)
_items = st.dictionaries(st.sampled_from(_KEYS.split()), _trees, max_size=5)
_roles = st.builds(lambda item, role: {**item, "role": role}, _items, st.sampled_from(["user", "assistant", "system"]))
bodies = st.one_of(
    _trees,
    st.builds(lambda body, items: {**body, "messages": items}, _items, st.lists(_roles, min_size=1, max_size=3)),
)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
@unhurried
@given(body=bodies)
@example(body={"input": "user", "messages": [{"role": "user"}]})
def test_a_request_is_understood_or_refused(dialect: Dialect, body: Any) -> None:
    """Nothing else may happen: any other error would be ours."""
    came = repr(body)
    try:
        asked = dialect.parse(body)
    except BadRequest:
        return
    assert not asked.origins or len(asked.origins) == len(asked.messages)
    if asked.messages:
        for key, value in dialect.keep(body, asked, range(len(asked.messages))).items():
            text = key == "input" and isinstance(body[key], str)  # said as the one message that it stands for
            same = [{"type": "message", "role": "user", "content": body[key]}] if text else body[key]
            assert loads(value) == same
    with contextlib.suppress(BadRequest):
        dialect.to_chat(body, asked)
    assert repr(body) == came  # later requests of its conversation share what was read


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
@unhurried
@given(both=completions())
def test_an_answer_is_said_and_left_as_it_is(
    dialect: Dialect, both: tuple[dict[str, Any], list[dict[str, Any]]]
) -> None:
    """The capture reads the same object after it."""
    whole, chunks = both
    came = repr(both)
    asked = BY_NAME["chat"].parse({"model": "m", "messages": [{"role": "user", "content": "x"}]})
    dialect.renderer(id="rl-1", parsed=asked, created=1).whole(whole)
    say = dialect.renderer(id="rl-1", parsed=asked, created=1)
    for chunk in chunks:
        say.chunk(chunk)
    say.end()
    assert repr(both) == came


def test_each_path_belongs_to_one_dialect() -> None:
    paths = [path for dialect in DIALECTS for path in dialect.paths]
    assert len(set(paths)) == len(paths)
    assert len({dialect.name for dialect in DIALECTS}) == len(DIALECTS)
