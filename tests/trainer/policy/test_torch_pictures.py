"""Rows of pictures: computed once a picture, without a gradient, and proved against the model's own forward pass."""

import pytest
import torch

from tests.harness import seeing, tiny
from trainer.lessons.chat_template import Template
from trainer.pictures.album import Album
from trainer.pictures.processor import PictureProcessor
from trainer.policy import packing
from trainer.policy.packing import Tokens
from trainer.policy.torch_pictures import PictureReader


@pytest.fixture(params=["idefics3", "gemma3"])
def model(request, tmp_path):
    return seeing.make(request.param, tmp_path / request.param)


def opened(model, **overrides):
    policy = tiny.policy(model, **overrides)
    pictures = {seeing.name_of(data): data for data in seeing.pictures_of_lines()}
    album = Album(pictures, PictureProcessor(model), first_id=policy.words)
    album.number_all()
    return policy, album, Template(policy.tokenizer, album=album)


def towers(policy, monkeypatch):
    """How often the part that sees runs."""
    calls = []
    body = policy._causal.base_model
    tower = getattr(body, "vision_model", None) or body.vision_tower
    tower.register_forward_pre_hook(lambda part, arguments: calls.append(1))
    return calls


def test_each_picture_is_seen_once(model, monkeypatch):
    policy, album, template = opened(model)
    calls = towers(policy, monkeypatch)
    assert policy.see(album) is None
    proof = len(calls)
    prompts = [template.prompt(seeing.question(data)) for data in seeing.pictures_of_lines()]
    packed = packing.pack([Tokens(prompt, (40, 41, 42)) for prompt in prompts])
    first = policy.log_probs(packed).plain
    assert (policy.log_probs(packed).plain == first).all()
    policy.generate(prompts, max_tokens=3, temperature=0, seed=0)
    assert proof == 1 + len(prompts) == len(calls) == 4, "once for the proof, once a picture"
    parts = first.reshape(3, 3)
    assert abs(parts[0] - parts[1]).max() > 1e-3 < abs(parts[1] - parts[2]).max(), "the pictures count"


def test_generated_replies_are_those_of_the_model_itself(model):
    policy, album, template = opened(model)
    policy.see(album)
    pictures = seeing.pictures_of_lines()
    texts = ["what?", "and a longer question about it?", "what?"]
    prompts = [template.prompt(seeing.question(data, text=text)) for data, text in zip(pictures, texts, strict=True)]
    replies = policy.generate(prompts, max_tokens=6, temperature=0, seed=0)
    causal = seeing.reference(model).causal
    for data, text, reply in zip(pictures, texts, replies, strict=True):
        own = seeing.inputs(model, (data,), text)
        out = causal.generate(**own, max_new_tokens=6, do_sample=False)[0].tolist()[len(own["input_ids"][0]) :]
        assert reply == out[: len(reply)]


def test_features_of_pictures_are_the_means_of_their_rows(model):
    policy, album, _ = opened(model)
    policy.see(album)
    names = [seeing.name_of(data) for data in seeing.pictures_of_lines()]
    features = policy.picture_features([names[2], names[0], names[2]])
    assert features.shape == (3, 64) and (features[0] == features[2]).all() and (features[0] != features[1]).any()
    reader, expansions = PictureReader(policy._causal, "cpu"), dict(album.numbered)
    for name, row in zip((names[2], names[0]), features, strict=False):
        rows = reader.rows(album.inputs(name), expansions[name]).double().numpy()
        assert row == pytest.approx(rows.mean(0), abs=1e-6)


def test_a_model_that_reads_pictures_otherwise_is_refused(model, monkeypatch):
    policy, album, _ = opened(model)
    monkeypatch.setattr(PictureReader, "rows", lambda self, inputs, expansion: torch.zeros(4, 64))
    assert "in a way that this trainer does not know" in policy.see(album)
    monkeypatch.undo()
    policy, album, _ = opened(model)
    monkeypatch.setattr(PictureReader, "rows", lambda self, inputs, expansion: 1 / 0)
    assert "does not read pictures here (ZeroDivisionError" in policy.see(album)
