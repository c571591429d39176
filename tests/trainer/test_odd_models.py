"""Models that do not load as they are: a run of one ends as a result with a sentence, and runs no code of theirs."""

import json

import pytest
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from scripts.models import tiny as tiny_models
from tests.harness import tiny
from tests.trainer.runs import go, of
from trainer.formats.gguf import convert
from trainer.formats.mlx_layout import convert as to_mlx
from trainer.formats.server_layers import lora_layers
from trainer.serve.batched_lora import read_adapter

CONFIGURATION = """
from pathlib import Path
from transformers import LlamaConfig

Path({marker!r}).touch()


class OwnConfig(LlamaConfig):
    model_type = "own_kind"
"""
MODELING = """
from transformers import LlamaForCausalLM
from .configuration_own import OwnConfig


class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


def change_config(model, **changes):
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def with_code(tmp_path, monkeypatch):
    """A model that only Python in its folder can load; and the file that appears when that has run."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    model, marker = tiny.make_model(tmp_path / "model"), tmp_path / "it-ran"
    lines = tiny.sample_lines(model)
    classes = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    change_config(model, model_type="own_kind", architectures=["OwnForCausalLM"], auto_map=classes)
    (model / "configuration_own.py").write_text(CONFIGURATION.format(marker=str(marker)))
    (model / "modeling_own.py").write_text(MODELING)
    return model, lines, marker


def test_code_of_a_model_does_not_run(tmp_path, with_code):
    model, lines, marker = with_code
    result, _ = go(tiny.run_folder(tmp_path / "run", model, lines))
    assert result["status"] == "failed" and not marker.exists()
    assert result["reason"] == (
        f"{model} is a kind of model that only configuration_own.py, modeling_own.py in its folder can load, and "
        "rlproxy runs no code of a model. Read that code; where you trust it, add the model to "
        "train.trust_remote_code, as train.weights names it."
    )


def test_it_runs_where_a_person_names_the_model(tmp_path, with_code):
    model, lines, marker = with_code
    result, events = go(tiny.run_folder(tmp_path / "run", model, lines, trust_remote_code=True))
    assert result["status"] == "passed", result["reason"]
    assert marker.exists()
    (warning,) = [event["why"] for event in of(events, "choice") if event["name"] == "trust_remote_code"]
    assert "with your rights, unchecked" in warning


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"hidden_act": "nonsense"}, "KeyError"),
        ({"num_attention_heads": 3}, "Error"),
        ({"model_type": "x"}, "ValueError"),
    ],
)
def test_whatever_transformers_raises_is_one_sentence(tmp_path, changes, cause, capfd):
    model = tiny.make_model(tmp_path / "model")
    lines = tiny.sample_lines(model)
    change_config(model, **changes)
    result, _ = go(tiny.run_folder(tmp_path / "run", model, lines))
    assert result["status"] == "failed" and "Traceback" not in result["reason"]
    assert result["reason"].startswith(f"{model} cannot be trained here: it did not load with an adapter (")
    assert cause in result["reason"] and "Its ratings are kept" in result["reason"]
    assert "Traceback" in capfd.readouterr().err, "the whole of it is in trainer.log"


def test_a_model_that_also_sees_leaves_an_adapter_with_the_names_of_its_files(tmp_path):
    """transformers loads Qwen3.5's text part alone, with other names. All such kinds: tests/models."""
    model = tiny_models.make_seeing("qwen3_5", tmp_path / "model", vocabulary=259)
    tiny.tokenizer().save_pretrained(model)
    lines = tiny.sample_lines(model, count=6, tokens=6)
    result, events = go(tiny.run_folder(tmp_path / "run", model, lines, server_format="gguf"))
    assert result["status"] == "passed", result["reason"]
    assert {name.partition(".layers.")[0] for name in lora_layers(tmp_path / "out" / "v0001")} == {
        "model.language_model"
    }
    assert [event["value"] for event in of(events, "choice") if event["name"] == "shared_prefixes"] == ["blocks"]
    causal = AutoModelForCausalLM.from_pretrained(model)
    served = read_adapter("a", tmp_path / "out" / "v0001", causal)
    assert {name.partition(".layers.")[0] for name in served.pairs} == {"model"}, "as the built-in server has it"
    convert(tmp_path / "out" / "v0001", model, tmp_path / "a.gguf")
    to_mlx(tmp_path / "out" / "v0001", tmp_path / "mlx")
    assert all(
        name.startswith("language_model.model.layers.") for name in load_file(tmp_path / "mlx" / "adapters.safetensors")
    )
