"""Whether answers about pictures can train on a folder's weights, by its files alone."""

import json

import pytest

from trainer.formats import sight


def folder_of(path, config, *files):
    (path / "config.json").write_text(json.dumps(config))
    for name in files:
        (path / name).write_text("{}")
    return path


@pytest.mark.parametrize("kind", sight.KINDS)
def test_kinds_that_were_shown_to_train(tmp_path, kind):
    config = {"model_type": kind, "vision_config": {"image_size": 32}}
    assert "has no processor_config.json or preprocessor_config.json" in sight.refusal(folder_of(tmp_path, config))
    assert sight.refusal(folder_of(tmp_path, config, "preprocessor_config.json")) is None


def test_others_say_why(tmp_path, monkeypatch):
    assert "no config.json" in sight.refusal(tmp_path)
    assert sight.refusal(folder_of(tmp_path, {"model_type": "llama"})) == "the weights read text alone"
    other = sight.refusal(folder_of(tmp_path, {"model_type": "qwen3_vl", "vision_config": {"depth": 1}}))
    assert other == "pictures train with models of gemma3 and idefics3; the weights are of qwen3_vl"
    seeing = {"model_type": "gemma3", "vision_config": {"image_size": 32}}
    monkeypatch.setattr(sight, "find_spec", lambda name: None)
    assert sight.refusal(folder_of(tmp_path, seeing, "processor_config.json")) == sight.NO_PILLOW
