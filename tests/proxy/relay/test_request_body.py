"""Bodies in other encodings than UTF-8: servers in Python take them, and their JSON is passed on as UTF-8."""

from __future__ import annotations

import json

import pytest

from scripts.harness.in_process import Proxy

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "zwölf"}], "max_tokens": 8}
ENCODINGS = ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"])
async def test_a_body_in_another_encoding_is_answered(proxy: Proxy, path: str, encoding: str) -> None:
    body = {**CHAT, "stream": False} if path != "/v1/responses" else {"model": "fake", "input": "zwölf"}
    async with proxy.http.post(path, data=json.dumps(body, ensure_ascii=False).encode(encoding)) as response:
        answer = await response.text()
    assert response.status == 200 and "zwölf" in json.loads(answer).__str__()


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_a_count_of_a_body_in_another_encoding(proxy: Proxy, encoding: str) -> None:
    raw = json.dumps(CHAT, ensure_ascii=False).encode(encoding)
    async with proxy.http.post("/v1/messages/count_tokens", data=raw) as response:
        answer = await response.json()
    assert response.status in (200, 404) and "bug" not in str(answer)
