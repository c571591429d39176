"""A backend whose answers have no end, or become very much: what goes on to the client is all there, and little of it
is in memory. Small sizes, with the bounds made small; bytes are counted, and no time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.access.bodies import Bodies
from proxy.backends.openai_compatible import CALL_BYTES
from proxy.relay.capture.answer_reader import MEASURE_FIRST
from scripts.fakes.backend import FakeBackend
from scripts.fakes.endless import ANSWERS, MODEL, TEXT, EndlessBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.in_process import Proxy
from store.records import Completion

MB = 1 << 20
SIZE = 24 * MB  # of an answer, far more than may be kept
LONGEST = 1 * MB
HELD = 16 * MB
TRANSLATED = ["responses", "messages", "ollama"]


@pytest.fixture
async def endless() -> AsyncIterator[EndlessBackend]:
    backend = EndlessBackend(SIZE)
    await backend.start()
    yield backend
    await backend.stop()


@asynccontextmanager
async def before(home: Path, endless: EndlessBackend, **flags: Any) -> AsyncIterator[Proxy]:
    proxy = Proxy(home, FakeBackend(), FakeLauncher())
    proxy.kind = None
    bounds: dict[str, Any] = {"server__max_body_bytes": LONGEST, "server__max_held_bytes": HELD}
    backend = {"backend__kind": "openai", "backend__url": endless.url, "backend__model": MODEL}
    await proxy.start(**{**bounds, **backend, **flags})
    try:
        yield proxy
    finally:
        await proxy.stop()


@pytest.fixture
def most_held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that were ever in the account, and at last those that are."""
    found: list[int] = [0]
    taking = Bodies.hold_for

    def of(self: Bodies, holder: object) -> Any:
        held = taking(self, holder)
        take = held.take

        class Watched:
            def take(self, amount: int) -> Any:
                refusal = take(amount)
                found[0] = max(found[0], bodies.held_bytes)
                return refusal

            def __getattr__(self, name: str) -> Any:
                return getattr(held, name)

        bodies = self
        return Watched()

    monkeypatch.setattr(Bodies, "hold_for", of)
    return found


def question(path: str, *, stream: bool) -> dict[str, Any]:
    named: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
    named = {"/v1/responses": {"input": "hi"}, "/v1/completions": {"prompt": "hi"}}.get(path, named)
    return {"model": MODEL, "stream": stream, "max_tokens": 9, **named}


async def ask(proxy: Proxy, path: str, *, stream: bool = False, **headers: str) -> tuple[int, bytes, str]:
    """Status and bytes of an answer, and the id that it is kept under; the bytes may be cut."""
    pieces = []
    async with proxy.http.post(path, json=question(path, stream=stream), headers=headers) as response:
        try:
            async for piece in response.content.iter_any():
                pieces.append(piece)
        except aiohttp.ClientError:
            pieces.append(b"<cut>")
        return response.status, b"".join(pieces), response.headers.get("x-rl-completion-id", "")


async def sent_by(mood: str, size: int = SIZE) -> bytes:
    return b"".join([piece async for piece in ANSWERS[mood][2](size)])


async def newest(proxy: Proxy) -> Completion:
    """The newest completion, once it has ended: its client may be told before."""
    async with asyncio.timeout(30):
        while not (found := await proxy.store.completions.page(limit=1)) or found[0].end is None:
            await asyncio.sleep(0.01)
    return found[0]


async def kept_nothing(proxy: Proxy, id: str) -> None:
    """It is marked so, and no rating is taken in silence."""
    found = await proxy.store.completions.get(id)
    assert found is not None and found.end is not None and found.status == "error"
    assert found.end.reply is None and not found.end.text and not found.end.exact
    assert "nothing of it is kept" in (found.end.error or "") and "server.max_body_bytes" in (found.end.error or "")
    status, body = await proxy.rate(completion_id=id, rating="good")
    assert status == 409 and "nothing was rated" in body["error"]["message"], body
    assert not await proxy.store.ratings.history(id)


