"""Which weights are proposed for what a server says of its model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.cli.init import weights_search
from proxy.cli.init.weights_search import differs, download_gb, propose

URL = "https://hub.example/"
QWEN = {
    "general.name": "Qwen2.5 0.5B Instruct", "general.basename": "Qwen2.5", "general.size_label": "0.5B",
    "general.finetune": "Instruct", "general.architecture": "qwen2", "qwen2.block_count": 24,
}  # fmt: skip


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any model."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def specs(about: dict[str, Any], model: str = "x", kind: str = "ollama", root: str | None = None) -> list[str]:
    return [p.spec for p in propose(kind, model, root, about)]


def folder(path: Path, **config: Any) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").write_bytes(b"x")
    return path


def test_the_file_says_where_it_is_from() -> None:
    about = {**QWEN, "general.source.huggingface.repository": "Qwen/Qwen2.5-0.5B-Instruct"}
    assert specs(about)[0] == "Qwen/Qwen2.5-0.5B-Instruct"
    assert specs({"general.source.repo_url": URL + "a/b"}) == ["a/b"]
    assert specs({"general.repo_url": URL + "someone/b-GGUF"}) == [], "that repository holds no weights to train"
    assert specs({"general.source.url": "nonsense", "general.url": 7}) == []


def test_the_base_of_an_instruct_model_is_another_model() -> None:
    """A model card's base is what the model was tuned from; only a quantiser's card names the model itself."""
    about = {**QWEN, "general.base_model.0.repo_url": URL + "Qwen/Qwen2.5-0.5B"}
    assert "Qwen/Qwen2.5-0.5B" not in specs(about)
    assert specs(about)[0] == "Qwen/Qwen2.5-0.5B-Instruct" and "guess" in propose("ollama", "x", None, about)[0].reason
    quantised = {**QWEN, "general.base_model.0.repo_url": URL + "Qwen/Qwen2.5-0.5B-Instruct"}
    first = propose("ollama", "x", None, quantised)[0]
    assert first.spec == "Qwen/Qwen2.5-0.5B-Instruct" and "general.base_model" in first.reason
    hermes = {
        "general.name": "Hermes 3 Llama 3.2 3B", "general.basename": "Hermes-3-Llama-3.2", "general.size_label": "3B",
        "general.base_model.0.repo_url": URL + "meta-llama/Llama-3.2-3B",
    }  # fmt: skip
    assert "meta-llama/Llama-3.2-3B" not in specs(hermes)


def test_ollamas_own_models_by_the_usual_name() -> None:
    llama = {"general.basename": "Llama-3.2", "general.size_label": "3B", "general.finetune": "Instruct"}
    assert specs(llama) == ["meta-llama/Llama-3.2-3B-Instruct"]
    assert specs({"general.basename": "unknown", "general.size_label": "3B"}) == []
    assert specs({}) == []
    real = {  # the head of SmolLM2-135M-Instruct as it is in the wild
        "general.name": "Smollm2 135M 8k Lc100K Mix1 Ep2", "general.organization": "HuggingFaceTB",
        "general.finetune": "8k-lc100k-mix1-ep2", "general.basename": "smollm2", "general.size_label": "135M",
    }  # fmt: skip
    assert specs(real) == ["HuggingFaceTB/smollm2-135M"]
    chats = {**real, "tokenizer.chat_template": "{% for message in messages %}"}
    (found,) = propose("ollama", "smol", None, chats)
    assert found.spec == "HuggingFaceTB/SmolLM2-135M-Instruct" and not found.is_local, "as its publisher writes it"
    assert found.reason.startswith("a guess") and "8k-lc100k-mix1-ep2" in found.reason
    assert specs({**chats, "general.size_label": ""}) == specs({**chats, "general.basename": "x"})[1:] == []


def test_the_default_model_is_here_under_its_hub_name(bare: Path) -> None:
    folder(bare / "cache" / "rlproxy" / "models" / "SmolLM2-135M-Instruct", num_hidden_layers=30)
    about = {"general.basename": "smollm2", "general.size_label": "135M", "tokenizer.chat_template": "x"}
    about |= {"general.finetune": "8k-lc100k-mix1-ep2"}
    about |= {"general.architecture": "llama", "llama.block_count": 30}
    (found,) = propose("ollama", "smol", None, about)
    assert found.spec == "HuggingFaceTB/SmolLM2-135M-Instruct" and found.is_local
    assert specs({**about, "llama.block_count": 12}) == []


def test_what_the_server_itself_loaded(bare: Path) -> None:
    here = folder(bare / "weights", model_type="llama")
    assert specs({}, kind="vllm", root=str(here)) == [str(here)]
    assert specs({}, kind="vllm", root="Qwen/Qwen3-0.6B") == ["Qwen/Qwen3-0.6B"]
    assert specs({}, kind="vllm", root="/in/a/container") == []
    assert specs({}, model="mlx-community/Qwen3-8B-4bit", kind="mlx") == ["mlx-community/Qwen3-8B-4bit"]


def test_what_is_on_this_machine_under_that_name(bare: Path) -> None:
    mine = folder(bare / "cache" / "rlproxy" / "models" / "SmolLM2-135M-Instruct", num_hidden_layers=30)
    about = {"general.name": "SmolLM2 135M Instruct", "general.architecture": "llama", "llama.block_count": 30}
    (found,) = propose("ollama", "x", None, about)
    assert found.spec == str(mine) and found.is_local
    assert specs({**about, "llama.block_count": 12}) == [], "the same name and another size is another model"
    for name in (
        "smollm2-135m-instruct-q4_1",
        "/models/SmolLM2-135M-Instruct.F32.gguf",
        "SmolLM2-135M-Instruct.Q4_K_M",
    ):
        assert specs({}, model=name, kind="llamacpp") == [str(mine)], name


def test_the_comparison_with_a_config(bare: Path) -> None:
    here = folder(bare / "w", text_config={"hidden_size": 896, "num_hidden_layers": 24})
    about = {"general.architecture": "qwen2", "qwen2.embedding_length": 896, "qwen2.block_count": 24}
    assert differs(str(here), about) is None and differs("not/here", about) is None and differs(str(here), {}) is None
    assert differs(str(here), {**about, "qwen2.embedding_length": 3584}) == (
        f"{here} has 896 hidden states, the served model 3584"
    )
    (here / "config.json").write_text("{")
    assert differs(str(here), about) is None


def test_without_the_train_extra_the_hubs_cache_is_no_place_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(spec: str) -> None:
        raise ImportError("huggingface_hub")

    monkeypatch.setattr(weights_search.launch, "local", missing)
    assert specs({}, kind="vllm", root="Qwen/Qwen3-0.6B") == ["Qwen/Qwen3-0.6B"]


@pytest.mark.parametrize(
    ("about", "gb"),
    [
        ({"general.parameter_count": 3_000_000_000}, 6.0),
        ({"details": {"parameter_size": "3.2B"}}, 6.4),
        ({"general.size_label": "135M"}, 0.27),
        ({"general.size_label": "8x7B"}, None),
        ({}, None),
    ],
)
def test_how_much_there_is_to_download(about: dict[str, Any], gb: float | None) -> None:
    assert download_gb(about) == (gb if gb is None else pytest.approx(gb))
