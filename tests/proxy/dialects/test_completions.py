"""Legacy completions: passed through where the backend has them, else said in chat."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError

from scripts.harness.in_process import Proxy
from store.records import FinishedCompletion, NewRating
from tests.harness.talks import events


@pytest.fixture(params=["translated", "native"])
def way(request: pytest.FixtureRequest, proxy: Proxy) -> str:
    if request.param == "native":
        proxy.backend.speaks.add("completions")
    return str(request.param)


async def end_of(proxy: Proxy, id: str) -> FinishedCompletion:
    found = await proxy.store.completions.get(id)
    assert found is not None and found.end is not None
    return found.end


async def test_whole(proxy: Proxy, client: AsyncOpenAI, way: str) -> None:
    answer = await client.completions.create(model="fake", prompt="one two", max_tokens=9)
    assert answer.choices[0].text == "You said: one two " and answer.object == "text_completion"
    assert answer.choices[0].logprobs is None and not getattr(answer.choices[0], "token_ids", None)
    end = await end_of(proxy, answer.id)
    assert end.exact and end.text == "You said: one two " and end.translated is (way == "translated")
    assert end.logprobs == pytest.approx([-0.4, -0.6, -0.4, -0.4])


async def test_streamed(proxy: Proxy, client: AsyncOpenAI, way: str) -> None:
    stream = await client.completions.create(model="fake", prompt="one two", stream=True)
    pieces = [chunk async for chunk in stream]
    assert "".join(p.choices[0].text for p in pieces) == "You said: one two "
    assert pieces[-1].choices[0].finish_reason == "stop" and {p.id for p in pieces} == {pieces[0].id}
    end = await end_of(proxy, pieces[0].id)
    assert end.exact and len(end.token_ids or ()) == 4 and end.text == "You said: one two "


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_is_not_the_reply(proxy: Proxy, way: str, stream: bool) -> None:
    body = {"model": "fake", "prompt": "one two ", "echo": True, "logprobs": 0, "stream": stream}
    async with proxy.http.post("/v1/completions", json=body) as response:
        raw, id = await response.read(), response.headers["x-rl-completion-id"]
    bodies = [e for e in events(raw) if e != b"[DONE]"] if stream else [json.loads(raw)]
    assert "".join(b["choices"][0]["text"] for b in bodies) == "one two You said: one two "
    end = await end_of(proxy, id)
    assert end.text == "You said: one two "
    if way == "translated":
        assert end.exact and len(end.logprobs or ()) == 4
    else:  # vLLM would leave the echo out if it were asked for token ids
        assert not end.exact and end.logprobs is None and "return_token_ids" not in proxy.backend.asked[-1][1]


@pytest.mark.parametrize("stream", [False, True])
async def test_no_alternatives_are_log_probs_all_the_same(proxy: Proxy, way: str, stream: bool) -> None:
    """`logprobs: 0` asks for those of the chosen tokens: they are the client's, not ours to hide."""
    body = {"model": "fake", "prompt": "a", "logprobs": 0, "stream": stream}
    async with proxy.http.post("/v1/completions", json=body) as response:
        raw = await response.read()
    bodies = [e for e in events(raw) if e != b"[DONE]"] if stream else [json.loads(raw)]
    logprobs = [b["choices"][0]["logprobs"] for b in bodies]
    assert [number for entry in logprobs for number in entry["token_logprobs"]] == pytest.approx([-0.4, -0.6, -0.2])


async def test_logprobs_in_the_old_form(proxy: Proxy, client: AsyncOpenAI) -> None:
    answer = await client.completions.create(model="fake", prompt="a", logprobs=1)
    found = answer.choices[0].logprobs
    assert found is not None and found.tokens == ["You ", "said: ", "a "] and found.text_offset == [0, 4, 10]
    assert found.token_logprobs == pytest.approx([-0.4, -0.6, -0.2])


async def test_several_prompts(proxy: Proxy, client: AsyncOpenAI) -> None:
    proxy.backend.speaks.add("completions")
    answer = await client.completions.create(model="fake", prompt=["a", "b"], n=2)
    assert [c.text for c in answer.choices] == ["You said: a "] * 2 + ["You said: b "] * 2
    ends = [await end_of(proxy, answer.id + suffix) for suffix in ("", ".1", ".2", ".3")]
    assert [e.text for e in ends] == [c.text for c in answer.choices] and all(e.exact for e in ends)
    await client.completions.create(model="fake", prompt=[1, 2])
    assert proxy.backend.asked[-1][1]["prompt"] == [1, 2]


@pytest.mark.parametrize("more", [{"prompt": ["a", "b"]}, {"prompt": [1, 2]}, {"suffix": "x"}, {"best_of": 2}])
async def test_what_chat_cannot_say(proxy: Proxy, client: AsyncOpenAI, more: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError, match="cannot say"):
        await client.completions.create(**{"model": "fake", "prompt": "a", **more})


async def test_an_empty_suffix_says_nothing(client: AsyncOpenAI, way: str) -> None:
    answer = await client.completions.create(model="fake", prompt="a", suffix="", best_of=1)
    assert answer.choices[0].text == "You said: a "


async def test_the_old_default_of_sixteen_tokens_stays(proxy: Proxy, client: AsyncOpenAI) -> None:
    await client.completions.create(model="fake", prompt="a")
    assert proxy.backend.requests[-1]["max_tokens"] == 16


@pytest.mark.parametrize("body", [{}, {"prompt": 3}, {"prompt": []}, {"prompt": ["a", 3]}, {"prompt": "a", "n": 129}])
async def test_bad_bodies(proxy: Proxy, body: dict[str, Any]) -> None:
    async with proxy.http.post("/v1/completions", json=body) as response:
        assert response.status == 400


async def test_raw_text_trains_on_exact_ids_or_not_at_all(proxy: Proxy, client: AsyncOpenAI) -> None:
    proxy.backend.speaks.add("completions")
    exact = await client.completions.create(model="fake", prompt="a")
    await proxy.store.ratings.rate(NewRating(exact.id, "ann", 1.0))
    assert (await proxy.store.samples.fresh(live=0, max_version_gap=8)).total == 1
    # A backend that refuses what we ask for: no ids, and no template to render with.
    proxy.backend.mood = "refuse-logprobs"
    rough = await client.completions.create(model="fake", prompt="b")
    assert not (await end_of(proxy, rough.id)).exact
    await proxy.store.ratings.rate(NewRating(rough.id, "ann", 1.0))
    assert (await proxy.store.samples.fresh(live=0, max_version_gap=8)).total == 1
