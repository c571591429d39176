"""LiteLLM's ids: what it made of ours, as recorded with litellm 1.106.2 before rlproxy."""

from __future__ import annotations

import base64

import pytest

from proxy.core.wrapped_ids import unwrap_id
from scripts.harness.in_process import Proxy

# litellm.responses(model="openai/fake", api_base=RLPROXY/v1): the id of what it returned.
RECORDED = (
    "resp_bGl0ZWxsbTpjdXN0b21fbGxtX3Byb3ZpZGVyOm9wZW5haTttb2RlbF9pZDpOb25lO3Jlc3BvbnNlX2lkOnJsLTNoYWo0OHZhMzI5d2U0Zzdj"
    "cGZ3YzM4bA=="
)


def wrapped(id: str, provider: str = "openai", model_id: str = "None") -> str:
    inside = f"litellm:custom_llm_provider:{provider};model_id:{model_id};response_id:{id}"
    return "resp_" + base64.b64encode(inside.encode()).decode()


def test_the_id_inside() -> None:
    assert unwrap_id(RECORDED) == "rl-3haj48va329we4g7cpfwc38l" and wrapped("rl-3haj48va329we4g7cpfwc38l") == RECORDED
    router = wrapped("rl-1", model_id="5d3a" * 16)  # a deployment of its router has a hash for a name
    assert len(router) < 200 and unwrap_id(router) == "rl-1"
    assert unwrap_id(wrapped(router)) == "rl-1", "a LiteLLM before a LiteLLM"


@pytest.mark.parametrize(
    "id",
    [
        "rl-1",
        "resp_68a1b2",
        "resp_",
        "resp_====",
        "resp_\u00e9",
        wrapped(""),
        "resp_bGl0ZWxsbTo=",
        wrapped("x" * 2000),
        "",
    ],
)
def test_other_ids_are_left_as_they_are(id: str) -> None:
    assert unwrap_id(id) == id


async def test_such_an_id_is_good_wherever_ours_is(proxy: Proxy) -> None:
    async with proxy.http.post("/v1/responses", json={"model": "fake", "input": "My name is Ann."}) as response:
        id = (await response.json())["id"]
    theirs = wrapped(id, model_id="5d3a" * 16)
    assert (await proxy.get(f"/rl/completions/{theirs}"))["id"] == id
    assert (await proxy.get(f"/v1/responses/{theirs}"))["id"] == id
    again = {"model": "fake", "input": "And now?", "previous_response_id": theirs}
    async with proxy.http.post("/v1/responses", json=again) as response:
        assert response.status == 200
        newer = (await response.json())["id"]
    messages = (await proxy.get(f"/rl/completions/{newer}"))["prompt"]
    assert "Ann" in str(messages[0]), "what was said before is in the prompt"
    status, rating = await proxy.rate(completion_id=theirs, rating="good")
    assert status == 201 and rating["completion_id"] == id
    link = {"platform": "zulip", "channel": "c", "message_id": "1", "completion_id": theirs}
    async with proxy.http.post("/rl/links", json=link) as response:
        assert response.status == 201 and (await response.json())["completion_id"] == id
    async with proxy.http.post("/rl/forget", json={"completion": theirs}) as response:
        assert (await response.json())["completions"] == 1
    assert (await proxy.http.get(f"/rl/completions/{id}")).status == 404
