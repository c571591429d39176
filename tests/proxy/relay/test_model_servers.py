"""Further models: which requests go to their servers, what is kept of their answers, and that none of them trains."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from scripts.fakes.backend import FakeBackend
from scripts.fakes.ollama import FakeOllama
from scripts.harness.in_process import Proxy
from tests.harness.lines import call, create
from tests.harness.ollama import make_proxy

REASON = "a further model answered, and only the home's own model trains"
SAID = "from the other server "  # each word of the fake ends in a blank
NAMES = ["fake", "fake@base", "coder"]


@pytest.fixture
async def other() -> AsyncIterator[FakeBackend]:
    fake = FakeBackend()
    fake.model = "qwen"
    fake.says = SAID.strip()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def with_coder(proxy: Proxy, other: FakeBackend) -> Proxy:
    await restart(proxy, coder={"url": other.url, "kind": "vllm", "model": "qwen"})
    return proxy


async def restart(proxy: Proxy, **models: dict[str, str]) -> None:
    await proxy.stop()
    await proxy.start(models=models)


async def answered(proxy: Proxy, model: str, **more: Any) -> tuple[str, str]:
    """The id of its completion, and the adapter that answered."""
    response = await proxy.chat("hello", model=model, **more)
    assert response.status == 200, await response.text()
    await response.read()
    return response.headers["x-rl-completion-id"], response.headers["x-rl-adapter"]


async def test_a_further_model_answers_by_its_name(with_coder: Proxy, other: FakeBackend) -> None:
    response = await with_coder.chat("hello", model="coder")
    body = await response.json()
    assert (response.headers["x-rl-adapter"], body["model"]) == ("none", "coder")
    assert body["choices"][0]["message"]["content"] == SAID
    (sent,) = other.requests
    assert sent["model"] == "qwen" and not sent.keys() & {"logprobs", "return_token_ids"}, "what only a run needs"
    assert with_coder.backend.requests == []
    completion = await with_coder.store.completions.get(response.headers["x-rl-completion-id"])
    assert completion is not None and completion.end is not None
    new = completion.new
    assert (new.model, new.served_model, new.version, new.untrainable) == ("coder", "qwen", None, "further_model")
    assert completion.end.text == SAID
    assert await with_coder.say("hi") == "You said: hi "


async def test_it_streams_and_is_translated(with_coder: Proxy, other: FakeBackend) -> None:
    async with await with_coder.chat("hello", model="coder", stream=True) as response:
        text = await response.text()
    assert '"model": "coder"' in text and "qwen" not in text and text.endswith("data: [DONE]\n\n")
    body = {"model": "coder", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    status, message = await call(with_coder, "POST", "/v1/messages", body)
    assert status == 200 and (message["type"], message["model"]) == ("message", "coder")
    status, response_body = await call(with_coder, "POST", "/v1/responses", {"model": "coder", "input": "hi"})
    assert status == 200 and response_body["model"] == "coder"
    assert len(other.requests) == 3 and with_coder.backend.requests == []


async def test_lists_have_it(with_coder: Proxy) -> None:
    assert [m["id"] for m in (await with_coder.get("/v1/models"))["data"]] == NAMES
    assert (await with_coder.get("/v1/models/coder"))["id"] == "coder"
    with_coder.backend.has_tags = False
    assert [m["name"] for m in (await with_coder.get("/api/tags"))["models"]] == NAMES
    status, shown = await call(with_coder, "POST", "/api/show", {"model": "coder"})
    assert status == 200 and "completion" in shown["capabilities"]


async def test_its_own_name_means_it_where_no_other_has_that(proxy: Proxy, other: FakeBackend) -> None:
    row = {"url": other.url, "model": "qwen"}
    await restart(proxy, coder=row)
    assert (await answered(proxy, "qwen"))[1] == "none" and len(other.requests) == 1
    await restart(proxy, coder=row, writer=row)
    response = await proxy.chat("hello", model="qwen")
    assert response.status == 404 and len(other.requests) == 1, "it goes to the home's own, as without any of them"
    await restart(proxy, fake={"url": other.url, "model": "fake"})
    assert (await answered(proxy, "fake"))[1] == "base" and len(other.requests) == 1, "the home's own comes first"
    await restart(proxy, coder={"url": other.url})
    await answered(proxy, "coder")
    assert other.requests[-1]["model"] == "qwen", "the only one that the server has"


async def test_no_key_of_a_client_goes_there(proxy: Proxy, other: FakeBackend) -> None:
    keys = {"authorization": "Bearer client-own", "x-api-key": "client-own", "cookie": "a=client-own"}
    await restart(proxy, coder={"url": other.url, "model": "qwen"})
    await answered(proxy, "coder", headers=keys)
    assert not {"authorization", "x-api-key", "cookie"} & {name.lower() for name in other.headers[-1]}
    await restart(proxy, coder={"url": other.url, "model": "qwen", "api_key": "its-own-key"})
    await answered(proxy, "coder", headers=keys)
    sent = {name.lower(): value for name, value in other.headers[-1].items()}
    assert sent["authorization"] == "Bearer its-own-key" and "client-own" not in str(sent)
    await answered(proxy, "fake", headers=keys)
    assert "its-own-key" not in str(proxy.backend.headers[-1])


async def test_it_is_rated_and_never_trains(with_coder: Proxy) -> None:
    for _ in range(5):  # a run begins with four
        id, _ = await answered(with_coder, "coder")
        status, rating = await with_coder.rate(completion_id=id, rating="good")
        assert (status, rating["never_trains"]) == (201, REASON)
    state = await with_coder.get("/rl/status")
    assert state["ratings"]["fresh"] == 0 and state["ratings"]["untrainable"] == {"further_model": 5}
    assert list(state["further_models"]) == ["coder"] and state["last_run"] is None
    why = await with_coder.get("/rl/why/last")
    assert (why["completion"], why["waiting"]) == (id, f"it never trains: {REASON}")
    assert why["weights"] == {"model": "qwen", "state": "not ours", "sha256": None, "run": None}
    said = await with_coder.say("hello", SAID, "/rl good", model="coder")
    assert f"this answer never trains: {REASON}" in said
    lines = await (await with_coder.http.get("/rl/export?rated=1")).text()
    assert lines.count('"untrainable":"further_model"') == 5


async def test_no_line_and_no_pin_has_it(with_coder: Proxy) -> None:
    await create(with_coder, "ann", users=["ann"])
    response = await with_coder.chat("x", model="coder", headers={"x-rl-user": "ann", "x-rl-line": "ann"})
    assert "x-rl-line" not in response.headers and response.headers["x-rl-adapter"] == "none"
    (completion,) = (await with_coder.get("/rl/completions"))["data"]
    assert (completion["line"], completion["version"]) == ("common", None)
    response = await with_coder.chat("x", model="coder@v1")
    assert response.status == 404 and with_coder.backend.unknown == 1, "an unknown name, as ever"


async def test_one_that_is_away_says_where_its_address_is(with_coder: Proxy, other: FakeBackend) -> None:
    await other.stop()
    response = await with_coder.chat("x", model="coder")
    message = (await response.json())["error"]["message"]
    assert response.status == 503 and "correct models.coder.url" in message and "backend.url" not in message
    assert await with_coder.say("hi") == "You said: hi "


async def test_it_answers_while_the_own_model_is_away(with_coder: Proxy) -> None:
    await with_coder.backend.stop()
    assert (await answered(with_coder, "coder"))[1] == "none"
    await with_coder.backend.start()


async def test_a_model_that_its_server_lacks(proxy: Proxy, other: FakeBackend) -> None:
    await restart(proxy, coder={"url": other.url, "model": "gone"})
    response = await proxy.chat("x", model="coder")
    message = (await response.json())["error"]["message"]
    assert response.status == 404 and "has no model 'gone'" in message and "(qwen;" in message


async def test_tokens_are_counted_there(with_coder: Proxy, other: FakeBackend) -> None:
    other.speaks |= {"tokenize"}
    body = {"model": "coder", "messages": [{"role": "user", "content": "hi there"}]}
    status, count = await call(with_coder, "POST", "/v1/messages/count_tokens", body)
    assert status == 200 and count["input_tokens"] > 0
    assert with_coder.backend.asked == []


async def test_a_home_before_ollama_lists_it(tmp_path: Path, other: FakeBackend) -> None:
    ollama = FakeOllama(tmp_path / "ollama", "0.33.2")
    await ollama.start()
    proxy = make_proxy(tmp_path / "home", ollama.url, **{"backend.model": "fake"})
    await proxy.start(models={"coder": {"url": other.url, "model": "qwen"}})
    try:
        assert "coder" in [entry["name"] for entry in (await proxy.get("/api/tags"))["models"]]
        assert (await call(proxy, "POST", "/api/show", {"model": "coder:latest"}))[0] == 200
        body = {"model": "coder", "stream": False, "messages": [{"role": "user", "content": "hi"}]}
        status, answer = await call(proxy, "POST", "/api/chat", body)
        assert status == 200 and answer["message"]["content"] == SAID
    finally:
        await proxy.stop()
        await ollama.stop()


async def test_a_home_before_a_cloud_has_one_too(proxy: Proxy, other: FakeBackend) -> None:
    proxy.kind = None
    await proxy.stop()
    await proxy.start(backend__kind="openai", models={"coder": {"url": other.url, "model": "qwen"}})
    key = {"authorization": "Bearer key-for-the-cloud"}
    assert "coder" in [m["id"] for m in (await proxy.get("/v1/models"))["data"]]
    assert (await proxy.get("/v1/models/coder"))["id"] == "coder"
    id, _ = await answered(proxy, "coder", headers=key)
    await answered(proxy, "fake", headers=key)
    assert "key-for-the-cloud" in str(proxy.backend.headers[-1]) and "key-for-the-cloud" not in str(other.headers)
    assert (await proxy.rate(completion_id=id, rating="good"))[1]["never_trains"] == REASON
    status, summed_up = await call(proxy, "POST", "/v1/responses/compact", {"model": "coder", "input": "hi"})
    assert status == 200 and summed_up["object"] == "response.compaction"
    assert len(other.requests) == 2 and len(proxy.backend.requests) == 1
