"""What never trains says why: in the capture, in the export, to the learner, and to whoever asks for the status."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest

from proxy.conversation.modalities import first_non_text
from proxy.dialects.ollama import OllamaChat, OllamaGenerate
from scripts.harness.in_process import Proxy

PICTURE = base64.b64encode(random.Random(1).randbytes(2000)).decode()
URL = f"data:image/png;base64,{PICTURE}"


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


ASKED = {"type": "text", "text": "what is it?"}
WITH_PICTURES: dict[str, tuple[str, dict[str, Any], str]] = {
    "chat": ("/v1/chat/completions", {"messages": user(ASKED, {"type": "image_url", "image_url": {"url": URL}})},
             "has_image"),
    "chat, audio": ("/v1/chat/completions", {"messages": user(ASKED, {
        "type": "input_audio", "input_audio": {"data": PICTURE, "format": "wav"}})}, "has_audio"),
    "responses": ("/v1/responses", {"input": user({"type": "input_text", "text": "what?"},
                                                  {"type": "input_image", "image_url": URL})}, "has_image"),
    "responses, file": ("/v1/responses", {"input": user(
        {"type": "input_text", "text": "what?"}, {"type": "input_file", "filename": "a.pdf", "file_data": URL})},
        "has_file"),
    "messages": ("/v1/messages", {"max_tokens": 9, "messages": user(ASKED, {
        "type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}})}, "has_image"),
    "messages, a tool's": ("/v1/messages", {"max_tokens": 9, "messages": user(
        {"type": "tool_result", "tool_use_id": "t", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}}]},
        ASKED)}, "has_image"),
    "ollama": ("/api/chat", {"stream": False, "messages": [
        {"role": "user", "content": "what?", "images": [PICTURE]}]}, "has_image"),
    "ollama-generate": ("/api/generate", {"stream": False, "prompt": "what?", "images": [PICTURE]}, "has_image"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(WITH_PICTURES))
async def test_pictures_are_kept_apart_reach_the_backend_and_do_not_train(proxy: Proxy, name: str) -> None:
    path, body, why = WITH_PICTURES[name]
    async with proxy.http.post(path, json={"model": "fake", **body}) as response:
        assert response.status == 200, await response.text()
        id = response.headers["x-rl-completion-id"]
    assert PICTURE in json.dumps(proxy.backend.requests[-1])
    row = await proxy.store._reader.row(
        "SELECT (SELECT max(length(body)) FROM messages) AS message, (SELECT total(length(request)) FROM completions)"
        " AS request, (SELECT total(length(data)) FROM blobs) AS blobs"
    )
    assert row is not None and row["message"] < 400 and row["request"] < 400 and row["blobs"] == 2000
    shown = await proxy.get(f"/rl/completions/{id}")
    assert PICTURE in json.dumps(shown["prompt"]) and shown["untrainable"] == why
    async with proxy.http.get("/rl/export") as response:
        exported = json.loads(await response.text())
    assert PICTURE in json.dumps(exported["messages"]) and exported["untrainable"] == why
    await proxy.rate(completion_id=id, rating="good")
    ratings = (await proxy.get("/rl/status"))["ratings"]
    assert ratings["fresh"] == 0 and ratings["untrainable"] == {why: 1}


async def test_a_rating_finds_an_answer_about_a_picture(proxy: Proxy) -> None:
    """The client sends the picture back with its history: the same conversation, the same blob."""
    body = WITH_PICTURES["chat"][1]
    async with proxy.http.post("/v1/chat/completions", json={"model": "fake", **body}) as response:
        answer = await response.json()
    said = [*body["messages"], answer["choices"][0]["message"], {"role": "user", "content": "/rl good"}]
    async with proxy.http.post("/v1/chat/completions", json={"model": "fake", "messages": said}) as response:
        assert "rated" in (await response.json())["choices"][0]["message"]["content"]
    found = await proxy.store.completions.get(answer["id"])
    assert found is not None and len(found.ratings) == 1


async def test_the_upstream_gets_the_bytes_as_they_came(proxy: Proxy) -> None:
    raw = b'{ "model":"fake","messages":[{"role":"user","content":[{"image_url":{"url":"%s"} , "type":"image_url"}]}]}'
    raw = raw % URL.encode()
    seen: list[bytes] = []
    answer = proxy.backend._answer

    async def listening(request: Any, body: Any) -> Any:
        seen.append(await request.read())
        return await answer(request, body)

    proxy.backend._answer = listening  # type: ignore[method-assign]
    async with proxy.http.post("/v1/chat/completions", data=raw) as response:
        assert response.status == 200
    assert seen[0].replace(b',"logprobs":true,"return_token_ids":true', b"") == raw


@pytest.mark.parametrize(
    ("member", "value"), [("raw", True), ("template", "{{ .Prompt }}"), ("suffix", "end"), ("context", [1, 2])]
)
def test_what_ollama_renders_otherwise_does_not_train(member: str, value: Any) -> None:
    body = {"model": "m", "prompt": "x", member: value}
    assert OllamaGenerate().parse(body).untrainable == member
    assert OllamaGenerate().parse({"model": "m", "prompt": "x", member: None}).untrainable is None
    chat = {"model": "m", "messages": [{"role": "user", "content": "x"}], member: value}
    assert OllamaChat().parse(chat).untrainable is None  # no members of that route


async def test_text_trains(proxy: Proxy) -> None:
    await proxy.chat("x")
    (row,) = (await proxy.get("/rl/completions"))["data"]
    assert row["untrainable"] is None
    assert first_non_text([{"role": "user", "content": [ASKED]}, {"role": "tool", "content": None}]) is None
