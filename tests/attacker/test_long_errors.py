"""A backend whose errors are very long: little of them is searched and kept, and nobody else waits meanwhile.

Before, 8 MB of an error took 3 s of the event loop, and an error of 20 MB inside an answer was searched for 9 s and
stored whole.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.conversation.redaction import Redactor
from proxy.core import json_edit
from proxy.core.offload import LARGE
from proxy.core.sse import EventSplitter
from proxy.relay.parts import MOST_ERROR
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.scripted import ScriptedAnswer, ScriptedServer
from scripts.harness.in_process import Proxy
from store.records import Completion

CARD = "4111 1111 1111 1111 "
CHAT = "/v1/chat/completions"
JSON, EVENTS = {"content-type": "application/json"}, {"content-type": "text/event-stream"}
LONG = {"error": {"message": f"no: sk-ant-api03-{'a1B2' * 10} {CARD * 200_000}"}}
ODD = {"error": {"things": [{"a": CARD}] * 100_000}}


def whole(status: int, error: dict[str, Any]) -> ScriptedAnswer:
    return ScriptedAnswer("", status, JSON, [json.dumps(error).encode()])


def stream(error: dict[str, Any]) -> ScriptedAnswer:
    return ScriptedAnswer("", 200, EVENTS, [b"data: %s\n\n" % json.dumps(error).encode()])


async def stored(tmp_path: Path, answer: ScriptedAnswer, **request: Any) -> Completion:
    """The completion of a request that is answered so."""
    server = ScriptedServer([answer])
    await server.start()
    proxy = Proxy(tmp_path / "home", FakeBackend(), FakeLauncher())
    proxy.kind = None
    await proxy.start(backend__kind="vllm", backend__url=server.url, backend__model="m", server__max_body_bytes=1 << 25)
    try:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **request}
        async with proxy.http.post(CHAT, json=body) as response:
            id = response.headers["x-rl-completion-id"]
            await response.read()
        completion = None
        while completion is None or completion.end is None:
            completion = await proxy.store.completions.get(id)
        return completion
    finally:
        await proxy.stop()
        await server.stop()


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the texts that were searched for secrets."""
    lengths: list[int] = []
    search = Redactor.text

    def text(self: Redactor, text: str, *kinds: Any) -> str:
        lengths.append(len(text))
        return search(self, text, *kinds)

    monkeypatch.setattr(Redactor, "text", text)
    return lengths


@pytest.mark.parametrize("error", [LONG, ODD], ids=["text", "things"])
@pytest.mark.parametrize(
    "answer",
    [lambda error: whole(500, error), lambda error: whole(400, error), lambda error: whole(200, error), stream],
    ids=["500", "400", "200", "event"],
)
async def test_little_of_it_is_searched_and_kept(
    tmp_path: Path, searched: list[int], answer: Callable[[Any], ScriptedAnswer], error: dict[str, Any]
) -> None:
    completion = await stored(tmp_path, answer(error), stream=answer is stream)
    assert completion.status == "error" and completion.end is not None
    kept = completion.end.error or ""
    assert 20 < len(kept) <= MOST_ERROR and "4111" not in kept and "sk-ant" not in kept
    assert max(searched) <= 1 << 16


TEXT = "w " * (LARGE // 2 + 1000)
PLAIN = '{"choices":[{"index":0,"message":{"content":"%s"},"finish_reason":"stop"}],"x":%s}'
CHUNK = '{"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":"stop"}],"x":%s}'
BODIES = {
    "number": lambda form: form % (TEXT, "NaN"),
    "half": lambda form: form % (TEXT + "\\ud83d", "1"),
    "broken": lambda form: form % (TEXT, "nothing"),
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("form", ["whole", "stream", "whole for a stream"])
async def test_long_json_that_is_odd_is_read_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, form: str
) -> None:
    """The quick parser refuses it, and the other one takes a second for 20 MB."""
    readers: list[threading.Thread] = []
    read = json_edit._server_json

    def noted(raw: bytes) -> json_edit.ServerJson:
        if len(raw) > LARGE:
            readers.append(threading.current_thread())
        return read(raw)

    monkeypatch.setattr(json_edit, "_server_json", noted)
    text = BODIES[body](CHUNK if form == "stream" else PLAIN).encode()
    answer = (
        ScriptedAnswer("", 200, EVENTS, [b"data: %s\n\n" % text, b"data: [DONE]\n\n"])
        if form == "stream"
        else ScriptedAnswer("", 200, JSON, [text])
    )
    completion = await stored(tmp_path, answer, stream=form != "whole")
    assert completion.end is not None and (body == "broken" or len(completion.end.text or "") >= len(TEXT))
    assert 1 <= len(readers) <= 2 and threading.main_thread() not in readers, readers


async def test_a_response_in_the_background_may_stream_an_event_without_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on to its client, and little of it is held."""
    waiting: list[int] = []
    cut = EventSplitter.whole

    def noted(self: EventSplitter, chunk: bytes) -> bytes:
        whole = cut(self, chunk)
        waiting.append(self.waiting)
        return whole

    monkeypatch.setattr(EventSplitter, "whole", noted)
    queued = b'{"id":"resp_1","object":"response","status":"queued","output":[]}'
    reads = [b": first\n\ndata: {", *[b"x" * 100_000] * 80]
    answers = [ScriptedAnswer("/v1/responses", 200, JSON, [queued]), ScriptedAnswer("", 200, EVENTS, reads)]
    server = ScriptedServer(answers)
    await server.start()
    proxy = Proxy(tmp_path / "home", FakeBackend(), FakeLauncher())
    proxy.kind = None
    await proxy.start(backend__kind="openai", backend__url=server.url, backend__model="m", server__max_body_bytes=LARGE)
    async with proxy.http.post("/v1/responses", json={"model": "m", "input": "x", "background": True}) as response:
        id = (await response.json())["id"]
    async with proxy.http.get(f"/v1/responses/{id}?stream=true") as response:
        assert await response.read() == b"".join(reads)
    assert max(waiting) < 2 * LARGE
    await proxy.stop()
    await server.stop()


@pytest.mark.parametrize("path", ["/rl/capture", "/rl/episodes", "/rl/keys", "/rl/links", "/rl/forget", "/v1/feedback"])
async def test_a_long_body_of_our_own_routes_is_read_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    readers: list[threading.Thread] = []
    read = json_edit._mend

    def noted(raw: bytes, *rest: Any) -> Any:
        readers.append(threading.current_thread())
        return read(raw, *rest)

    monkeypatch.setattr(json_edit, "_mend", noted)
    proxy = Proxy(tmp_path / "home", FakeBackend(), FakeLauncher())
    proxy.kind = None
    await proxy.start(backend__kind="openai", backend__url="http://127.0.0.1:1", backend__model="m")
    body = io.BytesIO(b'{"text":"%s","number":NaN}' % TEXT.encode())
    async with proxy.http.post(path, data=body) as response:
        assert response.status == 400
    assert readers and threading.main_thread() not in readers
    await proxy.stop()