@pytest.mark.parametrize("mood", ["event", "stream", "comments", "line", "lines"])
@pytest.mark.parametrize("retries", [{}, {"x-stainless-retry-count": "0"}])
async def test_an_endless_stream_goes_on_and_nothing_of_it_is_kept(
    tmp_path: Path, endless: EndlessBackend, most_held: list[int], mood: str, retries: dict[str, str]
) -> None:
    endless.mood = mood
    path = "/api/chat" if "line" in mood else "/v1/chat/completions"
    async with before(tmp_path, endless) as proxy:
        status, raw, id = await ask(proxy, path, stream=True, **retries)
        whole = await sent_by(mood)
        if mood == "stream":  # with our id in it
            assert raw.count(TEXT) == whole.count(TEXT) and raw.endswith(b"data: [DONE]\n\n")
            assert raw.replace(id.encode(), b"up-1") == whole
        else:
            assert raw == whole
        assert status == 200 and most_held[0] <= HELD
        if mood != "comments":  # of which nothing has to be kept
            await kept_nothing(proxy, id)
        endless.mood = None
        assert await proxy.get("/healthz") == {"ok": True}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("mood", ["answer", "things", "packed"])
async def test_an_endless_answer_goes_on_and_nothing_of_it_is_kept(
    tmp_path: Path, endless: EndlessBackend, most_held: list[int], path: str, mood: str
) -> None:
    endless.mood = mood
    async with before(tmp_path, endless) as proxy:
        status, raw, id = await ask(proxy, path)
        size = len(await sent_by(mood)) if mood != "packed" else SIZE
        assert status == 200 and len(raw) >= size and raw.endswith(b"}]}") and most_held[0] <= HELD
        await kept_nothing(proxy, id)


async def test_an_answer_of_very_many_things_is_not_read_though_it_is_short(
    tmp_path: Path, endless: EndlessBackend, most_held: list[int]
) -> None:
    endless.mood, endless.size = "things", 300_000  # 100,000 of them would be 26 MB
    async with before(tmp_path, endless) as proxy:
        status, raw, id = await ask(proxy, "/v1/chat/completions")
        assert status == 200 and raw == await sent_by("things", 300_000) and most_held[0] <= HELD
        await kept_nothing(proxy, id)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/api/chat"])
@pytest.mark.parametrize("mood", ["event", "answer", "things"])
@pytest.mark.parametrize("stream", [True, False])
async def test_what_has_to_be_said_in_another_format_breaks_off_in_words(
    tmp_path: Path, endless: EndlessBackend, most_held: list[int], path: str, mood: str, stream: bool
) -> None:
    endless.mood = mood
    async with before(tmp_path, endless, backend__translate=TRANSLATED) as proxy:
        status, raw, id = await ask(proxy, path, stream=stream)
        assert b"longer than rlproxy keeps" in raw and b"<cut>" not in raw, raw[-500:]
        assert status == 502 or (status == 200 and stream)
        assert most_held[0] <= HELD and len(raw) < 3 * LONGEST
        found = await newest(proxy)
        assert found.status in ("error", "partial") and found.end is not None and not found.end.text
        assert (await proxy.rate(completion_id=found.new.id, rating="good"))[0] == 409
        if id:
            assert found.new.id == id


async def test_a_translated_stream_that_has_to_be_kept_breaks_off_in_words(
    tmp_path: Path, endless: EndlessBackend, most_held: list[int]
) -> None:
    endless.mood = "stream"
    async with before(tmp_path, endless, backend__translate=TRANSLATED) as proxy:
        status, raw, _ = await ask(proxy, "/v1/responses", stream=True)
        assert status == 200 and b"longer than rlproxy keeps" in raw and most_held[0] <= HELD


@pytest.mark.parametrize(("path", "end"), [("/v1/messages", b'{"type":"message_stop"}'), ("/api/chat", b"}")])
async def test_a_translated_stream_of_which_nothing_has_to_be_kept_goes_on(
    tmp_path: Path, endless: EndlessBackend, most_held: list[int], path: str, end: bytes
) -> None:
    endless.mood = "stream"
    async with before(tmp_path, endless, backend__translate=TRANSLATED) as proxy:
        status, raw, id = await ask(proxy, path, stream=True)
        assert status == 200 and raw.count(TEXT) == (await sent_by("stream")).count(TEXT)
        assert raw.rstrip().endswith(end) and most_held[0] <= HELD
        await kept_nothing(proxy, id)


