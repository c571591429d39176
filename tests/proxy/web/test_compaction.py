"""`/v1/responses/compact`: the model's own summary as one item, which a later request may send back."""

from __future__ import annotations

from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from scripts.harness.in_process import Proxy
from scripts.suites.published import faults

HISTORY: list[Any] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "We launch on Tuesday."},
    {"role": "assistant", "content": "Noted."},
]


async def test_a_conversation_is_summed_up_and_goes_on(proxy: Proxy) -> None:
    async with proxy.http.post("/v1/responses/compact", json={"model": "fake", "input": HISTORY}) as response:
        made = await response.json()
    # The package has no messages of the input there; the example in OpenAI's document does.
    assert not faults("compaction", {**made, "output": made["output"][1:]})
    asked = proxy.backend.requests[-1]["messages"]
    assert [message["role"] for message in asked] == ["system", "user", "assistant", "user"]
    assert "Sum up the conversation above" in asked[-1]["content"]
    assert [item["type"] for item in made["output"]] == ["message", "compaction"]
    assert made["usage"]["output_tokens"] > 0
    more = [*made["output"], {"role": "user", "content": "When do we launch?"}]
    async with proxy.http.post("/v1/responses", json={"model": "fake", "input": more}) as response:
        answer = await response.json()
    said = proxy.backend.requests[-1]["messages"]
    assert said[0] == {"role": "system", "content": "Be brief."}
    assert "A summary of the conversation so far:\nYou said: Sum up" in str(said[1]["content"])
    assert answer["output"][0]["content"][0]["text"].endswith("When do we launch? ")
    rows = (await proxy.get("/rl/completions"))["data"]
    assert [row["turn"] for row in rows] == ["main", "side"]


async def test_what_openai_alone_can_read_is_left_out(proxy: Proxy) -> None:
    items: list[Any] = [{"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAAB"}]
    async with proxy.http.post("/v1/responses", json={"model": "fake", "input": [*items, *HISTORY[1:2]]}) as response:
        assert response.headers["x-rl-left-out"] == "compaction" and response.status == 200
    assert "gAAAA" not in str(proxy.backend.requests[-1])


async def test_what_is_refused(proxy: Proxy) -> None:
    async with proxy.http.post("/v1/responses/compact", json={"input": HISTORY}) as response:
        assert response.status == 400 and (await response.json())["error"]["param"] == "model"
    async with AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(BadRequestError, match="`input` must be"):
            await client.responses.compact(model="fake", input=3)  # type: ignore[arg-type]
        with pytest.raises(NotFoundError, match="no model 'other'"):
            await client.responses.compact(model="other", input=HISTORY)  # type: ignore[arg-type]


async def test_a_long_summary_comes_as_one(proxy: Proxy) -> None:
    proxy.backend.script = lambda body: "word " * 8000
    async with proxy.http.post("/v1/responses/compact", json={"model": "fake", "input": HISTORY}) as response:
        made = await response.json()
    assert made["object"] == "response.compaction" and len(made["output"][-1]["encrypted_content"]) > 40_000
