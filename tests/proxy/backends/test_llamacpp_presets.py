"""The router's preset file: our sections come and go, and nobody else's line changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.backends.llamacpp_presets import PresetError, lora_of, rewrite, with_version, without_section

TEXT = """; mine
[*]
ctx-size = 4096

[small]
model = /m/small.gguf
; a remark
load-on-startup = true
n-gpu-layers = 99

[other]
model = /m/other.gguf
"""


def test_a_version_is_the_model_with_a_lora(tmp_path):
    changed = with_version(TEXT, "small", "small@v1", tmp_path / "v1.gguf")
    assert changed.startswith(TEXT)
    ours = changed[len(TEXT) :].splitlines()
    assert ours[1] == "[small@v1]" and ours[2].startswith(";")
    assert ours[3:] == ["model = /m/small.gguf", "; a remark", "n-gpu-layers = 99", f"lora = {tmp_path}/v1.gguf"]


def test_a_version_written_twice_is_there_once(tmp_path):
    once = with_version(TEXT, "small", "small@v1", tmp_path / "v1.gguf")
    assert with_version(once, "small", "small@v1", tmp_path / "v1.gguf") == once


def test_the_lora_of_a_section_is_read(tmp_path):
    text = with_version(TEXT, "small", "small@v1", tmp_path / "v1.gguf")
    assert lora_of(text, "small@v1") == str(tmp_path / "v1.gguf")
    assert lora_of(text, "small") is None and lora_of(text, "small@v2") is None


@given(st.permutations(["small@v1", "small@v2", "other@v3", "small@v11"]))
def test_what_was_put_in_comes_out_in_any_order(names):
    text = TEXT
    for name in sorted(names):
        text = with_version(text, name.partition("@")[0], name, "/out/x.gguf")
    for name in names:
        text = without_section(text, name)
    assert text == TEXT


def test_a_section_of_somebody_else_stays():
    theirs = TEXT + "\n[small@v1]\nmodel = /m/mine.gguf\n"
    assert without_section(theirs, "small@v1") == theirs


@pytest.mark.parametrize(("text", "says"), [("[x]\nmodel = y\n", r"no section \[small\]"), ("", r"no section"),
                                            ("[small]\nmodel = y\nlora = z\n", "has a LoRA already")])  # fmt: skip
def test_what_cannot_be_is_said(text, says):
    with pytest.raises(PresetError, match=says):
        with_version(text, "small", "small@v1", "/out/x.gguf")


def test_the_file_is_replaced_whole(tmp_path):
    path = tmp_path / "presets.ini"
    path.write_text(TEXT)
    path.chmod(0o640)
    rewrite(path, with_version, "small", "small@v1", "/out/x.gguf")
    assert "[small@v1]" in path.read_text() and path.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["presets.ini"]
