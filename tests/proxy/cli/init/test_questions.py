"""Defaults of the six questions, and what may be typed; nobody is asked here (that is test_cli_init)."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest

from config.settings import load
from proxy.cli.init.answers import Answers, BadAnswers
from proxy.cli.init.console import Console, InvalidAnswer
from proxy.cli.init.discovery import DiscoveredServer, ListedModel
from proxy.cli.init.environment import InstalledAgent, ThisMachine
from proxy.cli.init.plan import make
from proxy.cli.init.questions import Choices, Interview, Surroundings, _number, _pair, _several, _weights_reader, keys
from proxy.cli.init.weights_search import Proposal
from scripts.fakes.ollama import FakeOllama

VLLM = DiscoveredServer("vllm", "http://127.0.0.1:8000", (ListedModel("a", 4096, "own/a"), ListedModel("b")))
LLAMA = DiscoveredServer("llamacpp", "http://127.0.0.1:8080", (ListedModel("c"),), presets="/etc/presets.ini")
MACHINE = ThisMachine(None, "cpu", None, 16.0, 8.0, 100.0)


def choose(
    tmp_path: Path, *servers: DiscoveredServer, settings: dict[str, Any] | None = None, **answers: Any
) -> Choices:
    now = load({"home": tmp_path, **(settings or {})}, environ={}).settings
    found = Surroundings(list(servers), [InstalledAgent("codex", "/bin/codex", True)], MACHINE, now, None)
    return Interview(found, Answers(**answers), None, tmp_path).choices()


def test_the_first_server_and_its_first_model(tmp_path: Path) -> None:
    found = choose(tmp_path, VLLM, LLAMA)
    assert (found.kind, found.model, found.window, found.weights) == ("vllm", "a", 4096, "own/a")
    assert (found.preset, found.agents, found.start_at_login) == ("balanced", (), False)
    assert choose(tmp_path).kind == "builtin"


def test_comments_act_at_once_where_somebody_says_so(tmp_path: Path) -> None:
    assert not choose(tmp_path).lessons and choose(tmp_path, lessons=True).lessons
    assert choose(tmp_path, settings={"lessons.enabled": True}).lessons, "as it was"
    assert not choose(tmp_path, settings={"lessons.enabled": True}, lessons=False).lessons


@pytest.mark.parametrize(
    ("decided", "typed", "enabled"),
    [(None, "", True), (None, "n", False), (False, "", False), (False, "y", True), (True, "", True)],
)
def test_whoever_is_asked_has_lessons_with_enter_and_the_second_time_what_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decided: bool | None, typed: str, enabled: bool
) -> None:
    settings = load(
        {"home": tmp_path, **({} if decided is None else {"lessons.enabled": decided})}, environ={}
    ).settings
    surroundings = Surroundings([], [], MACHINE, settings, None)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"\n\n{typed}\n\n"))
    interview = Interview(surroundings, Answers(), Console(io.StringIO()), tmp_path)
    assert interview.choices().lessons is enabled


def test_what_the_settings_say_is_the_default(tmp_path: Path) -> None:
    now = {"backend.kind": "llamacpp", "backend.url": "http://127.0.0.1:8080", "train.preset": "careful"}
    found = choose(tmp_path, VLLM, LLAMA, settings={**now, "train.weights": "my/own"})
    assert (found.model, found.weights, found.preset, found.presets) == ("c", "my/own", "careful", "/etc/presets.ini")
    gone = choose(tmp_path, VLLM, settings={**now, "backend.model": "x", "train.weights": "my/own"})
    assert (gone.kind, gone.url, gone.model, gone.weights) == ("llamacpp", LLAMA.url, "x", "my/own"), "it rests only"
    other = choose(tmp_path, VLLM, LLAMA, settings={**now, "train.weights": "my/own"}, backend="vllm")
    assert other.weights == "own/a", "those of another model are no default"
    ollama = choose(tmp_path, settings={"backend.kind": "ollama", "backend.model": "m"})
    assert ollama.url == "http://127.0.0.1:11434"
    builtin = choose(tmp_path, settings={"train.weights": "my/own"})
    assert (builtin.kind, builtin.weights) == ("builtin", "my/own"), "which it serves"


def test_an_address_that_ends_in_api_stays_whole(tmp_path: Path) -> None:
    now = {"backend.kind": "openai", "backend.url": "https://openrouter.example/api/v1"}
    cloud = DiscoveredServer("openai", "https://openrouter.example/api/v1", (ListedModel("m"),))
    for servers in ((), (cloud,)):
        assert choose(tmp_path, *servers, settings=now).url == now["backend.url"], "as it was, nothing else was chosen"
    for servers in ((), (cloud,)):
        found = choose(tmp_path, *servers, backend="openai", url=now["backend.url"])
        assert (found.kind, found.url) == ("openai", cloud.url)
    assert choose(tmp_path, cloud, url=now["backend.url"]).model == "m"


def test_ollamas_own_api_is_no_part_of_its_address(tmp_path: Path) -> None:
    ollama = DiscoveredServer("ollama", "http://127.0.0.1:11434", (ListedModel("m"),))
    for servers in ((), (ollama,)):
        assert choose(tmp_path, *servers, backend="ollama", url=f"{ollama.url}/api").url == ollama.url
    now = {"backend.kind": "ollama", "backend.url": f"{ollama.url}/api/"}
    assert choose(tmp_path, ollama, settings=now).model == "m"


MANAGED = {"backend.kind": "llamacpp", "backend.command": "llama-server -m old.gguf"}
ROUTED = {"backend.kind": "llamacpp", "backend.url": LLAMA.url, "backend.model": "c", "backend.presets": "/my.ini"}
SEVERAL = {"backend.kind": "vllm", "backend.url": VLLM.url, "backend.replicas": ["http://10.0.0.2:8000"]}
KEYED = {"backend.kind": "openai", "backend.url": "http://127.0.0.1:9", "backend.api_key": "sk-mine"}
TAGGED = {"backend.kind": "ollama", "backend.model": "m", "backend.gguf": "/m.gguf"}
OLLAMA = DiscoveredServer("ollama", "http://127.0.0.1:11434", (ListedModel("m"), ListedModel("n")))
UNPREPARED = DiscoveredServer("llamacpp", LLAMA.url, (ListedModel("c"),), about={"total_slots": 1})
ROUTER = DiscoveredServer("llamacpp", LLAMA.url, (ListedModel("c"), ListedModel("d")), about={"role": "router"})
SGLANG = DiscoveredServer("sglang", "http://127.0.0.1:30000", (ListedModel("a"),))


@pytest.mark.parametrize(
    ("settings", "server", "answers", "key"),
    [
        (MANAGED, LLAMA, {"url": LLAMA.url}, "command"),
        ({**MANAGED, "backend.url": LLAMA.url}, LLAMA, {"url": LLAMA.url}, "command"),
        (MANAGED, OLLAMA, {"backend": "ollama"}, "command"),
        (ROUTED, UNPREPARED, {}, "presets"),
        (ROUTED, SGLANG, {"backend": "sglang"}, "presets"),
        (SEVERAL, SGLANG, {"backend": "sglang"}, "replicas"),
        (
            SEVERAL,
            DiscoveredServer("vllm", "http://10.0.0.3:8000", (ListedModel("a"),)),
            {"url": "10.0.0.3:8000"},
            "replicas",
        ),
        (TAGGED, OLLAMA, {"model": "n"}, "gguf"),
        (TAGGED, VLLM, {"backend": "vllm"}, "gguf"),
        ({"backend.kind": "lmstudio", "backend.models_dir": "/m"}, VLLM, {"backend": "vllm"}, "models_dir"),
        (SEVERAL, VLLM, {"backend": "builtin"}, "replicas"),
        ({**SEVERAL, "backend.kind": "builtin"}, VLLM, {"backend": "vllm"}, "replicas"),
        (KEYED, VLLM, {"backend": "vllm"}, "api_key"),
        (KEYED, VLLM, {"backend": "builtin"}, "api_key"),
    ],
)
def test_what_was_set_for_another_server_or_model_goes(
    tmp_path: Path, settings: dict[str, Any], server: DiscoveredServer, answers: dict[str, str], key: str
) -> None:
    assert f"backend.{key}" in choose(tmp_path, server, settings=settings, **answers).stale


@pytest.mark.parametrize(
    ("settings", "servers", "answers", "key"),
    [
        (MANAGED, (), {}, "command"),
        (MANAGED, (OLLAMA,), {}, "command"),
        (ROUTED, (), {}, "presets"),
        (ROUTED, (ROUTER,), {"model": "d"}, "presets"),
        (SEVERAL, (), {}, "replicas"),
        (SEVERAL, (VLLM,), {"model": "b"}, "replicas"),
        (TAGGED, (OLLAMA,), {}, "gguf"),
        ({"backend.kind": "lmstudio", "backend.models_dir": "/m"}, (), {}, "models_dir"),
        (KEYED, (), {}, "api_key"),
    ],
)
def test_what_was_set_for_the_same_server_stays(
    tmp_path: Path, settings: dict[str, Any], servers: tuple[DiscoveredServer, ...], answers: dict[str, str], key: str
) -> None:
    found = choose(tmp_path, *servers, settings=settings, **answers)
    assert found.kind == settings["backend.kind"] and f"backend.{key}" not in found.stale


def test_a_key_that_was_there_before_any_server_is_the_chosen_ones(tmp_path: Path) -> None:
    key = {"backend.api_key": "sk-mine"}
    for answers in ({"url": VLLM.url}, {"backend": "vllm"}):
        assert "backend.api_key" not in choose(tmp_path, VLLM, settings=key, **answers).stale


def test_a_server_that_rlproxy_starts_itself_has_no_address(tmp_path: Path) -> None:
    found = choose(tmp_path, OLLAMA, settings=MANAGED)
    assert (found.kind, found.url, found.model) == ("llamacpp", "", "")
    unused = {**MANAGED, "backend.url": "http://127.0.0.1:1"}
    assert choose(tmp_path, settings=unused).url == unused["backend.url"], "nothing else was chosen"
    assert _pair(DiscoveredServer("llamacpp", ""), ListedModel("")) == "its model  (llamacpp, which rlproxy starts)"


def test_answers_pick(tmp_path: Path) -> None:
    assert choose(tmp_path, VLLM, LLAMA, model="b").model == "b"
    assert choose(tmp_path, VLLM, LLAMA, url="127.0.0.1:8080/v1").kind == "llamacpp"
    assert choose(tmp_path, VLLM, backend="builtin").kind == "builtin"
    assert choose(tmp_path, VLLM, weights="").weights == ""
    later = choose(tmp_path, backend="ollama", model="m")
    assert (later.url, later.model) == ("http://127.0.0.1:11434", "m"), "it need not run yet"
    locked = DiscoveredServer("vllm", "http://127.0.0.1:9", note="it wants a key")
    assert choose(tmp_path, locked, backend="vllm", model="m").url == locked.url
    assert choose(tmp_path, agents=["codex"]).agents == ("codex",)
    with pytest.raises(BadAnswers, match="it has a, b"):
        choose(tmp_path, VLLM, backend="vllm", model="z")
    with pytest.raises(BadAnswers, match="name its kind too"):
        choose(tmp_path, url="http://10.0.0.1:8000")


def test_what_may_be_typed(tmp_path: Path) -> None:
    number = _number(3, default=2, address=True)
    assert (number(""), number("3"), number("127.0.0.1:8000/v1")) == (2, 3, "http://127.0.0.1:8000")
    for wrong in ("0", "4", "x", "-1", "²"):
        with pytest.raises(InvalidAnswer):
            number(wrong)
    several = _several(["codex", "llm"])
    assert several("") == several("none") == () and several("2, codex 2") == ("llm", "codex")
    for wrong in ("3", "cursor"):
        with pytest.raises(InvalidAnswer):
            several(wrong)
    weights = _weights_reader([Proposal("a/b", "", False)], {})
    assert (weights("").spec, weights("1").spec, weights("-").spec, weights("c/d").spec) == ("a/b", "a/b", "", "c/d")
    assert _weights_reader([], {})("").spec == ""
    for wrong in ("2", "/nowhere", "a/b/c", "nonsense"):
        with pytest.raises(InvalidAnswer):
            weights(wrong)


def test_weights_of_another_size_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 12}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    about = {"general.architecture": "llama", "llama.block_count": 30}
    with pytest.raises(InvalidAnswer, match="12 layers"):
        _weights_reader([], about)(str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "named", "at"),
    [
        ({"kind": "vllm", "url": "http://10.0.0.1:8000/v1"}, "http://10.0.0.2:8000", "http://10.0.0.1:8000"),
        ({"kind": "openai", "url": "http://0.0.0.0:9"}, None, "http://127.0.0.1:9"),
        ({"kind": "ollama"}, "http://10.0.0.2:8000", "http://127.0.0.1:11434"),
        ({"url": "http://10.0.0.1:8000"}, "http://10.0.0.2:8000", "http://10.0.0.1:8000"),
        ({}, "10.0.0.2:8000/v1", "http://10.0.0.2:8000"),
        ({}, None, None),
        ({"kind": "llamacpp", "command": "llama-server -m m"}, "http://10.0.0.2:8000", None),
    ],
)
def test_whose_key_it_is(tmp_path: Path, settings: dict[str, str], named: str | None, at: str | None) -> None:
    """That of the server in the settings; where they have none yet, of the one that a person names."""
    flags = {"home": tmp_path, "backend.api_key": "sk", **{f"backend.{k}": v for k, v in settings.items()}}
    assert keys(load(flags, environ={}).settings.backend, named) == ({at: "sk"} if at else {})


@pytest.mark.parametrize("typed", ["", "n", None])
async def test_a_folder_of_models_that_is_not_a_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str | None
) -> None:
    """Somebody is asked whether it may be read; nobody there is told what to set. `typed` None: nobody."""
    monkeypatch.delenv("OLLAMA_MODELS")
    ollama = FakeOllama(tmp_path / "moved")
    await ollama.start()
    try:
        settings = load({"home": tmp_path, "backend.kind": "ollama", "backend.url": ollama.url}, environ={}).settings
        server = DiscoveredServer("ollama", ollama.url, (ListedModel("fake"),), "0.34.1")
        surroundings = Surroundings([server], [], MACHINE, settings, None)
        monkeypatch.setattr("sys.stdin", io.StringIO(f"1\n{typed}\n-\n\n\n"))
        console = None if typed is None else Console(io.StringIO())
        interview = Interview(surroundings, Answers(weights=None if console else ""), console, tmp_path)
        choices = await asyncio.to_thread(interview.choices)
    finally:
        await ollama.stop()
    folder = str(ollama.blobs.parent)
    assert choices.models_dir == (folder if typed == "" else "")
    plan = make(tmp_path / "home", choices)
    assert str(plan.settings.backend.models_dir or "") == choices.models_dir
    assert any(f'backend.models_dir = "{folder}"' in note for note in plan.notes) == (typed != "")
