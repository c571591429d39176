"""The built-in server's answers about pictures, against transformers from pixels, and what it refuses."""

from __future__ import annotations

import asyncio
import base64
import io
import json

import aiohttp
import pytest
import torch
from aiohttp.test_utils import TestClient, TestServer

from config.sections import Images
from scripts.harness.pictures import hostile, picture
from tests.harness import seeing, tiny
from trainer.formats.weights import Weights
from trainer.launch import LocalLauncher
from trainer.pictures.pixels import BadPicture
from trainer.serve import sight as sight_module
from trainer.serve.__main__ import load_model
from trainer.serve.engine import Engine
from trainer.serve.http_api import make_app
from trainer.serve.sight import LOOKS_AHEAD, Sight

RED, BLUE, GREEN = (picture(color=colour, size=seeing.SIZE) for colour in seeing.COLOURS)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return seeing.make("idefics3", tmp_path_factory.mktemp("models") / "idefics3")


def engine_of(folder):
    model, tokenizer = load_model(Weights(folder, "a test"), threads=1)
    return Engine(model, tokenizer, sight=Sight(model, folder, Images()))


@pytest.fixture
async def client(model):
    engine = engine_of(model)
    async with TestClient(TestServer(make_app(engine, name="seeing", weights=model))) as client:
        yield client
    engine.close()


def question(*pictures, text="what?", url="data:image/png;base64,"):
    parts = [{"type": "image_url", "image_url": {"url": url + base64.b64encode(data).decode()}} for data in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def alone(part):
    return [{"role": "user", "content": [part]}]


async def ask(client, messages, **members):
    body = {
        "messages": messages, "max_tokens": 6, "seed": 4, "logprobs": True, "return_token_ids": True,
        "ignore_eos": True,
    }  # fmt: skip
    data, headers = io.BytesIO(json.dumps(body | members).encode()), {"content-type": "application/json"}
    async with client.post("/v1/chat/completions", data=data, headers=headers) as response:
        return response.status, await response.json()


def gap(model, answer, pictures, text="what?"):
    """Nats between what the server said of each token and what transformers gives it."""
    prompt = seeing.inputs(model, pictures, text)
    assert answer["prompt_token_ids"] == prompt["input_ids"][0].tolist()
    choice = answer["choices"][0]
    values = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    expected = seeing.reference(model).log_probs(prompt, choice["token_ids"])
    return max(abs(value - other) for value, other in zip(values, expected, strict=True))


async def test_answers_of_a_batch_are_each_of_their_own_pictures(client, model):
    """Prompts about two pictures have equal ids at the client, and text alone stands beside them."""
    asked = [(RED,), (BLUE,), (RED, GREEN), (), (BLUE,)]
    answers = await asyncio.gather(*(ask(client, question(*pictures)) for pictures in asked))
    assert {status for status, _ in answers} == {200}
    for pictures, (_, answer) in zip(asked, answers, strict=True):
        if pictures:
            assert gap(model, answer, pictures) < 2e-4
    red, blue, *_ = (answer for _, answer in answers)
    assert red["prompt_token_ids"] == blue["prompt_token_ids"]
    logprobs = [answer["choices"][0]["logprobs"]["content"][0]["logprob"] for answer in (red, blue)]
    assert abs(logprobs[0] - logprobs[1]) > 1e-4


@pytest.mark.parametrize(("remembered", "times"), [(sight_module.REMEMBERED, 2), (1, 3)])
async def test_a_picture_of_an_earlier_turn_is_read_once_as_far_as_memory_goes(
    client, model, monkeypatch, remembered, times
):
    read = []
    rows = sight_module.PictureReader.rows
    monkeypatch.setattr(sight_module, "REMEMBERED", remembered)
    monkeypatch.setattr(
        sight_module.PictureReader, "rows", lambda self, *arguments: read.append(1) or rows(self, *arguments)
    )
    for data in (RED, BLUE, RED):
        status, answer = await ask(client, question(data))
        assert status == 200 and gap(model, answer, (data,)) < 2e-4
    assert len(read) == times


async def test_few_requests_hold_decoded_pictures_and_none_does_once_they_are_read(model, monkeypatch):
    placed, unread = [], []
    place = Sight.place

    def noted(self, *arguments):
        placed.append(place(self, *arguments))
        unread.append(sum(bool(picture.image) for prompt in placed for picture in prompt.pictures))
        return placed[-1]

    monkeypatch.setattr(Sight, "place", noted)
    engine = engine_of(model)
    async with TestClient(TestServer(make_app(engine, name="seeing", weights=model))) as client:
        answers = await asyncio.gather(*(ask(client, question(RED), max_tokens=3) for _ in range(12)))
        assert {status for status, _ in answers} == {200} and len(placed) == 12
        assert max(unread) <= sight_module.UNREAD
        assert not any(picture.image for prompt in placed for picture in prompt.pictures)
    engine.close()


async def test_the_pictures_of_a_request_are_bounded_together(model):
    loaded, tokenizer = load_model(Weights(model, "a test"), threads=1)
    engine = Engine(loaded, tokenizer, sight=Sight(loaded, model, Images(max_pixels=len(seeing.SIZE) * 512)))
    async with TestClient(TestServer(make_app(engine, name="seeing", weights=model))) as client:
        status, _ = await ask(client, question(RED, BLUE, GREEN))
        assert status == 200
        status, error = await ask(client, question(RED, BLUE, GREEN, RED))
        assert status == 400 and "3 times images.max_pixels" in error["error"]["message"]
    engine.close()


async def test_several_choices_and_a_stream(client, model):
    status, answer = await ask(client, question(RED), n=3)
    assert status == 200 and len(answer["choices"]) == 3
    body = {"messages": question(RED), "max_tokens": 6, "stream": True}
    async with client.post("/v1/chat/completions", json=body) as response:
        assert (await response.read()).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (question(RED, url="https://example.org/"), "nothing is fetched"),
        (question(b"no picture"), "cannot be decoded"),
        (alone({"type": "image_url", "image_url": {"url": "data:image/png;base64,!"}}), "base64"),
        (alone({"type": "image_url"}), "nothing is fetched"),
        (question(*[RED] * 51), "at most 50"),
        (alone({"type": "input_audio"}), "only text parts"),
    ],
)
async def test_what_is_not_a_picture_is_refused_and_others_go_on(client, model, messages, reason):
    (status, error), (other, answer) = await asyncio.gather(ask(client, messages), ask(client, question(RED)))
    assert status == 400 and reason in error["error"]["message"]
    assert other == 200 and gap(model, answer, (RED,)) < 2e-4


