"""`rlproxy init` as a newcomer meets it: at a real terminal, by a file, interrupted, and against what goes wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from scripts.fakes.cloud import KEY, FakeCloud
from scripts.fakes.ollama import FakeOllama
from tests.harness.newcomer import Newcomer
from tests.harness.terminal import CTRL_C, CTRL_D, ROOT, Terminal

QUESTIONS = [
    "1  Which model",
    "2  Which weights",
    "3  Which agents",
    "How far",
    "May your comment",
    "6  Start rlproxy",
    "Write this?",
]


@pytest.fixture
async def person(tmp_path: Path, ollama: FakeOllama) -> AsyncIterator[Newcomer]:
    newcomer = Newcomer(tmp_path / "machine", ollama.url)
    yield newcomer
    await newcomer.stop_proxy()


async def test_six_questions_at_a_terminal_and_the_proof(person: Newcomer, ollama: FakeOllama) -> None:
    person.has_agent(".claude")
    state = person.has_systemd()
    async with Terminal("init", env=person.env) as terminal:
        await terminal.expect("1  Which model")
        assert f"fake  (ollama 0.34.4 at {ollama.url})" in await terminal.expect("[1]")
        terminal.type("99\n")
        await terminal.expect("A number from 1 to")
        await terminal.expect("[1]")
        terminal.type("\n")
        await terminal.expect("2  Which weights")
        shown = await terminal.expect("[1]")
        assert "meta-llama/Llama-3.2-3B-Instruct: a guess" in shown and "about 6.4 GB" in shown
        terminal.type("-\n")
        assert "claude-code" in await terminal.expect("[none]")
        terminal.type("1\n")
        await terminal.expect("[2]")
        terminal.type("1\n")
        assert "costs the tokens of its words" in " ".join((await terminal.expect("[Y/n]")).split())
        terminal.type("\n")
        await terminal.expect("[y/N]")
        terminal.type("y\n")
        shown = await terminal.expect("Write this? [Y/n]")
        assert '+kind = "ollama"' in shown and "+ExecStart=" in shown and "ANTHROPIC_BASE_URL" in shown
        assert "nothing trains" in shown and (person.rlproxy / "rlproxy.toml").read_text().startswith(
            "# mine\n[server]"
        )
        terminal.type("\n")
        await terminal.expect("rlproxy starts now, and at every login")
        await terminal.expect("One question")
        shown = await terminal.expect("Point your agent's base URL here")
        assert (
            "fake:latest fake:latest" in shown
            and "rated good, and the status shows it" in shown
            and "taken back" in shown
        )
        assert await terminal.ended() == 0
    assert "# mine" in person.settings and 'preset = "careful"' in person.settings
    assert "[lessons]\nenabled = true" in person.settings
    (backup,) = person.rlproxy.glob("rlproxy.toml.*.bak")
    assert backup.read_text() == f"# mine\n[server]\nport = {person.port}\n"
    claude = json.loads((person.home / ".claude" / "settings.json").read_text())
    assert claude["env"]["ANTHROPIC_BASE_URL"] == f"http://127.0.0.1:{person.port}"
    assert (state / "rlproxy.enabled").exists()
    code, out, _ = await person.run("status", "--json")
    counts = json.loads(out)["counts"]
    assert code == 0 and counts["done"] == 1 and counts["good"] == 0, "the rating of the proof teaches nothing"
    code, out, _ = await person.run("service", "remove")
    assert code == 0 and (await person.run("status"))[0] == 3


@pytest.mark.parametrize(("question", "key"), [*((n, CTRL_C) for n in range(len(QUESTIONS))), (1, CTRL_D)])
async def test_interrupted_at_each_question_nothing_is_written(person: Newcomer, question: int, key: str) -> None:
    person.has_agent(".claude")
    person.has_systemd()
    before = person.files()
    async with Terminal("init", env=person.env) as terminal:
        for text in QUESTIONS[:question]:
            await terminal.expect(text)
            await terminal.expect("]")
            terminal.type("\n")
        await terminal.expect(QUESTIONS[question])
        await terminal.expect("]")
        terminal.type(key)
        assert await terminal.ended() == 1
        assert "Interrupted; nothing was written." in terminal.shown and "Traceback" not in terminal.shown
    assert person.files() == before


async def test_no_at_the_end_writes_nothing(person: Newcomer) -> None:
    async with Terminal("init", env=person.env) as terminal:
        for text in QUESTIONS[:2]:
            await terminal.expect(text)
            await terminal.expect("]")
            terminal.type("\n")
        for text in ("3  How far", "4  May your comment"):
            await terminal.expect(text)
            await terminal.expect("]")
            terminal.type("\n")
        await terminal.expect("Write this?")
        terminal.type("n\n")
        assert await terminal.ended() == 1
    assert person.files() == {}


@pytest.mark.parametrize("name", ["answers.toml", "answers.json"])
async def test_answers_in_a_file(person: Newcomer, ollama: FakeOllama, name: str) -> None:
    person.has_agent(".claude")
    file = person.answers(name, backend="ollama", url=ollama.url, weights="", agents=["claude-code"], preset="careful")
    code, out, err = await person.run("init", "--answers", file, "--json")
    found = json.loads(out)
    assert code == 0, err
    assert found["settings"] == {
        "backend.kind": "ollama", "backend.url": ollama.url, "backend.model": "fake", "train.weights": "",
        "train.preset": "careful", "lessons.enabled": False,
    }  # fmt: skip
    assert found["proof"]["rated"] == 1 and found["proof"]["answer"].startswith("fake") and found["agents"]
    assert (await person.run("status"))[0] == 0, "the proxy that was started for the proof stays"
    code, out, _ = await person.run("init", "--answers", file, "--json")
    again = json.loads(out)
    assert code == 0 and not again["changed"] and again["backup"] is None and again["proof"]["process"] is None
    file = person.answers(name, backend="ollama", url=ollama.url, weights="", preset="balanced")
    code, out, err = await person.run("init", "--answers", file, "--json")
    changed = json.loads(out)
    assert code == 0 and changed["proof"] is None and changed["next"] == "rlproxy serve" and "from before" in err
    assert Path(changed["backup"]).read_text().count('"careful"') == 1


def lacks_torch(person: Newcomer) -> None:
    hidden = person.folder / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name in ('torch', 'mlx_lm') else find(name, *a)\n"
    )
    person.env["PYTHONPATH"] += f":{hidden}"


@pytest.mark.parametrize(("key", "end"), [("\n", "nothing trains yet"), (CTRL_C, "what was written stays")])
async def test_a_missing_extra_is_offered_with_its_size_and_enter_installs_nothing(
    person: Newcomer, key: str, end: str
) -> None:
    """All of it is here but hidden, so the real pip finds nothing to download and asks no index."""
    lacks_torch(person)
    async with Terminal("init", env=person.env) as terminal:
        for text in (QUESTIONS[0], QUESTIONS[1], QUESTIONS[3], QUESTIONS[4], QUESTIONS[6]):
            await terminal.expect(text)
            await terminal.expect("]")
            terminal.type("\n")
        shown = await terminal.expect("Asking pip how much that is")
        assert "needs the extra train" in shown and "pip install 'rlproxy[train]'" in shown
        assert "0 packages, 0.0 GB to download" in await terminal.expect("now? [y/N]")
        terminal.type(key)
        assert await terminal.ended() == 1 and end in terminal.shown and "Traceback" not in terminal.shown
    assert "weights" in person.settings


async def test_interrupted_in_the_proof_what_is_written_stays_and_nothing_runs(person: Newcomer) -> None:
    async with Terminal("init", env=person.env) as terminal:
        await terminal.expect(QUESTIONS[0])
        terminal.type("\n")
        await terminal.expect(QUESTIONS[1])
        terminal.type("-\n\n\n\n")
        await terminal.expect("rlproxy starts…")
        terminal.type(CTRL_C)
        assert await terminal.ended() == 1
        assert "what was written stays" in terminal.shown and "Traceback" not in terminal.shown
    assert 'kind = "ollama"' in person.settings
    mine = [p for p in psutil.process_iter(["cmdline"]) if str(person.rlproxy) in " ".join(p.info["cmdline"] or ())]
    _, alive = await asyncio.to_thread(psutil.wait_procs, mine, 30)
    assert not alive


async def test_yes_takes_the_defaults_and_installs_nothing(person: Newcomer) -> None:
    """With weights proposed, the train extra is needed; one that lacks it is told the command, whole."""
    person.has_agent(".claude")
    lacks_torch(person)
    code, out, err = await person.run("init", "--yes", "--json")
    found = json.loads(out)
    assert code == 1 and "Cannot get meta-llama/Llama-3.2-3B-Instruct, because no hub answered" in found["problem"]
    assert found["settings"]["train.weights"] == "meta-llama/Llama-3.2-3B-Instruct" and found["agents"] == []
    assert "Weights   meta-llama/Llama-3.2-3B-Instruct: a guess" in err, "who was not asked is told, too"
    assert "pip install 'rlproxy[train]'" in found["missing"] and found["proof"] is None
    assert found["missing"] == found["next"] and 'weights = "meta-llama' in person.settings


async def test_the_environment_goes_before_the_file(person: Newcomer) -> None:
    code, out, _ = await person.run("init", "--yes", "--no-start", "--json", RLPROXY_TRAIN__PRESET="aggressive")
    found = json.loads(out)
    assert code == 1 and found["next"] == "rlproxy serve" and found["proof"] is None
    assert found["notes"] == ["train.preset is set by env RLPROXY_TRAIN__PRESET, which goes before the file: unset it."]


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"bakend": "ollama"}, "did you mean 'backend'"),
        ({"preset": "bold"}, "preset in"),
        ({"model": "unheard-of"}, "name its kind too"),
        ({"backend": "ollama", "model": "unheard-of"}, "it has fake"),
        ({"backend": "vllm"}, "name its address"),
        ({"agents": ["codex"]}, "There is no agent codex here; I found none."),
        ({"start_at_login": True}, "neither systemd --user nor launchd"),
    ],
)
async def test_answers_that_cannot_be(person: Newcomer, answers: dict[str, object], said: str) -> None:
    code, _, err = await person.run("init", "--answers", person.answers(**answers))
    assert code == 2 and said in err and err.count("\n") == 1 and person.files() == {}


async def test_the_key_of_the_settings_is_told_to_no_other_server(person: Newcomer) -> None:
    mine, other = FakeCloud(), FakeCloud()
    await mine.start()
    await other.start()
    try:
        env = {"RLPROXY_BACKEND__KIND": "openai", "RLPROXY_BACKEND__URL": mine.url, "RLPROXY_BACKEND__API_KEY": KEY}
        code, out, _ = await person.run("init", "--yes", "--no-start", "--json", **env, OLLAMA_HOST=other.url)
        assert code == 0 and json.loads(out)["settings"]["backend.url"] == mine.url
        assert set(mine.keys) == {f"Bearer {KEY}"} and set(other.keys) == {None}
    finally:
        await mine.stop()
        await other.stop()


async def test_keys_are_not_shown_and_another_servers_goes(person: Newcomer, ollama: FakeOllama) -> None:
    other = f'[backend]\nkind = "openai"\nurl = "http://127.0.0.1:9"\napi_key = "{KEY}"\n'
    old = f"[server]\nport = {person.port}\n\n{other}"
    person.rlproxy.mkdir()
    (person.rlproxy / "rlproxy.toml").write_text(old)
    code, out, err = await person.run(
        "init", "--no-start", "--answers", person.answers(backend="ollama", url=ollama.url, weights="")
    )
    assert code == 0 and KEY not in out + err and '-api_key = "**********"' in out
    assert "api_key" not in person.settings
    (backup,) = person.rlproxy.glob("rlproxy.toml.*.bak")
    assert backup.read_text() == old


async def test_wrong_use(person: Newcomer) -> None:
    code, _, err = await person.run("init")
    assert code == 2 and "--answers FILE" in err
    code, _, err = await person.run("init", "--answers", str(person.folder / "nowhere.toml"))
    assert code == 2 and "cannot be read" in err
    person.rlproxy.mkdir()
    (person.rlproxy / "rlproxy.toml").write_text("[server\n")
    code, _, err = await person.run("init", "--yes")
    assert code == 2 and "cannot be read" in err and person.settings == "[server\n"


async def test_a_proxy_that_does_not_start_is_said_in_a_sentence(person: Newcomer, ollama: FakeOllama) -> None:
    """Somebody else has the port."""
    port = ollama.url.rpartition(":")[2]
    code, out, err = await person.run(
        "init", "--answers", person.answers(backend="ollama", url=ollama.url, weights=""), "--json",
        RLPROXY_SERVER__PORT=port,
    )  # fmt: skip
    found = json.loads(out)
    assert code == 1 and found["problem"] in err and "`rlproxy serve --port" in found["problem"]
    assert found["written"], "the settings stay"


@pytest.mark.parametrize("asked", [False, True])
async def test_weights_that_cannot_be_had_are_said_last(person: Newcomer, ollama: FakeOllama, asked: bool) -> None:
    """Everything else is done and proved; but it does not end as if all was well."""
    if asked:
        async with Terminal("init", env=person.env) as terminal:
            for text in (QUESTIONS[0], QUESTIONS[1], QUESTIONS[3], QUESTIONS[4]):
                await terminal.expect(text)
                await terminal.expect("]")
                terminal.type("some/weights\n" if text == QUESTIONS[1] else "\n")
            assert "Note: Cannot get some/weights, because no hub answered" in await terminal.expect(
                "Write this? [Y/n]"
            )
            terminal.type("\n")
            code = await terminal.ended()
            last = terminal.shown.strip().splitlines()[-1]
    else:
        answers = person.answers(backend="ollama", url=ollama.url, weights="some/weights")
        code, out, err = await person.run("init", "--answers", answers)
        assert "rated good, and the status shows it" in out
        last = err.strip().splitlines()[-1]
    assert code == 1 and last.startswith("rlproxy: Answers are kept and rated, and nothing trains yet. Cannot get")
    assert last.endswith("name a local folder with --weights (train.weights), or connect to the hub.")
    assert 'weights = "some/weights"' in person.settings


async def test_the_bundled_model_needs_no_hub(person: Newcomer, ollama: FakeOllama) -> None:
    model = person.home / ".cache" / "rlproxy" / "models" / "SmolLM2-135M-Instruct"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"x")
    answers = person.answers(backend="ollama", url=ollama.url, weights="HuggingFaceTB/SmolLM2-135M-Instruct")
    code, _, err = await person.run("init", "--no-start", "--answers", answers)
    assert code == 0, err


async def test_a_folder_is_written_by_its_whole_path(person: Newcomer, ollama: FakeOllama) -> None:
    """Who starts rlproxy later is somewhere else."""
    answers = person.answers(backend="ollama", url=ollama.url, weights="scripts/fakes")
    code, _, err = await person.run("init", "--no-start", "--answers", answers)
    assert code == 1 and "holds no model" in err
    assert f'weights = "{ROOT}/scripts/fakes"' in person.settings


async def test_who_takes_the_builtin_server_is_told_that_its_model_takes_a_minute(
    person: Newcomer, tiny_weights: Path
) -> None:
    given = person.answers(backend="builtin", weights=str(tiny_weights))
    code, _, err = await person.run("init", "--answers", given, "--json")
    assert code == 0 and "Its model is loaded first" in err, err
