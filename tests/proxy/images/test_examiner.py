"""Pictures are decoded behind the capture, each once, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from proxy.images import examiner
from scripts.harness.in_process import Proxy
from scripts.harness.pictures import picture
from store.copies import backup
from store.file import schema
from store.image_records import ImageInfo
from tests.harness.forgetting import forget

PNG = picture()
CODED = base64.b64encode(PNG).decode()
URL = f"data:image/png;base64,{CODED}"
TEXT = {"type": "text", "text": "which colour?"}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examiner, "LOOK_S", 0.02)


def about(*urls: str, text: str = "which colour?") -> list[dict[str, Any]]:
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [{"type": "text", "text": text}, *images]}]


async def ask(proxy: Proxy, messages: list[dict[str, Any]], **headers: str) -> str:
    body = {"model": "fake", "messages": messages}
    async with proxy.http.post("/v1/chat/completions", json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        return response.headers["x-rl-completion-id"]


async def looked_into(proxy: Proxy, id: str) -> list[ImageInfo]:
    """The pictures of the last message, once all are decoded."""
    async with asyncio.timeout(60):
        while True:
            images = (await proxy.store.images.of_last_messages([id])).get(id, [])
            if images and all(image.state != "waiting" for image in images):
                return images
            await asyncio.sleep(0.02)


# The same picture in each of the dialects

DIALECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": about(URL)}),
    "responses": ("/v1/responses", {"input": [{"role": "user", "content": [
        {"type": "input_text", "text": "which?"}, {"type": "input_image", "image_url": URL}]}]}),
    "messages": ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": [
        TEXT, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": CODED}}]}]}),
    "messages, lines": ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": [
        TEXT, {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                           "data": base64.encodebytes(PNG).decode()}}]}]}),
    "ollama chat": ("/api/chat", {"stream": False, "messages": [
        {"role": "user", "content": "which?", "images": [CODED]}]}),
    "ollama generate": ("/api/generate", {"stream": False, "prompt": "which?", "images": [CODED]}),
}  # fmt: skip


@pytest.mark.parametrize("name", list(DIALECTS))
async def test_it_is_counted_decoded_once_and_relayed_as_it_came(proxy: Proxy, name: str) -> None:
    path, body = DIALECTS[name]
    ids = []
    for _ in range(2):
        async with proxy.http.post(path, json={"model": "fake", **body}) as response:
            assert response.status == 200, await response.text()
            ids.append(response.headers["x-rl-completion-id"])
    assert "iVBORw0KGgo" in json.dumps(proxy.backend.requests[-1])
    (image,) = await looked_into(proxy, ids[0])
    assert image == (await looked_into(proxy, ids[1]))[0]
    assert (image.state, image.format, image.width, image.height, image.size) == ("decoded", "PNG", 64, 48, len(PNG))
    assert await proxy.store.images.counts() == {"decoded": 1}
    shown = await proxy.get(f"/rl/completions/{ids[0]}")
    assert shown["images"] == 1 and shown["untrainable"] == "has_image"
    assert (await proxy.get(f"/rl/why/{ids[0]}"))["images"] == 1
    assert (await proxy.get("/rl/status"))["images"] == {
        "decoded": 1, "refused": 0, "waiting": 0, "problem": None, "untrained": "the weights are not on this machine",
    }  # fmt: skip


async def test_a_remote_one_is_counted_and_never_fetched(proxy: Proxy) -> None:
    url = f"{proxy.backend.url}/picture.png"
    id = await ask(proxy, about(URL, url))
    assert [image["image_url"]["url"] for image in proxy.backend.requests[-1]["messages"][0]["content"][1:]] == [
        URL,
        url,
    ]
    shown = await proxy.get(f"/rl/completions/{id}")
    assert shown["images"] == 2 and shown["untrainable"] == "remote_image"
    await proxy.rate(completion_id=id, rating="good")
    assert (await proxy.get("/rl/status"))["ratings"]["untrainable"] == {"remote_image": 1}
    assert (await proxy.get(f"/rl/why/{id}"))["waiting"] == "it never trains: remote image"
    await looked_into(proxy, id)
    assert len(proxy.backend.requests) == 1  # nobody has asked for it


async def test_more_than_the_most_do_not_train(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(images__max_per_prompt=2)
    for count, reason in ((2, "has_image"), (3, "too_many_images")):
        id = await ask(proxy, about(*[URL] * count))
        shown = await proxy.get(f"/rl/completions/{id}")
        assert (shown["images"], shown["untrainable"]) == (count, reason)


async def test_pictures_of_earlier_turns_count_too(proxy: Proxy) -> None:
    first = about(URL)
    await ask(proxy, first)
    id = await ask(proxy, [*first, {"role": "assistant", "content": "red"}, {"role": "user", "content": "sure?"}])
    shown = await proxy.get(f"/rl/completions/{id}")
    assert (shown["images"], shown["untrainable"]) == (1, "has_image")


@pytest.mark.parametrize(
    "data", [b"\x89PNG" + bytes(80), b"\xff\xd8\xff" + bytes(80), PNG[:-30]], ids=["png", "jpeg", "cut"]
)
async def test_one_that_is_broken_is_refused_and_costs_nothing_else(proxy: Proxy, data: bytes) -> None:
    id = await ask(proxy, about("data:image/png;base64," + base64.b64encode(data).decode()))
    (image,) = await looked_into(proxy, id)
    assert image.state == "refused" and image.reason
    good = await ask(proxy, about(URL))
    assert (await looked_into(proxy, good))[0].state == "decoded"


async def test_what_waits_at_a_stop_is_decoded_after_the_next_start(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examiner, "LOOK_S", 600.0)
    await proxy.stop()
    await proxy.start()
    id = await ask(proxy, about(URL))
    assert await proxy.store.images.counts() == {"waiting": 1}
    await proxy.stop()
    await proxy.start()
    assert (await looked_into(proxy, id))[0].state == "decoded"


async def test_without_pillow_it_is_said_and_nothing_is_lost(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.images.decoder._pillow", lambda: None)
    await proxy.stop()
    await proxy.start()
    id = await ask(proxy, about(URL))
    status = (await proxy.get("/rl/status"))["images"]
    assert status["waiting"] == 1 and "pip install 'rlproxy[images]'" in status["problem"]
    assert CODED in json.dumps((await proxy.get(f"/rl/completions/{id}"))["prompt"])
    monkeypatch.undo()
    await proxy.stop()
    await proxy.start()
    assert (await looked_into(proxy, id))[0].state == "decoded"


# Out, in, and gone


async def test_exported_and_imported_it_is_the_same(proxy: Proxy, tmp_path: Path) -> None:
    id = await ask(proxy, about(URL))
    await looked_into(proxy, id)
    async with proxy.http.get("/rl/export") as response:
        line = await response.text()
    assert CODED in line and json.loads(line)["images"] == 1
    await proxy.stop()
    proxy.home = proxy.flags["home"] = tmp_path / "other"
    await proxy.start()
    async with proxy.http.post("/rl/import", data=line) as response:
        assert (await response.json())["stored"] == 1
    assert (await looked_into(proxy, id))[0].state == "decoded"
    assert (await proxy.get(f"/rl/completions/{id}"))["images"] == 1
    older = json.dumps({**json.loads(line), "id": "rl-older", "untrainable": None})  # nobody believes that
    async with proxy.http.post("/rl/import", data=older) as response:
        assert (await response.json())["stored"] == 1
    assert (await proxy.get("/rl/completions/rl-older"))["untrainable"] == "has_image"


async def test_a_backup_has_it(proxy: Proxy) -> None:
    id = await ask(proxy, about(URL))
    (image,) = await looked_into(proxy, id)
    assert image.sha256 is not None
    await proxy.stop()
    file = proxy.home.parent / "backup.db"
    await asyncio.to_thread(backup.backup, proxy.home / schema.NAME, file)
    (proxy.home / schema.NAME).unlink()
    file.rename(proxy.home / schema.NAME)
    await proxy.start()
    assert await looked_into(proxy, id) == [image]
    assert (await proxy.store.images.thumbnail(image.sha256) or b"").startswith(b"\xff\xd8\xff")


def pieces_of(*texts: bytes) -> list[bytes]:
    """Parts of these that no other file has by chance."""
    return [text[start : start + 48] for text in texts for start in range(0, len(text) - 48, 48)]


def files_with(home: Path, pieces: list[bytes]) -> set[str]:
    files = [file for file in home.rglob("*") if file.is_file()]
    return {file.name for file in files if any(piece in file.read_bytes() for piece in pieces)}


async def test_forgotten_with_the_last_completion_no_byte_of_it_is_left(proxy: Proxy) -> None:
    """Not of the file, its base64, or its thumbnail; in no file of the home, the log and the copies among them."""
    noisy = picture("JPEG", (90, 200, 40), (333, 222))
    url = "data:image/jpeg;base64," + base64.b64encode(noisy).decode()
    first = await ask(proxy, about(url), **{"x-rl-session": "s"})
    again = await ask(proxy, about(url, text="and now?"), **{"x-rl-session": "t"})
    await ask(proxy, about(URL))
    (image,) = await looked_into(proxy, first)
    assert image.sha256 is not None
    thumbnail = await proxy.store.images.thumbnail(image.sha256)
    assert thumbnail is not None
    pieces = pieces_of(noisy, base64.b64encode(noisy), thumbnail)
    await proxy.rate(completion_id=first, rating="good")
    copy = proxy.home / "backups"
    copy.mkdir(exist_ok=True)
    await asyncio.to_thread(backup.backup, proxy.home / schema.NAME, copy / "copy.db")
    await forget(proxy, session="s")
    assert await proxy.store.images.thumbnail(image.sha256) == thumbnail  # the other one has it, too
    told = await forget(proxy, session="t", purge_backups=True)
    assert told["backups"]["deleted"] and not (copy / "copy.db").exists()
    assert await proxy.store.images.thumbnail(image.sha256) is None
    assert await proxy.store.completions.get(again) is None
    assert sum((await proxy.store.images.counts()).values()) == 1
    assert files_with(proxy.home, pieces) == set()


async def test_forgotten_while_it_is_decoded_it_does_not_come_back(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding, go = asyncio.Event(), asyncio.Event()
    original = examiner.Decoder.decode

    async def slowly(self: examiner.Decoder, data: bytes) -> Any:
        decoding.set()
        await go.wait()
        return await original(self, data)

    monkeypatch.setattr(examiner.Decoder, "decode", slowly)
    id = await ask(proxy, about(URL), **{"x-rl-session": "s"})
    await asyncio.wait_for(decoding.wait(), 30)
    await forget(proxy, session="s")
    go.set()
    other = await ask(proxy, about("data:image/png;base64," + base64.b64encode(picture(color=(1, 2, 3))).decode()))
    await looked_into(proxy, other)
    assert await proxy.store.completions.get(id) is None
    assert await proxy.store.images.counts() == {"decoded": 1}
