"""Whether a Tinker server may be asked, and can do it: consent first, in words, and nothing is sent before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from config.places import parse
from scripts.fakes.tinker import FakeTinker
from tests.harness import tinker_server
from trainer.places.elsewhere import Elsewhere, open_place
from trainer.places.place import PlaceSettings
from trainer.places.tinker_service import KEY, TinkerService

needs_tinker = pytest.mark.skipif(tinker_server.lacks() is not None, reason=str(tinker_server.lacks()))


@pytest.fixture
def server(model: Path, tmp_path: Path) -> Iterator[FakeTinker]:
    thread = tinker_server.TinkerThread(model, tmp_path / "server", key="tml-a-key")
    yield thread.start()
    thread.stop()


def place(url: str, **more: object) -> PlaceSettings:
    return PlaceSettings(url.replace("http://", "tinker+http://"), **more)  # type: ignore[arg-type]


def test_addresses() -> None:
    assert parse("tinker://tinker.example.org/services/prod").url == "https://tinker.example.org/services/prod"
    assert parse("tinker+http://127.0.0.1:9003/").url == "http://127.0.0.1:9003"
    for text in ("tinker://", "tinker://me@host", "tinker://host?x=1", "tinker://a:secret@host", "tinker:///folder"):
        with pytest.raises(ValueError, match="tinker://"):
            parse(text)


async def test_nothing_is_asked_before_it_may_read_what_people_wrote(server: FakeTinker, model: Path) -> None:
    settings = place(server.url)
    assert open_place(settings) is None, "the run itself is a child of this machine"
    refusal = await Elsewhere(settings).refusal(str(model), sealed=True)
    assert refusal is not None and "train.where_takes_texts = true" in refusal and "would leave this machine" in refusal
    assert not server.calls


@pytest.mark.skipif(tinker_server.lacks() is None, reason="the package is here")
async def test_without_the_package(model: Path) -> None:
    refusal = await Elsewhere(place("http://127.0.0.1:1", takes_texts=True)).refusal(str(model), sealed=False)
    assert refusal is not None and "pip install 'rlproxy[tinker]'" in refusal


@needs_tinker
@pytest.mark.scale
async def test_what_a_server_says(server: FakeTinker, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = place(server.url, takes_texts=True)
    service = Elsewhere(settings)
    monkeypatch.delenv(KEY, raising=False)
    refusal = await service.refusal(str(model), sealed=False)
    assert refusal is not None and "401" in refusal and KEY in refusal
    monkeypatch.setenv(KEY, "tml-a-key")
    assert await service.refusal(str(model), sealed=False) is None
    refusal = await service.refusal("Qwen/Qwen3-8B", sealed=False)
    assert refusal is not None and "Qwen/Qwen3-8B" in refusal and "train.where_weights" in refusal
    named = Elsewhere(place(server.url, takes_texts=True, weights=str(model)))
    assert await named.refusal("/here/it/is/called/otherwise", sealed=False) is None
    away = Elsewhere(place("http://127.0.0.1:1", takes_texts=True))
    refusal = await away.refusal(str(model), sealed=False)
    assert refusal is not None and "does not answer" in refusal


def test_the_key_goes_into_the_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "tml-a-key")
    service = TinkerService(place("http://127.0.0.1:9003", takes_texts=True), parse("tinker+http://127.0.0.1:9003"))
    assert service.environment()[KEY] == "tml-a-key" and service.environment()["TINKER_TELEMETRY"] == "0"
    assert not any("tml-a-key" in argument for argument in service.arguments("w"))
    assert service.arguments("w") == ["--tinker", "http://127.0.0.1:9003", "--tinker-model", "w"]