@pytest.mark.parametrize("mood", ["missing", "refused"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"])
async def test_an_endless_error_is_said_in_words(
    tmp_path: Path, endless: EndlessBackend, most_held: list[int], path: str, mood: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("exchange", "in_flight"):
        monkeypatch.setattr(f"proxy.relay.{module}.MOST_SHORT", LONGEST)
    endless.mood = mood
    async with before(tmp_path, endless) as proxy:
        status, raw, _ = await ask(proxy, path)
        error = json.loads(raw)["error"]
        assert status == 502 and "the rest was not read" in (error if isinstance(error, str) else error["message"])
        assert most_held[0] <= HELD and endless.sent < SIZE


async def test_an_endless_404_passes_through(tmp_path: Path, endless: EndlessBackend, most_held: list[int]) -> None:
    endless.mood = "missing"
    async with before(tmp_path, endless) as proxy:
        assert (await ask(proxy, "/v1/embeddings"))[:2] == (404, await sent_by("missing"))
        assert most_held[0] == 0


async def test_an_endless_list_of_models_is_said_in_words(tmp_path: Path, endless: EndlessBackend) -> None:
    async with before(tmp_path, endless) as proxy:
        endless.lists, endless.sent, endless.size = "things", 0, 4 * CALL_BYTES
        async with proxy.http.get("/readyz") as response:
            message = (await response.json())["error"]["message"]
            assert response.status == 503 and "more than 8,388,608 bytes; the rest was not read" in message
        assert endless.sent < 2 * CALL_BYTES
        endless.lists = None
        async with proxy.http.get("/readyz") as response:
            assert response.status == 200


async def test_an_endless_head_is_no_answer(tmp_path: Path, endless: EndlessBackend) -> None:
    async with before(tmp_path, endless) as proxy:
        endless.endless_head = True
        status, raw, _ = await ask(proxy, "/v1/chat/completions")
        assert status == 502 and b"did not answer in HTTP" in raw
        async with proxy.http.get("/readyz") as response:
            assert response.status == 503


async def test_many_long_answers_share_what_may_be_held(
    tmp_path: Path, endless: EndlessBackend, most_held: list[int]
) -> None:
    """All of them go on, and what is kept of them is not cut. One that comes by itself is kept."""
    endless.mood, endless.size = "answer", 900_000
    async with before(tmp_path, endless) as proxy:
        answers = await asyncio.gather(*(ask(proxy, "/v1/chat/completions") for _ in range(12)))
        answers.append(await ask(proxy, "/v1/chat/completions"))
        length = len(await sent_by("answer", 900_000))
        assert {status for status, _, _ in answers} == {200} and most_held[0] <= HELD
        assert all(len(raw) - length < 100 for _, raw, _ in answers)
        rows = [await proxy.store.completions.get(id) for _, _, id in answers]
        lengths = {len(row.end.text) if row and row.end and row.end.text else 0 for row in rows}
        assert len(lengths - {0}) == 1, "what is kept is whole"
        for row in rows:
            if row is not None and row.status == "error":
                await kept_nothing(proxy, row.new.id)


async def test_nothing_is_held_once_an_answer_has_ended(
    tmp_path: Path, endless: EndlessBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Bodies] = []
    starting = Bodies.__init__

    def start(self: Bodies, *given: Any) -> None:
        made.append(self)
        starting(self, *given)

    monkeypatch.setattr(Bodies, "__init__", start)
    async with before(tmp_path, endless) as proxy:
        for mood in ("event", "stream", "answer", "things", "packed"):
            endless.mood = mood
            assert (await ask(proxy, "/v1/chat/completions", stream=mood in ("event", "stream")))[0] == 200
            assert made[-1].held_bytes == 0, mood
    assert MEASURE_FIRST < LONGEST
