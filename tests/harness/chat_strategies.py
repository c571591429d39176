"""Chat completions that hypothesis makes up, whole and cut into chunks at any place."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# A busy machine draws slowly; nothing here is about time.
unhurried = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
# What JSON, SSE and lines of JSON trip over, and few others: drawing from all of Unicode takes seconds to begin.
texts = st.text('aB1 "\\\n\r\t{}[]:,/é😀\u2028\x00', max_size=40)
names = st.text("abcdefghij_", min_size=1, max_size=12)
inputs = st.dictionaries(
    st.text('ab é"', max_size=8),
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False), texts
    ),
    max_size=3,
)


@st.composite
def cuts(draw: st.DrawFn, text: str) -> list[str]:
    """`text` in pieces; some may be empty."""
    at = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]


@st.composite
def completions(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The same answer as one body and as chunks."""
    thinking, text = draw(texts), draw(texts)
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for i, (name, arguments) in enumerate(draw(st.lists(st.tuples(names, inputs), max_size=3)))
    ]
    key = draw(st.sampled_from(["reasoning_content", "reasoning"]))
    reason = draw(st.sampled_from(["tool_calls" if calls else "stop", "length"]))
    counted = draw(st.tuples(st.integers(0, 9999), st.integers(0, 9999)))
    usage = {"prompt_tokens": counted[0], "completion_tokens": counted[1], "total_tokens": sum(counted)}
    head = {"id": "chatcmpl-7", "created": 1, "model": "m"}
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thinking:
        message[key] = thinking
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{key: piece} for piece in draw(cuts(thinking))]
    deltas += [{"content": piece} for piece in draw(cuts(text))]
    numbers = draw(st.sampled_from(["each its own", "all 0", "none"]))  # all are seen in the wild; ids differ
    for i, call in enumerate(calls):
        at = {"each its own": {"index": i}, "all 0": {"index": 0}, "none": {}}[numbers]
        first, *rest = draw(cuts(call["function"]["arguments"]))
        begin = {**call, **at, "function": {"name": call["function"]["name"], "arguments": first}}
        deltas.append({"tool_calls": [begin]})
        deltas += [{"tool_calls": [{**at, "function": {"arguments": piece}}]} for piece in rest]
    choices: list[list[dict[str, Any]]] = [[{"index": 0, "delta": d, "finish_reason": None}] for d in deltas]
    choices += [[{"index": 0, "delta": {}, "finish_reason": reason}], []]
    chunks = [{**head, "object": "chat.completion.chunk", "choices": c} for c in choices]
    chunks[-1]["usage"] = usage
    return whole, chunks
