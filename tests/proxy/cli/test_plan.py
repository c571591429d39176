"""`rlproxy plan`: its words, its JSON, and each wrong use in one sentence."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from config.settings import load
from proxy.cli import plan
from proxy.cli.app import app
from proxy.cli.doctor import machine_checks
from proxy.cli.doctor.facts import gather
from proxy.cli.init import plan as init_plan
from scripts.models import published
from scripts.models import tiny as kinds
from tests.harness import tiny


def run(home: Path, *arguments: str) -> tuple[int, str]:
    clean: dict[str, str | None] = {name: None for name in os.environ if name.startswith("RLPROXY_")}
    env = {**clean, "RLPROXY_HOME": str(home), "COLUMNS": "200"}
    result = CliRunner().invoke(app, ["plan", *arguments], env=env, prog_name="rlproxy")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_a_plan_in_words(tmp_path: Path) -> None:
    file = published.write("8B", tmp_path)
    code, text = run(tmp_path, str(file), "--server", "vllm", "--gpu-gb", "24", "--ram-gb", "64")
    assert code == 0
    assert "qwen3, dense, 8.19 B parameters" in text and "at rank 16: 43.6 M numbers" in text
    assert "24.0 GB on the GPU, 64.0 GB of memory" in text
    assert "A run fits while the server rests" in text and "Set train.share_gpu = true." in text
    assert "None of this was measured on a GPU." in text
    assert "Ollama, LM Studio" in text and "a whole GGUF model" in text


def test_each_verdict_names_the_settings_that_exist(tmp_path: Path) -> None:
    names = {row.key for row in load({"home": tmp_path}, environ={}).describe()}
    for name in published.CONFIGS:
        for gb in (16, 24, 80):
            file = published.write(name, tmp_path)
            code, text = run(tmp_path, str(file), "--server", "ollama", "--gpu-gb", str(gb), "--ram-gb", "64", "--json")
            assert code == 0
            for way in json.loads(text)["ways"]:
                assert way["settings"].keys() <= names


def test_a_plan_for_programs(tmp_path: Path) -> None:
    folder = tiny.make_model(tmp_path / "model")
    code, text = run(tmp_path, str(folder), "--json", "--ratings", "12", "--tokens", "80", "--gpu-gb", "0")
    answer = json.loads(text)
    assert code == 0 and answer["hardware"]["gpu"] is None
    assert answer["workload"] == {"ratings": 12, "tokens": 80}
    assert answer["model"]["parameters"] == sum(p.numel() for p in tiny.policy(folder)._causal.parameters()) - sum(
        p.numel() for p in tiny.policy(folder).trained.values()
    )
    assert answer["advised"]["fits_beside"] and answer["advised"]["total"] == sum(answer["advised"]["memory"].values())
    assert answer["time"]["is_measured"] and answer["server"]["kind"] == "builtin"
    assert next(version["form"] for version in answer["versions"]) == "a PEFT adapter"


def test_the_time_says_on_which_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(tiny.make_model(tmp_path / "model"))
    monkeypatch.setattr("os.getloadavg", lambda: (100.0, 1.0, 1.0))
    _, busy = run(tmp_path, folder, "--gpu-gb", "0")
    assert "on a quiet machine, by what this processor multiplies a second. Beside what runs here now it takes" in busy
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 1.0, 1.0))
    _, quiet = run(tmp_path, folder, "--gpu-gb", "0")
    assert "on a quiet machine, by what this processor multiplies a second." in quiet and "Beside" not in quiet


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["nowhere"], 1, "There is no folder nowhere, and it is not a hub id"),
        (["."], 1, "has no config.json"),
        (["broken.json"], 1, "is not a config.json"),
        (["unknown.json"], 1, "This model is a quux9, a kind that transformers"),
        (["--server", "oven"], 2, "There is no server 'oven'; there is builtin"),
        (["--gpu-gb", "nan"], 2, "--gpu-gb"),
        (["--ram-gb", "inf"], 2, "A size is a number of GB"),
        (["--tokens", "0"], 2, "--tokens"),
        (["--ratings", "-3"], 2, "--ratings"),
    ],
)
def test_wrong_uses(
    arguments: list[str], code: int, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "unknown.json").write_text('{"model_type": "quux9"}')
    status, text = run(tmp_path / "home", *arguments)
    assert status == code and sentence in text and "Traceback" not in text
    assert not (tmp_path / "home").exists(), "nothing is written"


class Hub(BaseHTTPRequestHandler):
    """As the real one, of one repository with a config.json."""

    paths: list[str] = []

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def _answer(self, *, has_body: bool) -> None:
        self.paths.append(self.path)
        body = json.dumps(published.CONFIGS["4B"]).encode()
        if not self.path.startswith("/owner/model/resolve/"):
            body = b""
        self.send_response(200 if body else 404)
        self.send_header("x-repo-commit", "a" * 40)
        self.send_header("etag", '"abc"')
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if has_body:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Ollama(Hub):
    """With one model, of 16 bits a weight."""

    def _answer(self, *, has_body: bool) -> None:
        entry = {"name": "m:latest", "size": 16_000_000_000, "details": {"families": ["qwen3"]}}
        routes = {
            "/v1/models": {"data": [{"id": "m"}]},
            "/api/version": {"version": "0.34.1"},
            "/api/tags": {"models": [entry]},
        }
        body = json.dumps(routes.get(self.path, {})).encode()
        self.send_response(200 if self.path in routes else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_the_servers_own_file_is_what_counts(tmp_path: Path) -> None:
    server = HTTPServer(("127.0.0.1", 0), Ollama)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        lines = f'[backend]\nkind = "ollama"\nurl = "http://127.0.0.1:{server.server_port}"\nmodel = "m"\n'
        (tmp_path / "rlproxy.toml").write_text(f'{lines}[train]\nweights = "{published.write("8B", tmp_path)}"\n')
        answer = json.loads(run(tmp_path, "--json")[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert answer["server"]["weights"] == 16_000_000_000 and answer["server"]["bits"] == pytest.approx(15.6, abs=0.1)
    assert next(v for v in answer["versions"] if v["form"] == "a whole GGUF model")["served"] == 16_000_000_000


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hub]]:
    Hub.paths.clear()
    with HTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        template = f"http://127.0.0.1:{server.server_port}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        yield Hub
        server.shutdown()
        thread.join()


def test_of_a_hub_only_the_config_is_downloaded(hub: type[Hub], tmp_path: Path) -> None:
    code, text = run(tmp_path, "owner/model", "--gpu-gb", "24")
    assert code == 0 and "4.02 B parameters" in text
    asked = {path for path in hub.paths if path.startswith("/owner")}  # the hub's own client asks more of the hub
    assert asked == {"/owner/model/resolve/main/config.json"}
    code, text = run(tmp_path, "owner/other")
    assert code == 1 and "Cannot get the config.json of owner/other, because the hub answered 404" in text


def test_what_no_machine_here_can_train(tmp_path: Path) -> None:
    file = published.write("31B", tmp_path)
    code, text = run(tmp_path, str(file), "--server", "vllm", "--gpu-gb", "16", "--ram-gb", "16")
    assert code == 0 and "vLLM itself does not fit" in text
    assert "No run fits here" in text and "Time" not in text


# In short, where people look before they rate


def test_doctor_and_init_say_it_in_short(tmp_path: Path) -> None:
    folder = kinds.make("llama", tmp_path / "model")
    settings = load(
        {"home": tmp_path / "home", "train.weights": str(folder), "backend.kind": "vllm", "backend.url": "http://a"},
        environ={},
    ).settings
    facts = gather(settings)
    assert facts.estimate is not None and facts.estimate.advised is not None
    assert "a run takes about" in machine_checks.memory(facts).line
    note = init_plan.size_note(settings, str(folder))
    assert note is not None and note.startswith("A run takes about") and "a version is a PEFT adapter of" in note


def test_doctor_warns_where_no_run_can_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = kinds.make("llama", tmp_path / "model")
    settings = load({"home": tmp_path / "home", "train.weights": str(folder)}, environ={}).settings
    from trainer.launch import Hardware

    monkeypatch.setattr(plan, "hardware_of", lambda settings: Hardware(None, 2**28))
    check = machine_checks.memory(gather(settings))
    assert check.state == "note" and "no way to train llama" in check.line and check.fix is not None


def test_weights_that_are_not_here_are_not_guessed_at(tmp_path: Path) -> None:
    settings = load({"home": tmp_path, "train.weights": "owner/model"}, environ={}).settings
    assert plan.estimate_here(settings, "owner/model") is None
    cloud = load({"home": tmp_path, "backend.kind": "openai", "backend.url": "http://a"}, environ={}).settings
    assert plan.estimate_here(cloud, "") is None
