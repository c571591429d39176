"""Dialects over the built-in backend, which has chat completions only: real process, real client, real token ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from scripts.harness.serving import Serving


async def end_of(serving: Serving, id: str) -> dict[str, Any]:
    async with serving.http.get(f"/rl/completions/{id}") as response:
        return dict(await response.json())


async def exported(serving: Serving) -> dict[str, dict[str, Any]]:
    async with serving.http.get("/rl/export") as response:
        lines = (await response.text()).splitlines()
    return {row["id"]: row for row in map(json.loads, lines)}


@pytest.mark.model
async def test_the_same_question_in_three_formats(tiny_weights: Path, tmp_path: Path) -> None:
    serving = Serving(tmp_path / "home", tiny_weights)
    await serving.start()
    try:
        url = str(serving.http._base_url) + "/v1"
        async with AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
            said, _ = await serving.chat("Hello there", temperature=0)
            whole = await client.responses.create(
                model="small", input="Hello there", temperature=0, max_output_tokens=16
            )
            stream = await client.responses.create(
                model="small", input="Hello there", temperature=0, max_output_tokens=16, stream=True
            )
            deltas, final = "", whole
            async for event in stream:
                if event.type == "response.output_text.delta":
                    deltas += event.delta
                elif event.type in ("response.completed", "response.incomplete"):
                    final = event.response
            rated = await client.responses.create(
                model="small", input="/rl good as it should be", previous_response_id=final.id
            )
            text = await client.completions.create(model="small", prompt="Hello there", temperature=0)
            asked = {"model": "small", "messages": [{"role": "user", "content": "Hello there"}]}
            async with serving.http.post("/v1/messages/count_tokens", json=asked) as response:
                counted = await response.json()
        assert counted == {"input_tokens": said["usage"]["prompt_tokens"]}
        answer = said["choices"][0]["message"]["content"]
        assert whole.output_text == final.output_text == deltas == text.choices[0].text == answer
        rows = await exported(serving)
        for id in (whole.id, final.id, text.id):
            assert rows[id]["exact"] and rows[id]["translated"], rows[id]["inexact_reason"]
            for what in ("prompt_token_ids", "token_ids", "finish_reason"):
                assert rows[id][what] == rows[said["id"]][what]
        assert not rows[said["id"]]["translated"]
        assert "rated good" in rated.output_text
        assert (await end_of(serving, final.id))["ratings"][0]["comment"] == "as it should be"
        dialects = (await serving.status())["backend"]["dialects"]
        assert dialects["chat"] == "native" and dialects["responses"] == "translated"
    finally:
        assert await serving.stop() == 0