async def test_hostile_pictures_cost_their_own_requests(client, model):
    answers = await asyncio.gather(*(ask(client, question(each.data)) for each in hostile(10)))
    assert {status for status, _ in answers} <= {200, 400}
    assert all("Traceback" not in str(answer) for _, answer in answers)
    status, answer = await ask(client, question(RED))
    assert status == 200 and gap(model, answer, (RED,)) < 2e-4


async def test_a_picture_that_the_model_cannot_read_ends_its_own_request(client, model, monkeypatch):
    read = Sight.read

    def fails(self, picture):
        if picture.image[0].getpixel((30, 0)) == seeing.COLOURS[1]:
            raise RuntimeError("no such tile")
        return read(self, picture)

    monkeypatch.setattr(Sight, "read", fails)
    answers = await asyncio.gather(*(ask(client, question(data)) for data in (RED, BLUE, GREEN)))
    assert [status for status, _ in answers] == [200, 503, 200]
    assert "A picture was not read" in answers[1][1]["error"]["message"]


def test_a_model_whose_pictures_see_ahead_is_refused(tmp_path):
    folder = seeing.make("gemma3", tmp_path / "gemma3")
    model, _ = load_model(Weights(folder, "a test"), threads=1)
    with pytest.raises(BadPicture, match=LOOKS_AHEAD):
        Sight(model, folder, Images())


def test_a_model_that_reads_otherwise_is_refused(model, monkeypatch):
    loaded, _ = load_model(Weights(model, "a test"), threads=1)
    rows = sight_module.PictureReader.rows
    monkeypatch.setattr(
        sight_module.PictureReader, "rows", lambda self, *arguments: torch.flip(rows(self, *arguments), [0])
    )
    with pytest.raises(BadPicture, match="states differ"):
        Sight(loaded, model, Images())


async def test_a_blind_model_says_so(tmp_path):
    folder = tiny.make_model(tmp_path / "text")
    engine = Engine(*load_model(Weights(folder, "a test"), threads=1))
    app = make_app(engine, name="text", weights=folder, blind="the weights read text alone")
    async with TestClient(TestServer(app)) as client:
        status, error = await ask(client, question(RED))
    engine.close()
    assert status == 400 and "the weights read text alone" in error["error"]["message"]
    assert error["error"]["code"] == "image_not_supported"


async def test_a_template_that_wants_parts_gets_them(tmp_path):
    """SmolVLM's drops a content that is a text."""
    folder = tiny.make_model(tmp_path / "parts")
    model, tokenizer = load_model(Weights(folder, "a test"), threads=1)
    tokenizer.chat_template = (
        "{% for m in messages %}{% for part in m['content'] %}{{ part['text'] }}{% endfor %}{% endfor %}<|im_end|>"
    )
    engine = Engine(model, tokenizer)
    async with TestClient(TestServer(make_app(engine, name="parts", weights=folder))) as client:
        _, answer = await ask(client, [{"role": "user", "content": "what is it?"}])
    engine.close()
    assert "what is it?" in tokenizer.decode(answer["prompt_token_ids"])


async def test_the_settings_bounds_reach_the_process(model, tmp_path):
    server = await LocalLauncher().start_server(
        str(model), "seeing", threads=1, key="k", images=Images(max_bytes=1024), log=tmp_path / "log"
    )
    try:
        headers = {"authorization": "Bearer k"}
        async with aiohttp.ClientSession(server.url, headers=headers) as http:
            status, answer = await ask(http, question(RED))
            assert status == 200 and gap(model, answer, (RED,)) < 2e-4
            status, error = await ask(http, question(picture("PNG", size=(900, 900)) + bytes(2000)))
            assert status == 400 and "images.max_bytes" in error["error"]["message"]
    finally:
        await server.stop()
