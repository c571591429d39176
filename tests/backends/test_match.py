"""The real llama-server and weights on disk: what it tells, and how far quantised it may be: `make test-backends`."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from proxy.training.weights_compare import MAX_DISTANCE
from scripts.harness.in_process import Proxy
from scripts.harness.tiny_model import make_tiny_model
from tests.backends.test_llamacpp import plain, running, start

pytestmark = [pytest.mark.backends, pytest.mark.timeout(1200)]


def quantised(model: Path, out: Path, kind: gguf.GGMLQuantizationType) -> Path:
    """The model with its matrices rounded to `kind` and written in fp32 again: what such a file computes with. The
    prebuilt server runs quantised files only on Intel's newest processors."""
    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(out, reader.get_field("general.architecture").contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            below = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=below)
    for tensor in reader.tensors:
        data = np.array(tensor.data)
        if data.ndim == 2:
            data = gguf.dequantize(gguf.quantize(data, kind), kind).astype(np.float32)
        writer.add_tensor(tensor.name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


async def compared(proxy: Proxy) -> tuple[str, float | None, str]:
    """After one rating; the verdict's state, difference and sentence."""
    await proxy.say("Say hello.", max_tokens=8)
    assert (await proxy.rate(completion_id="last", rating="good"))[0] == 201
    async with asyncio.timeout(300):
        while (found := (await proxy.get("/rl/status"))["match"])["state"] == "unasked":
            await asyncio.sleep(0.2)
    return found["state"], found["apart"], found["line"]


async def test_it_is_the_same_model_quantised_or_not(tmp_path: Path, weights: Path, base_gguf: Path) -> None:
    q4 = quantised(base_gguf, tmp_path / "q4.gguf", gguf.GGMLQuantizationType.Q4_0)
    for name, file, bound in (("f32", base_gguf, 1e-3), ("q4_0", q4, MAX_DISTANCE)):
        async with running(tmp_path, *plain(file)) as port:
            proxy = start(tmp_path / f"home-{name}", weights, url=f"http://127.0.0.1:{port}")
            await proxy.start()
            try:
                state, apart, line = await compared(proxy)
                print(name, apart, line)
                assert state == "same" and apart is not None and apart < bound, line
                assert "architecture, vocabulary, chat template" in line
            finally:
                await proxy.stop()


async def test_another_model_is_not(tmp_path: Path, weights: Path, base_gguf: Path) -> None:
    """And another template is told of."""
    tiny = make_tiny_model(weights, tmp_path / "tiny")
    other = shutil.copytree(weights, tmp_path / "template", ignore=shutil.ignore_patterns("*.safetensors"))
    for file in weights.glob("*.safetensors"):
        (other / file.name).symlink_to(file)
    template = other / "chat_template.jinja"
    template.write_text(template.read_text().replace("named SmolLM", "named Sam"))
    async with running(tmp_path, *plain(base_gguf)) as port:
        for name, trained, expected, word in (
            ("tiny", tiny, "other", "hidden states"),
            ("template", other, "same", "another chat template than the weights"),
        ):
            proxy = start(tmp_path / f"home-{name}", trained, url=f"http://127.0.0.1:{port}")
            await proxy.start()
            try:
                state, _, line = await compared(proxy)
                print(name, line)
                found = (await proxy.get("/rl/status"))["match"]
                assert state == expected and word in (line if state == "other" else found["rendering"]["line"])
                assert found["stops"] == (state == "other")
            finally:
                await proxy.stop()
