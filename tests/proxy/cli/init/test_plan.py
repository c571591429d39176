"""What init writes: the settings' text, the backup, and nothing where it cannot be right."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.settings import load
from proxy.cli.init.environment import gpus
from proxy.cli.init.plan import NotWritable, make, settings_text, write
from proxy.cli.init.questions import Choices
from scripts.models import tiny

CHOICES = Choices("ollama", "http://127.0.0.1:11434", "llama3.2:3b", None, "", (), "balanced", False)


def test_a_new_file(tmp_path: Path) -> None:
    plan = make(tmp_path / "home", CHOICES)
    assert not (tmp_path / "home").exists(), "a plan writes nothing"
    write(plan)
    file = tmp_path / "home" / "rlproxy.toml"
    settings = load({"home": tmp_path / "home"}, environ={}).settings
    assert settings.backend.kind == "ollama" and settings.backend.model == "llama3.2:3b" and plan.backup is None
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    assert "\n\n[backend]\n" in file.read_text() and "weights" not in file.read_text()


def test_an_old_file_keeps_what_is_not_ours(tmp_path: Path) -> None:
    old = '# mine\n[server]\nport = 9000  # why\n\n[train]\nweights = "old/one"\nstart_at = 8\n'
    (tmp_path / "rlproxy.toml").write_text(old)
    plan = make(tmp_path, replace(CHOICES, preset="careful"))
    write(plan)
    text = (tmp_path / "rlproxy.toml").read_text()
    assert "# mine\n[server]\nport = 9000  # why\n" in text and "start_at = 8" in text and "old/one" not in text
    assert plan.backup is not None and plan.backup.file.read_text() == old
    assert make(tmp_path, replace(CHOICES, preset="careful")).changes == []


def test_what_no_longer_fits_is_taken_out_and_shown(tmp_path: Path) -> None:
    old = '[backend]\nkind = "llamacpp"\ncommand = "llama-server -m old.gguf"  # mine\nconnect_timeout_s = 9.0\n'
    (tmp_path / "rlproxy.toml").write_text(old)
    plan = make(tmp_path, replace(CHOICES, stale=("backend.command", "backend.presets")))
    assert '-command = "llama-server -m old.gguf"' in plan.file.diff()
    assert plan.settings.backend.command == "" and plan.settings.backend.connect_timeout_s == 9


def test_keys_of_before_and_of_now_are_known_to_be_hidden(tmp_path: Path) -> None:
    old = '[server]\nadmin_key = "mine"\n\n[backend]\nkind = "openai"\nurl = "http://127.0.0.1:9"\napi_key = "sk-old"\n'
    old += '\n[models.coder]\nurl = "http://127.0.0.1:9"\napi_key = "sk-coder"\n'
    (tmp_path / "rlproxy.toml").write_text(old)
    plan = make(tmp_path, replace(CHOICES, stale=("backend.api_key",)))
    assert plan.settings.backend.api_key is None and '-api_key = "sk-old"' in plan.file.diff()
    assert plan.keys == ["sk-coder", "sk-old", "mine"]
    assert make(tmp_path / "empty", CHOICES).keys == []


def test_what_no_longer_fits_and_the_environment_sets_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLPROXY_BACKEND__REPLICAS", '["http://10.0.0.2:8000"]')
    (note,) = make(tmp_path, replace(CHOICES, stale=("backend.replicas",))).notes
    assert note.startswith("backend.replicas is set by env") and note.endswith("unset it.")


def test_before_a_cloud_connecting_leaves_the_agents_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aider.conf.yml").write_text("openai-api-key: sk-mine\n")
    cloud = replace(CHOICES, kind="openai", url="https://cloud.example", agents=("aider",))
    plan = make(tmp_path / "home", cloud)
    write(plan)
    assert "openai-api-key: sk-mine\n" in (tmp_path / ".aider.conf.yml").read_text()
    assert (
        "RLPROXY_BACKEND__API_KEY" in plan.notes[0] and make(tmp_path / "home", replace(cloud, agents=())).notes == []
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[server", "not TOML"),
        ('backend = "x"\n', "no table"),
        ("[server]\nprot = 1\n", "did you mean"),
        ("\xff", "UTF-8|utf-8"),
    ],
)
def test_a_file_that_cannot_be_right_is_left_alone(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "rlproxy.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(NotWritable, match=said) as error:
        make(tmp_path, CHOICES)
    assert str(file) in str(error.value) and file.read_bytes() == text.encode("latin-1")


def test_a_disk_that_takes_nothing_is_said(tmp_path: Path) -> None:
    plan = make(tmp_path / "file" / "home", CHOICES)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritable, match="nothing was written"):
        write(plan)


@hypothesis.settings(max_examples=30)  # tomlkit takes its time
@given(url=st.text(max_size=40), model=st.text(max_size=40), weights=st.text(max_size=40))
def test_any_text_is_written_as_it_is(url: str, model: str, weights: str) -> None:
    choices = replace(CHOICES, url=url, model=model, weights=weights)
    found = tomllib.loads(settings_text("", choices))
    assert found["backend"].get("url", "") == url and found["backend"].get("model", "") == model
    assert found.get("train", {}).get("weights", "") == weights
    again = settings_text(settings_text("", choices), choices)
    assert again == settings_text("", choices)


def test_what_nvidia_smi_prints() -> None:
    assert gpus("NVIDIA H200, 143771\nNVIDIA H200, 143771\n") == ("NVIDIA H200 × 2", "cuda", pytest.approx(140.4, 0.01))
    assert gpus("") == (None, "cpu", None)
    with pytest.raises(ValueError, match="could not convert"):
        gpus("No devices were found")


def test_what_the_model_can_learn_there_is_said_before_anything_is_rated(tmp_path: Path) -> None:
    unknown = str(tiny.make_unknown(tmp_path / "unknown"))
    (note,) = make(tmp_path / "home", replace(CHOICES, weights=unknown)).notes
    assert "nothing can train" in note and "is a mamba" in note
    narrow = str(tiny.make("deepseek_v3", tmp_path / "deepseek"))
    layers, size = make(tmp_path / "home", replace(CHOICES, weights=narrow, release="0.33.2")).notes
    assert layers.startswith("What trains: deepseek_v3: o_proj; without") and "q_a_proj" in layers
    assert size.startswith("A run takes about") and "a version is a" in size
    for release, whole in (("0.33.2", False), ("0.34.1", True)):
        note, _ = make(tmp_path / "home", replace(CHOICES, kind="ollama", weights=narrow, release=release)).notes
        assert ("q_a_proj" in note.partition("; without")[0]) is whole
    assert make(tmp_path / "home", replace(CHOICES, weights="somebody/not-here")).notes == []
