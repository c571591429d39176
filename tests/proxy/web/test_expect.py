"""`Expect`: bodies that a client announces first, and expectations that nobody can meet."""

from __future__ import annotations

import json

import pytest

from scripts.harness.in_process import Proxy
from tests.harness.raw_http import CHAT, head, raw, status


async def test_a_body_that_is_announced_first_is_taken(proxy: Proxy) -> None:
    answer = await raw(proxy, head("POST", "/v1/chat/completions", "expect: 100-Continue", body=CHAT))
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/chat/completions"), ("POST", "/v1/embeddings"), ("GET", "/rl/status")]
)
@pytest.mark.parametrize("expectation", ["a miracle", "caf\xe9", "\xff\xfe"])
async def test_what_nobody_can_meet_is_refused_in_words(proxy: Proxy, method: str, path: str, expectation: str) -> None:
    answer = await raw(proxy, head(method, path, f"expect: {expectation}", body=CHAT))
    assert status(answer) == 417
    assert "Expect" in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert not proxy.backend.requests
