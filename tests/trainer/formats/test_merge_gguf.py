"""The fused GGUF file against its base and the adapter, tensor by tensor; against llama-server: backends/test_fuse."""

import json
import shutil

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from tests.trainer.formats.test_gguf import (
    DEEP,
    FUSED,
    GROUPS,
    HEADS,
    HIDDEN,
    NAMES,
    PLAIN,
    make_adapter,
    make_gemma_with_pictures,
    trained_adapter,
    undone,
)
from trainer.formats import merge_gguf as fusing
from trainer.formats.manifest import AdapterError
from trainer.formats.merge_gguf import fuse, surviving_share

KINDS = ("llama", "granite", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "exaone4")
SHAPES = (PLAIN, FUSED)


def layers_of(kind):
    prefix = "model.language_model." if kind == "gemma3" else "model."
    each = {name: tuple(64 if size == 48 else size for size in shape) for name, shape in SHAPES[kind == "phi3"].items()}
    return {f"{prefix}layers.{n}.{layer}": shape for n in range(DEEP) for layer, shape in each.items()}


def name_of(module):
    n, _, layer = module.partition("layers.")[2].partition(".")
    return f"blk.{n}.{NAMES[layer]}.weight"


def make_base(path, kind, type=Type.F32, odd=None):
    """A model as llama.cpp has it: the tensors that a LoRA may be on in `type`, and some others."""
    numbers = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, kind)
    writer.add_type("model")
    writer.add_block_count(DEEP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_string("tokenizer.chat_template", "{{ messages }} äöü")
    writer.add_token_list(["a", "b", "c€"])
    writer.add_custom_alignment(64)
    for key, value in (odd or {}).items():
        writer.add_uint16(key, value) if isinstance(value, int) else writer.add_string(key, value)
    writer.add_tensor("token_embd.weight", numbers.normal(size=(7, HIDDEN)).astype(np.float32))
    for module, shape in layers_of(kind).items():
        array = numbers.normal(size=shape).astype(np.float32)
        writer.add_tensor(name_of(module), gguf.quantize(array, type), raw_dtype=type)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read(path):
    reader = gguf.GGUFReader(path)
    return reader, {one.name: one for one in reader.tensors}


def values(one):
    return gguf.dequantize(one.data, one.tensor_type).astype(np.float32)


def scaled(folder, factor):
    path = folder / "adapter_model.safetensors"
    save_file({k: v * (factor if "lora_B" in k else 1) for k, v in load_file(path).items()}, path)


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_is_the_bases_and_the_adapters(tmp_path, kind):
    base = make_base(tmp_path / "base.gguf", kind)
    given = make_adapter(tmp_path / "adapter", layers_of(kind), use_rslora=True)
    lines = []
    found = fuse(tmp_path / "adapter", base, tmp_path / "out" / "v1.gguf", lines.append)
    assert (
        found.changed_tensors == len(layers_of(kind)) and not found.retyped and found.bytes_before == found.bytes_after
    )
    old, new = read(base)[1], read(tmp_path / "out" / "v1.gguf")[1]
    for module in layers_of(kind):
        a, b = (given[f"base_model.model.{module}.lora_{side}.weight"] for side in "AB")
        changed = values(new[name_of(module)]) - values(old[name_of(module)])
        if kind in ("llama", "granite") and module.endswith(("q_proj", "k_proj")):
            changed = undone(changed, HEADS if module.endswith("q_proj") else GROUPS)
        np.testing.assert_allclose(changed, 8 / 4**0.5 * b @ a, atol=1e-5)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["v1.gguf"]
    assert lines[-1].startswith(f"{found.changed_tensors} of {found.changed_tensors} tensors")


def test_a_model_that_also_sees_is_fused_with_what_was_trained_on_it(tmp_path):
    base = make_base(tmp_path / "base.gguf", "gemma3")
    given = trained_adapter(make_gemma_with_pictures(tmp_path / "model"), tmp_path / "adapter")
    assert fuse(tmp_path / "adapter", base, tmp_path / "v1.gguf").changed_tensors == len(layers_of("gemma3"))
    old, new = read(base)[1], read(tmp_path / "v1.gguf")[1]
    for module in layers_of("gemma3"):
        a, b = (given[f"base_model.model.{module}.lora_{side}.weight"] for side in "AB")
        changed = values(new[name_of(module)]) - values(old[name_of(module)])
        np.testing.assert_allclose(changed, 8 / 4 * b @ a, atol=1e-4)


def test_the_text_part_of_an_idefics3_is_a_llama(tmp_path):
    """SmolVLM's modules begin with `model.text_model.`; its GGUF says nothing of that."""
    base = make_base(tmp_path / "base.gguf", "llama")
    seeing = {name.replace("model.", "model.text_model.", 1): shape for name, shape in layers_of("llama").items()}
    given = make_adapter(tmp_path / "adapter", seeing)
    assert fuse(tmp_path / "adapter", base, tmp_path / "v1.gguf").changed_tensors == len(seeing)
    plain = {key.replace("model.text_model.", "model.", 1): tensor for key, tensor in given.items()}
    make_adapter(tmp_path / "plain", layers_of("llama"))
    save_file(plain, tmp_path / "plain" / "adapter_model.safetensors")
    fuse(tmp_path / "plain", base, tmp_path / "v2.gguf")
    assert (tmp_path / "v1.gguf").read_bytes() == (tmp_path / "v2.gguf").read_bytes()


@pytest.mark.parametrize("type", [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_1])
def test_what_the_adapter_does_not_touch_is_byte_for_byte_the_bases(tmp_path, type):
    base = make_base(tmp_path / "base.gguf", "qwen2", type)
    touched = {m: s for m, s in layers_of("qwen2").items() if m.endswith("q_proj")}
    make_adapter(tmp_path / "adapter", touched)
    fuse(tmp_path / "adapter", base, tmp_path / "v1.gguf")
    (reader, old), (fused, new) = read(base), read(tmp_path / "v1.gguf")
    end = old["token_embd.weight"].field.offset
    assert reader.data[:end].tobytes() == fused.data[:end].tobytes()  # all metadata
    assert list(old) == list(new) and fused.alignment == 64
    for name, tensor in new.items():
        assert tensor.data_offset % 64 == 0 and list(tensor.shape) == list(old[name].shape)
        if "attn_q" not in name:
            assert tensor.tensor_type == old[name].tensor_type and tensor.data.tobytes() == old[name].data.tobytes()


@pytest.mark.parametrize(
    ("type", "size", "stored"),
    [
        (Type.Q4_1, 0.01, Type.Q8_0),  # more than what a run learns: at random in 4 bits it would be too much noise
        (Type.Q5_0, 0.01, Type.Q8_0),
        (Type.Q8_0, 0.02, Type.Q8_0),
        (Type.F16, 0.002, Type.F16),
        (Type.F16, 0.0000001, Type.F32),
        (Type.F32, 0.002, Type.F32),
    ],
)
def test_a_tensor_is_stored_so_that_the_change_survives(tmp_path, type, size, stored):
    base = make_base(tmp_path / "base.gguf", "llama", type)
    make_adapter(tmp_path / "adapter", layers_of("llama"))
    scaled(tmp_path / "adapter", size)
    found = fuse(tmp_path / "adapter", base, tmp_path / "v1.gguf")
    old, new = read(base)[1], read(tmp_path / "v1.gguf")[1]
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    for module in layers_of("llama"):
        name = name_of(module)
        assert new[name].tensor_type == stored, name
        a, b = (tensors[f"base_model.model.{module}.lora_{side}.weight"] for side in "AB")
        wanted = 2 * b @ a
        changed = values(new[name]) - values(old[name])
        if module.endswith(("q_proj", "k_proj")):
            changed = undone(changed, HEADS if module.endswith("q_proj") else GROUPS)
        assert (changed * wanted).sum() / (wanted**2).sum() == pytest.approx(1, abs=0.11)
    assert bool(found.retyped) == (type != stored) and (found.bytes_after > found.bytes_before) == (type != stored)
    if found.retyped:
        assert found.retyped == {f"{type.name} to {stored.name}": found.changed_tensors} and stored.name in str(found)


@pytest.mark.parametrize(
    ("type", "size"), [(Type.Q4_0, 0.0005), (Type.Q4_1, 0.0005), (Type.Q5_1, 0.0003), (Type.Q8_0, 0.0002)]
)
def test_what_a_run_learns_stays_in_a_file_no_larger_than_the_base(tmp_path, type, size):
    """A hundredth of a step of the grid: to the nearest point nothing of it would be left."""
    base = make_base(tmp_path / "base.gguf", "llama", type)
    make_adapter(tmp_path / "adapter", layers_of("llama"))
    scaled(tmp_path / "adapter", size)
    summary = fuse(tmp_path / "adapter", base, tmp_path / "v1.gguf")
    assert summary.retyped == {} and summary.bytes_after == summary.bytes_before == base.stat().st_size
    old, new = read(base)[1], read(tmp_path / "v1.gguf")[1]
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    kept = energy = 0.0
    for module in layers_of("llama"):
        a, b = (tensors[f"base_model.model.{module}.lora_{side}.weight"] for side in "AB")
        changed = values(new[name_of(module)]) - values(old[name_of(module)])
        if module.endswith(("q_proj", "k_proj")):
            changed = undone(changed, HEADS if module.endswith("q_proj") else GROUPS)
        kept, energy = kept + (changed * (2 * b @ a)).sum(), energy + ((2 * b @ a) ** 2).sum()
    assert kept / energy == pytest.approx(1, abs=0.3)  # chance, in tensors of a thousand weights
    fuse(tmp_path / "adapter", base, tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "v1.gguf").read_bytes(), "the same file each time"


def test_a_bf16_model_stays_as_large(tmp_path):
    base = make_base(tmp_path / "base.gguf", "llama", Type.BF16)
    make_adapter(tmp_path / "adapter", layers_of("llama"))
    scaled(tmp_path / "adapter", 0.0005)
    summary = fuse(tmp_path / "adapter", base, tmp_path / "v1.gguf")
    assert summary.retyped == {"BF16 to F16": 14} and summary.bytes_after == summary.bytes_before


def test_a_type_that_can_only_be_read_gives_way(tmp_path, monkeypatch):
    """IQ types, of which nobody here knows the grid: Q8_0 plays one of them."""
    monkeypatch.setattr(fusing, "WRITABLE", (Type.F32, Type.F16))
    monkeypatch.setattr("trainer.formats.grid.HIGHEST", {})
    base = make_base(tmp_path / "base.gguf", "qwen3", Type.Q8_0)
    make_adapter(tmp_path / "adapter", layers_of("qwen3"))
    assert fuse(tmp_path / "adapter", base, tmp_path / "v1.gguf").retyped == {"Q8_0 to F16": 14}


def test_a_real_k_quant_is_read(tmp_path):
    """256 weights a block, of random bits but for the scales: a Q4_K and a Q6_K as llama.cpp stores them."""
    numbers = np.random.default_rng(3)
    writer = gguf.GGUFWriter(tmp_path / "base.gguf", "qwen2")
    writer.add_block_count(1)
    writer.add_head_count(4)
    for name, type, at in (("ffn_up", Type.Q4_K, [0, 2]), ("ffn_gate", Type.Q6_K, [208])):
        blocks = numbers.integers(0, 256, (64, gguf.GGML_QUANT_SIZES[type][1]), np.uint8)
        for start in at:
            blocks[:, start : start + 2] = np.full((64, 1), 0.01, np.float16).view(np.uint8)
        writer.add_tensor(f"blk.0.{name}.weight", blocks, raw_dtype=type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    make_adapter(tmp_path / "adapter", {f"model.layers.0.mlp.{m}_proj": (64, 256) for m in ("up", "gate")})
    found = fuse(tmp_path / "adapter", tmp_path / "base.gguf", tmp_path / "v1.gguf")
    assert found.retyped == {"Q4_K to Q8_0": 1, "Q6_K to Q8_0": 1}
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    old, new = read(tmp_path / "base.gguf")[1], read(tmp_path / "v1.gguf")[1]
    for module, name in (("up", "ffn_up"), ("gate", "ffn_gate")):
        prefix = f"base_model.model.model.layers.0.mlp.{module}_proj"
        wanted = values(old[f"blk.0.{name}.weight"]) + 2 * (
            tensors[f"{prefix}.lora_B.weight"] @ tensors[f"{prefix}.lora_A.weight"]
        )
        step = np.abs(wanted).reshape(64, -1, 32).max(-1, keepdims=True) / 127
        off = np.abs(values(new[f"blk.0.{name}.weight"]) - wanted).reshape(64, -1, 32)
        assert (off <= 0.6 * step).all()  # the scale itself has 16 bits


@given(st.sampled_from([Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0]), st.integers(0, 2**31))
def test_what_a_lora_changes_is_lost_where_the_weights_lie_on_a_grid(type, seed):
    """Why types are tried: a change far below half a step leaves a quantised tensor as it was."""
    numbers = np.random.default_rng(seed)
    weights = gguf.dequantize(gguf.quantize(numbers.normal(size=(32, 64)).astype(np.float32), type), type)
    delta = (numbers.normal(size=(32, 2)) @ numbers.normal(size=(2, 64)) * 1e-4).astype(np.float32)
    assert abs(surviving_share(weights, delta, type)) < 0.5
    assert surviving_share(weights, delta, Type.F32) == pytest.approx(1, abs=1e-2)
    assert surviving_share(weights, np.zeros_like(delta), type) == 1


@pytest.mark.parametrize(
    ("odd", "says"),
    [({"split.count": 2}, "one of 2 parts"), ({"general.type": "adapter"}, "of type adapter, not a model")],
)
def test_a_file_that_is_no_whole_model_is_refused(tmp_path, odd, says):
    if "general.type" in odd:
        writer = gguf.GGUFWriter(tmp_path / "base.gguf", "llama")
        writer.add_type("adapter")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    else:
        make_base(tmp_path / "base.gguf", "llama", odd=odd)
    make_adapter(tmp_path / "adapter", layers_of("llama"))
    with pytest.raises(AdapterError, match=says):
        fuse(tmp_path / "adapter", tmp_path / "base.gguf", tmp_path / "v1.gguf")


def test_a_base_that_is_not_there_or_broken_or_of_another_kind_is_named(tmp_path):
    make_adapter(tmp_path / "adapter", layers_of("llama"))
    out = tmp_path / "v1.gguf"
    with pytest.raises(AdapterError, match="is not there"):
        fuse(tmp_path / "adapter", tmp_path / "none.gguf", out)
    base = make_base(tmp_path / "base.gguf", "llama")
    for size in (3, 100, 700, base.stat().st_size - 200):
        (tmp_path / "cut.gguf").write_bytes(base.read_bytes()[:size])
        with pytest.raises(AdapterError, match="not a whole GGUF file"):
            fuse(tmp_path / "adapter", tmp_path / "cut.gguf", out)
    writer = gguf.GGUFWriter(tmp_path / "mamba.gguf", "mamba")
    writer.add_tensor("x", np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(AdapterError, match="is a mamba"):
        fuse(tmp_path / "adapter", tmp_path / "mamba.gguf", out)
    assert not out.exists()


def test_an_adapter_of_another_model_is_refused(tmp_path):
    base = make_base(tmp_path / "base.gguf", "llama")
    larger = {module: (2 * outs, ins) for module, (outs, ins) in layers_of("llama").items()}
    make_adapter(tmp_path / "adapter", larger)
    with pytest.raises(AdapterError):
        fuse(tmp_path / "adapter", base, tmp_path / "v1.gguf")
    shutil.rmtree(tmp_path / "adapter")
    make_adapter(tmp_path / "adapter", {"model.layers.9.self_attn.q_proj": (32, 32)})
    with pytest.raises(AdapterError, match="another model"):
        fuse(tmp_path / "adapter", base, tmp_path / "v1.gguf")


def test_a_disk_without_room_is_said_before_anything_is_written(tmp_path, monkeypatch):
    base = make_base(tmp_path / "base.gguf", "llama")
    make_adapter(tmp_path / "adapter", layers_of("llama"))
    monkeypatch.setattr(fusing, "SPARE", 2**60)
    with pytest.raises(AdapterError, match="GB are free"):
        fuse(tmp_path / "adapter", base, tmp_path / "v1.gguf")
    assert not list(tmp_path.glob("*v1*")) and not list(tmp_path.glob(".*"))


def test_a_disk_that_fills_up_on_the_way_leaves_nothing(tmp_path):
    """The kernel's own full disk: a write that fails in the middle."""
    import resource
    import signal

    base = make_base(tmp_path / "base.gguf", "llama")
    make_adapter(tmp_path / "adapter", layers_of("llama"))
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, old[1]))
    try:
        with pytest.raises(AdapterError, match="could not be written"):
            fuse(tmp_path / "adapter", base, tmp_path / "v1.gguf")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list(tmp_path.glob("*v1*")) and not list(tmp_path.glob(".*"))


def test_as_a_command(tmp_path, monkeypatch, capsys):
    base = make_base(tmp_path / "base.gguf", "llama", Type.Q4_0)
    make_adapter(tmp_path / "adapter", layers_of("llama"))
    scaled(tmp_path / "adapter", 0.01)
    monkeypatch.setattr("sys.argv", ["fuse", *map(str, (tmp_path / "adapter", base, tmp_path / "v1.gguf"))])
    assert fusing.main() == 0
    assert "14 from Q4_0 to Q8_0" in capsys.readouterr().out.splitlines()[-1]
    config = tmp_path / "adapter" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"use_dora": True}))
    assert fusing.main() == 1 and "use_dora" in capsys.readouterr().err
