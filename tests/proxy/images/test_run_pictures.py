"""Pictures travel with the run folder: each once, by its hash, sealed, forgotten with its last completion."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from config.sections import Images
from proxy.images import examiner, run_pictures, trainability
from proxy.images.decoder import Decoder
from proxy.images.examiner import ImageExaminer
from proxy.images.run_pictures import RunPicture
from proxy.training import rehearsal, run_folder
from scripts.harness.in_process import Proxy
from scripts.harness.pictures import picture
from store.file.db_key import Secret
from tests.harness import seeing
from tests.harness.forgetting import forget
from tests.harness.runs import until
from tests.proxy.images.test_examiner import about, ask, looked_into
from trainer.io.encrypted_files import Seal, is_sealed

RED, BLUE = picture(color=(200, 0, 0)), picture(color=(0, 0, 200))


def url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seeing.make("idefics3", tmp_path_factory.mktemp("models") / "seeing")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examiner, "LOOK_S", 0.02)


async def sees(proxy: Proxy, weights: Path, **settings: Any) -> None:
    await proxy.stop()
    await proxy.start(train__weights=str(weights), **settings)


async def rated_about(proxy: Proxy, *pictures: bytes, rating: str = "good", text: str = "which?") -> str:
    id = await ask(proxy, about(*map(url, pictures), text=text))
    await looked_into(proxy, id)
    await proxy.rate(completion_id=id, rating=rating)
    return id


def rows(folder: Path, name: str, seal: Seal | None = None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (seal or Seal(None)).read(folder / name).splitlines()]


async def test_they_are_in_the_run_folder_once_and_the_samples_name_them(proxy: Proxy, weights: Path) -> None:
    await sees(proxy, weights)
    ids = [await rated_about(proxy, RED, text=f"{n}?", rating="bad" if n % 2 else "good") for n in range(3)]
    ids.append(await rated_about(proxy, BLUE, RED, rating="bad"))
    await until(proxy, live=1)
    folder = proxy.launcher.started[0]
    pictures = {row["sha256"]: row for row in rows(folder, "pictures.jsonl")}
    red, blue = (hashlib.sha256(data).hexdigest() for data in (RED, BLUE))
    assert set(pictures) == {red, blue} and base64.b64decode(pictures[blue]["data"]) == BLUE
    assert set(pictures[red]["completions"]) == set(ids) and pictures[blue]["completions"] == ids[3:]
    by_id = {line["completion"]: line for line in rows(folder, "samples.jsonl")}
    parts = by_id[ids[3]]["messages"][0]["content"]
    assert [part for part in parts if part["type"] != "text"] == [
        {"type": "image", "sha256": blue}, {"type": "image", "sha256": red},
    ]  # fmt: skip
    assert (await proxy.get(f"/rl/completions/{ids[0]}"))["untrainable"] is None


async def test_a_refused_one_says_so_in_its_place(proxy: Proxy, weights: Path) -> None:
    await sees(proxy, weights)
    broken = b"\x89PNG" + bytes(80)
    id = await rated_about(proxy, broken)
    for n in range(3):
        await rated_about(proxy, RED, text=f"{n}?", rating="bad")
    await until(proxy, live=1)
    folder = proxy.launcher.started[0]
    (line,) = [line for line in rows(folder, "samples.jsonl") if line["completion"] == id]
    (part,) = [part for part in line["messages"][0]["content"] if part["type"] == "image"]
    assert part["refused"] and part["sha256"] == hashlib.sha256(broken).hexdigest()
    assert len(rows(folder, "pictures.jsonl")) == 1


async def test_a_picture_is_forgotten_with_the_last_completion_that_has_it(proxy: Proxy, weights: Path) -> None:
    await sees(proxy, weights)
    ids = [await rated_about(proxy, RED, text=f"{n}?", rating="bad" if n % 2 else "good") for n in range(3)]
    ids.append(await rated_about(proxy, BLUE))
    await until(proxy, live=1)
    folder = proxy.launcher.started[0]
    await forget(proxy, completion=ids[3])
    assert [row["sha256"] for row in rows(folder, "pictures.jsonl")] == [hashlib.sha256(RED).hexdigest()]
    await forget(proxy, completion=ids[0])
    assert set(rows(folder, "pictures.jsonl")[0]["completions"]) == set(ids[1:3])
    for id in ids[1:3]:
        await forget(proxy, completion=id)
    assert rows(folder, "pictures.jsonl") == [] and rows(folder, "samples.jsonl") == []
    # No byte of it in any file of the home, in either form.
    needles = [RED[40:90], BLUE[40:90], base64.b64encode(RED)[60:120], base64.b64encode(BLUE)[60:120]]
    await proxy.stop()
    for file in proxy.home.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            assert not [needle for needle in needles if needle in data], file


async def test_a_rating_that_is_forgotten_alone_leaves_the_picture(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_text('{"completion": "rl-1", "ratings": ["rt-1"]}\n')
    (tmp_path / "pictures.jsonl").write_text('{"sha256": "00", "completions": ["rl-1"], "data": ""}\n')
    assert run_folder.remove_forgotten(tmp_path, (), {"rt-1"}) == 1
    assert rows(tmp_path, "pictures.jsonl")[0]["completions"] == ["rl-1"]
    assert run_folder.remove_forgotten(tmp_path, {"rl-1"}, ()) == 0
    assert rows(tmp_path, "pictures.jsonl") == []


async def test_they_are_sealed_with_the_samples(proxy: Proxy, weights: Path) -> None:
    await proxy.stop()
    proxy.home = proxy.flags["home"] = proxy.home / "encrypted"
    proxy.secret = Secret("ab" * 32)
    await proxy.start(train__weights=str(weights))
    for n in range(4):
        await rated_about(proxy, RED, text=f"{n}?", rating="bad" if n % 2 else "good")
    await until(proxy, live=1)
    folder, key = proxy.launcher.started[0], proxy.launcher.keys[0]
    assert key is not None and is_sealed(folder / "pictures.jsonl") and is_sealed(folder / "samples.jsonl")
    assert rows(folder, "pictures.jsonl", Seal(key))[0]["sha256"] == hashlib.sha256(RED).hexdigest()


async def test_more_bytes_than_a_run_takes_are_refused(monkeypatch: pytest.MonkeyPatch, proxy: Proxy) -> None:
    monkeypatch.setattr(run_pictures, "MOST_BYTES", len(RED) + 1)
    for data in (RED, BLUE):
        await looked_into(proxy, await ask(proxy, about(url(data))))
    lines: list[dict[str, Any]] = [
        {"completion": f"rl-{n}", "messages": about(url(data))} for n, data in enumerate((RED, BLUE, RED))
    ]
    pictures = await run_pictures.take_out(lines, proxy.store, ImageExaminer(proxy.store, Decoder(Images())))
    assert [*pictures] == [hashlib.sha256(RED).digest()]
    refusals = [line["messages"][0]["content"][1].get("refused") for line in lines]
    assert refusals[0] is refusals[2] is None and "the run's pictures have more than" in refusals[1]


async def test_the_look_at_the_newest_answers_has_their_pictures(
    proxy: Proxy, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsals: list[rehearsal.Rehearsal] = []

    async def note(self: rehearsal.Rehearsal) -> None:
        rehearsals.append(self)  # it looks when this test says so

    monkeypatch.setattr(rehearsal.Rehearsal, "run", note)
    await sees(proxy, weights)
    ids = [await ask(proxy, about(url(data))) for data in (RED, RED, BLUE)]
    for id in ids:
        await looked_into(proxy, id)
    await rehearsals[-1]._look()
    assert len(proxy.launcher.rehearsed[-1]) == 3
    names = {hashlib.sha256(data).hexdigest(): data for data in (RED, BLUE)}
    shown = proxy.launcher.rehearsed_pictures[-1]
    assert {name: base64.b64decode(data) for name, data in shown.items()} == names
    assert b"data:image" not in json.dumps(proxy.launcher.rehearsed[-1]).encode()


def test_a_look_takes_as_many_answers_as_its_pictures_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "MOST_BYTES", 10)
    lines = [{"completion": f"rl-{n}"} for n in range(4)]
    pictures = {
        b"a": RunPicture(b"12345", ["rl-0", "rl-2"]), b"b": RunPicture(b"12345", ["rl-1"]),
        b"c": RunPicture(b"1", ["rl-3"]),
    }  # fmt: skip
    tried, shown = rehearsal.with_room(lines, pictures)
    assert [line["completion"] for line in tried] == ["rl-0", "rl-1", "rl-2"] and set(shown) == {b"a", b"b"}


# Whether they train


async def test_what_was_captured_follows_the_weights(proxy: Proxy, weights: Path) -> None:
    id = await ask(proxy, about(url(RED)))
    remote = await ask(proxy, about(url(RED), "https://x/y.png"))
    await looked_into(proxy, id)
    await proxy.rate(completion_id=id, rating="good")
    assert (await proxy.get("/rl/status"))["ratings"]["fresh"] == 0
    await sees(proxy, weights)
    assert await proxy.store.meta.get(trainability.TRAIN) is True
    assert (await proxy.get("/rl/status"))["ratings"]["fresh"] == 1
    assert (await proxy.get(f"/rl/completions/{remote}"))["untrainable"] == "remote_image"
    await proxy.stop()
    await proxy.start(train__weights="")
    assert (await proxy.get("/rl/status"))["ratings"]["fresh"] == 0
    assert (await proxy.get(f"/rl/completions/{id}"))["untrainable"] == "has_image"
