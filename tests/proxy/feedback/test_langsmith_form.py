"""Feedback in LangSmith's words: what means the same is taken, the rest is refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import BadRequest
from proxy.feedback.langsmith_form import to_own_format
from proxy.feedback.ratings import parse_judgement
from scripts.harness.in_process import Proxy

# As LangSmith's client sends it, with all that it adds.
LANGSMITH = {
    "id": "f1", "run_id": "rl-1", "trace_id": "rl-1", "key": "user-score", "score": 1, "value": None,
    "comment": "nice", "correction": None, "created_at": "2026-11-21T00:00:00Z", "modified_at": "2026-11-21T00:00:00Z",
    "feedback_source": {"type": "api", "metadata": {}}, "session_id": None, "feedback_config": None, "error": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("body", "value", "rest"),
    [
        (LANGSMITH, 1.0, {"comment": "nice", "source": "langsmith", "source_event_id": "f1"}),
        (LANGSMITH | {"score": 0.0}, -1.0, {}), (LANGSMITH | {"score": True}, 1.0, {}),
        (LANGSMITH | {"score": 0.75, "run_id": None}, 0.5, {}), (LANGSMITH | {"score": None, "value": "bad"}, -1.0, {}),
        (LANGSMITH | {"score": None, "correction": "so"}, -1.0, {"correction": "so"}),
        (LANGSMITH | {"score": 1, "correction": "so"}, 1.0, {"correction": "so"}),
    ],
)  # fmt: skip
def test_what_maps(body: dict[str, Any], value: float, rest: dict[str, Any]) -> None:
    said = to_own_format(body)
    assert said["completion_id"] == "rl-1"
    assert parse_judgement(said["rating"], said.get("scale"))[0] == value
    assert rest.items() <= said.items()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (LANGSMITH | {"key": "toxicity"}, "key"), (LANGSMITH | {"key": "thumbs_down"}, "key"),
        (LANGSMITH | {"score": 4}, "score"), (LANGSMITH | {"score": -1}, "score"),
        (LANGSMITH | {"score": None}, "score"), (LANGSMITH | {"score": float("nan")}, "score"),
        (LANGSMITH | {"correction": {"a": 1}}, "correction"),
    ],
)  # fmt: skip
def test_what_does_not_is_refused(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        to_own_format(body)
    assert caught.value.param == param and "\n" not in caught.value.message


def test_our_own_words_stay_as_they_are() -> None:
    for body in ({"completion_id": "x", "rating": "good", "key": "k", "run_id": "r"}, {"rating": 1}, {}):
        assert to_own_format(body) is body


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
def test_whatever_is_in_it_is_mapped_or_refused(data: st.DataObject) -> None:
    body = LANGSMITH | {data.draw(st.sampled_from(sorted(LANGSMITH))): data.draw(anything)}
    try:
        said = to_own_format(body)
    except BadRequest:
        return
    parse_judgement(said["rating"], said.get("scale"))  # what we say ourselves, we understand


async def test_it_is_stored(proxy: Proxy) -> None:
    id = (await proxy.chat("a")).headers["x-rl-completion-id"]
    status, rating = await proxy.rate(**LANGSMITH | {"run_id": id})
    assert status == 201 and rating["completion_id"] == id and rating["source"] == "langsmith"
    status, answer = await proxy.rate(**LANGSMITH | {"key": "toxicity"})
    assert status == 400 and "user_score" in answer["error"]["message"]
