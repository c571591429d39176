"""Feedback in other tools' words: what means the same is taken, the rest is refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import BadRequest
from proxy.feedback.feedback_adapters import to_own_format, unfold
from proxy.feedback.ratings import parse_judgement
from scripts.harness.in_process import Proxy

# As LangSmith's client sends it, with all that it adds.
LANGSMITH = {
    "id": "f1", "run_id": "rl-1", "trace_id": "rl-1", "key": "user-score", "score": 1, "value": None,
    "comment": "nice", "correction": None, "created_at": "2026-11-21T00:00:00Z", "modified_at": "2026-11-21T00:00:00Z",
    "feedback_source": {"type": "api", "metadata": {}}, "session_id": None, "feedback_config": None, "error": None,
}  # fmt: skip
LANGFUSE = {
    "id": "s1", "traceId": "t", "observationId": "rl-1", "name": "user-feedback", "value": 0, "dataType": "BOOLEAN",
    "comment": "nice", "environment": "production", "metadata": None,
}  # fmt: skip
LANGFUSE_EVENT = {
    "id": "e1", "type": "score-create", "timestamp": "…", "body": {k: v for k, v in LANGFUSE.items() if k != "id"}
}  # fmt: skip
TENSORZERO = {"metric_name": "thumbs_up", "inference_id": "rl-1", "value": True, "tags": {"user": "ann"}}
CHATKIT = {"type": "items.feedback", "params": {"thread_id": "t", "item_ids": ["rl-1"], "kind": "negative"}}


@pytest.mark.parametrize(
    ("body", "value", "rest"),
    [
        (LANGSMITH, 1.0, {"comment": "nice", "source": "langsmith", "source_event_id": "f1"}),
        (LANGSMITH | {"score": 0.0}, -1.0, {}), (LANGSMITH | {"score": True}, 1.0, {}),
        (LANGSMITH | {"score": 0.75, "run_id": None}, 0.5, {}), (LANGSMITH | {"score": None, "value": "bad"}, -1.0, {}),
        (LANGSMITH | {"score": None, "correction": "so"}, -1.0, {"correction": "so"}),
        (LANGSMITH | {"score": 1, "correction": "so"}, 1.0, {"correction": "so"}),
        (LANGFUSE, -1.0, {"comment": "nice", "source": "langfuse", "source_event_id": "s1"}),
        (LANGFUSE | {"value": "True"}, 1.0, {}), (LANGFUSE | {"dataType": "NUMERIC", "value": 0.5}, 0.0, {}),
        (LANGFUSE | {"dataType": "CATEGORICAL", "value": "Thumbs Up"}, 1.0, {}),
        (LANGFUSE | {"dataType": None, "observationId": None, "traceId": "rl-1", "value": 1}, 1.0, {}),
        (LANGFUSE_EVENT, -1.0, {"source_event_id": "e1"}),
        (TENSORZERO, 1.0, {"source": "tensorzero"}), (TENSORZERO | {"value": False}, -1.0, {}),
        (TENSORZERO | {"metric_name": "haiku_rating"}, 1.0, {}),
        (TENSORZERO | {"metric_name": "demonstration", "value": "so"}, -1.0, {"correction": "so"}),
        (TENSORZERO | {"metric_name": "demonstration", "value": [{"type": "text", "text": "so"}]}, -1.0,
         {"correction": "so"}),
        (CHATKIT, -1.0, {"source": "chatkit"}),
    ],
)  # fmt: skip
def test_what_maps(body: dict[str, Any], value: float, rest: dict[str, Any]) -> None:
    said = to_own_format(body)
    assert said["completion_id"] == "rl-1"
    assert parse_judgement(said["rating"], said.get("scale"))[0] == value
    assert rest.items() <= said.items()


def test_conversations_are_sessions() -> None:
    by_session = LANGFUSE | {"traceId": None, "observationId": None, "sessionId": "chat-7"}
    assert to_own_format(by_session)["session"] == "chat-7" and "completion_id" not in to_own_format(by_session)
    episode = {"metric_name": "rating", "episode_id": "e-7", "value": True}
    assert to_own_format(episode)["session"] == "e-7"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (LANGSMITH | {"key": "toxicity"}, "key"), (LANGSMITH | {"key": "thumbs_down"}, "key"),
        (LANGSMITH | {"score": 4}, "score"), (LANGSMITH | {"score": -1}, "score"),
        (LANGSMITH | {"score": None}, "score"), (LANGSMITH | {"score": float("nan")}, "score"),
        (LANGSMITH | {"correction": {"a": 1}}, "correction"), (LANGFUSE | {"name": "hallucination"}, "name"),
        (LANGFUSE | {"dataType": "TEXT", "value": "well"}, "dataType"), (LANGFUSE | {"value": "maybe"}, "value"),
        (LANGFUSE | {"dataType": "NUMERIC", "value": 7}, "value"), (TENSORZERO | {"value": 4.5}, "value"),
        (TENSORZERO | {"metric_name": "mistakes"}, "metric_name"), (TENSORZERO | {"dryrun": True}, "dryrun"),
        (TENSORZERO | {"metric_name": "comment", "value": "well"}, "metric_name"),
        (TENSORZERO | {"metric_name": "demonstration", "value": [{"type": "tool_call"}]}, "value"),
        ({"type": "trace-create", "id": "e", "body": {"id": "t"}}, "type"),
        (CHATKIT | {"params": {"item_ids": ["a"], "kind": "meh"}}, "params"),
        (CHATKIT | {"params": {"item_ids": [], "kind": "positive"}}, "params"),
    ],
)  # fmt: skip
def test_what_does_not_is_refused(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        to_own_format(body)
    assert caught.value.param == param and "\n" not in caught.value.message


def test_our_own_words_stay_as_they_are() -> None:
    for body in ({"completion_id": "x", "rating": "good", "key": "k", "run_id": "r"}, {"rating": 1}, {}):
        assert to_own_format(body) is body
        assert unfold(body) == [body]


def test_bodies_that_hold_several() -> None:
    assert unfold({"batch": [1, 2], "metadata": {}}) == [1, 2]
    two = {**CHATKIT, "params": {"item_ids": ["a", "b"], "kind": "positive"}}
    assert [to_own_format(one)["completion_id"] for one in unfold(two)] == ["a", "b"]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([LANGSMITH, LANGFUSE, TENSORZERO, CHATKIT]), st.data())
def test_whatever_is_in_them_is_mapped_or_refused(body: dict[str, Any], data: st.DataObject) -> None:
    body = body | {data.draw(st.sampled_from(sorted(body))): data.draw(anything)}
    for one in unfold(body):
        if isinstance(one, dict):
            try:
                said = to_own_format(one)
            except BadRequest:
                continue
            if said is not one:
                parse_judgement(said["rating"], said.get("scale"))  # what we say ourselves, we understand


async def test_they_are_stored(proxy: Proxy) -> None:
    ids = []
    for shape, change in (
        (LANGSMITH, {"run_id": None}), (LANGFUSE, {"observationId": None}), (TENSORZERO, {"inference_id": None}),
    ):  # fmt: skip
        id = (await proxy.chat("a")).headers["x-rl-completion-id"]
        status, rating = await proxy.rate(**shape | dict.fromkeys(change, id))
        assert status == 201 and rating["completion_id"] == id
        ids.append(rating["source"])
    assert ids == ["langsmith", "langfuse", "tensorzero"]
    status, answer = await proxy.rate(**LANGSMITH | {"key": "toxicity"})
    assert status == 400 and "user_score" in answer["error"]["message"]
