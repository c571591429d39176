"""Each kind of model server has one row, one module, and a place in what people are told."""

from importlib import import_module
from typing import get_args

import pytest

from config.backend_kinds import BACKENDS, GGUF, LEARNING, BackendKind, listed, usual_url
from config.sections import BackendSection


def test_every_kind_that_settings_take_has_a_row_and_nothing_else_has() -> None:
    assert set(get_args(BackendKind)) == set(BACKENDS)
    assert get_args(BackendSection.model_fields["kind"].annotation) == get_args(BackendKind)


@pytest.mark.parametrize("kind", BACKENDS)
def test_every_kind_has_a_module_that_makes_it(kind: str) -> None:
    assert callable(import_module(f"proxy.backends.{kind}").make)


def test_what_is_told_of_kinds() -> None:
    assert listed() == "builtin, vllm, sglang, llamacpp, ollama, lmstudio or mlx" == listed(LEARNING)
    assert listed(["vllm"]) == "vllm"
    assert GGUF == ("llamacpp", "ollama", "lmstudio")
    assert usual_url("ollama") == "http://127.0.0.1:11434" and usual_url("vllm") == ""
