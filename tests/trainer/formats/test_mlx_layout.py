"""mlx-lm's folder against the PEFT folder, tensor by tensor. Against mlx_lm.server itself: test_mlx (backends)."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.trainer.formats.test_gguf import PLAIN, make_adapter
from trainer.formats.manifest import AdapterError
from trainer.formats.mlx_layout import convert, main

LAYERS = {f"model.layers.{n}.{name}": shape for n in range(2) for name, shape in PLAIN.items()}


def read(folder):
    return load_file(folder / "adapters.safetensors"), json.loads((folder / "adapter_config.json").read_text())


def test_every_tensor_is_transposed(tmp_path):
    tensors = make_adapter(tmp_path / "peft", LAYERS)
    convert(tmp_path / "peft", tmp_path / "mlx")
    written, about = read(tmp_path / "mlx")
    assert len(written) == 2 * len(LAYERS)
    for module in LAYERS:
        for side in "AB":
            theirs = tensors[f"base_model.model.{module}.lora_{side}.weight"]
            assert np.array_equal(written[f"{module}.lora_{side.lower()}"], theirs.T)
    expected = {"rank": 4, "scale": 2.0, "dropout": 0.0, "keys": sorted(PLAIN)}
    assert about == {"fine_tune_type": "lora", "num_layers": -1, "lora_parameters": expected}


@pytest.mark.parametrize(
    ("more", "scales"),
    [
        ({"use_rslora": True}, {"q_proj": 4.0, "o_proj": 4.0}),
        ({"alpha_pattern": {"o_proj": 16}}, {"q_proj": 2.0, "o_proj": 4.0}),
    ],
)
def test_what_a_layer_adds_is_what_peft_adds(tmp_path, more, scales):
    """Scale times A times B, whatever of it is in the folder's one scale."""
    tensors = make_adapter(tmp_path / "peft", LAYERS, **more)
    convert(tmp_path / "peft", tmp_path / "mlx")
    written, about = read(tmp_path / "mlx")
    for name, scale in scales.items():
        module = f"model.layers.1.self_attn.{name}"
        a, b = (tensors[f"base_model.model.{module}.lora_{side}.weight"] for side in "AB")
        ours = about["lora_parameters"]["scale"] * written[f"{module}.lora_a"] @ written[f"{module}.lora_b"]
        assert np.allclose(ours, scale * (b @ a).T, rtol=1e-5)


def test_half_precision_becomes_single(tmp_path):
    make_adapter(tmp_path / "peft", LAYERS, cast=np.float16)
    convert(tmp_path / "peft", tmp_path / "mlx")
    assert {array.dtype for array in read(tmp_path / "mlx")[0].values()} == {np.dtype(np.float32)}


def test_what_mlx_would_not_wear_alike_is_refused(tmp_path):
    make_adapter(tmp_path / "ranks", LAYERS, ranks={"o_proj": 2}, rank_pattern={"o_proj": 2})
    with pytest.raises(AdapterError, match="has rank 2 and another layer 4"):
        convert(tmp_path / "ranks", tmp_path / "mlx")
    make_adapter(tmp_path / "head", {"vision.layers_up": (8, 8)})
    with pytest.raises(AdapterError, match="is in none of the model's layers"):
        convert(tmp_path / "head", tmp_path / "mlx")
    make_adapter(tmp_path / "dora", LAYERS, use_dora=True)
    with pytest.raises(AdapterError, match="sets use_dora"):
        convert(tmp_path / "dora", tmp_path / "mlx")
    assert not (tmp_path / "mlx").exists()


def test_a_folder_that_is_there_stays_as_it_is(tmp_path):
    """A server may be reading it, and does not read it again."""
    make_adapter(tmp_path / "peft", LAYERS)
    convert(tmp_path / "peft", tmp_path / "mlx")
    before = (tmp_path / "mlx" / "adapters.safetensors").stat()
    convert(tmp_path / "peft", tmp_path / "mlx")
    assert (tmp_path / "mlx" / "adapters.safetensors").stat() == before


def test_as_a_program(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["mlx_layout", str(tmp_path / "nothing"), str(tmp_path / "mlx")])
    assert main() == 1 and "is missing" in capsys.readouterr().err
    make_adapter(tmp_path / "peft", LAYERS)
    monkeypatch.setattr("sys.argv", ["mlx_layout", str(tmp_path / "peft"), str(tmp_path / "mlx")])
    assert main() == 0 and (tmp_path / "mlx" / "adapters.safetensors").exists()
