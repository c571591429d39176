"""The head of a GGUF file: what the real package wrote is read, and no file of any bytes does harm."""

from __future__ import annotations

import contextlib
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.backends.gguf_head import NoGguf, read_head
from tests.proxy.cli.init.gguf_files import write_head

VALUES = st.dictionaries(
    st.text(max_size=20), st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=30),
    st.floats(allow_nan=False), st.lists(st.text(max_size=9), max_size=5)), max_size=8,
)  # fmt: skip


def test_what_the_real_package_writes(tmp_path: Path) -> None:
    file = tmp_path / "real.gguf"
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_name("Llama 3.2 3B Instruct")
    writer.add_embedding_length(3072)
    writer.add_token_list(["a", "b", "c"])
    writer.add_token_scores([0.0, 1.0, 2.0])
    writer.add_base_model_count(1)
    writer.add_base_model_repo_url(0, "https://hub.example/meta-llama/Llama-3.2-3B")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    head = read_head(file)
    assert head["general.architecture"] == "llama" and head["general.name"] == "Llama 3.2 3B Instruct"
    assert head["llama.embedding_length"] == 3072 and head["tokenizer.ggml.tokens"] == {"length": 3}
    assert head["general.base_model.0.repo_url"].endswith("/meta-llama/Llama-3.2-3B")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=VALUES, version=st.sampled_from([2, 3]))
def test_what_was_written_is_read(tmp_path: Path, values: dict[str, object], version: int) -> None:
    file = tmp_path / "head.gguf"
    write_head(file, values, version)
    assert read_head(file) == {k: {"length": len(v)} if isinstance(v, list) else v for k, v in values.items()}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=80), values=VALUES, cut=st.integers(0, 200))
def test_no_file_does_harm(tmp_path: Path, raw: bytes, values: dict[str, object], cut: int) -> None:
    file = tmp_path / "any.gguf"
    write_head(file, values)
    whole = file.read_bytes()
    for content in (raw, b"GGUF\3\0\0\0" + raw, whole[:cut], whole[: cut // 2] + raw):
        file.write_bytes(content)
        with contextlib.suppress(NoGguf):
            assert isinstance(read_head(file), dict)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NoGguf, match="No such file"):
        read_head(tmp_path / "nowhere.gguf")
