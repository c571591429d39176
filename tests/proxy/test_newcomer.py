"""What a newcomer meets first: one sentence each, that says what happened, why and what to do, and stands in
docs/reference/errors.md as it is said. Real processes, real sockets; the servers behind are fakes."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scripts.fakes.another_program import AnotherProgram
from scripts.fakes.backend import FakeBackend
from scripts.fakes.ollama import FakeOllama
from scripts.harness.in_process import Proxy
from scripts.harness.serving import Serving
from tests.harness.newcomer import Newcomer
from tests.harness.runs import until

ROOT = Path(__file__).resolve().parents[2]
TABLE = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
SENTENCES = [text.removesuffix(" …") for text in re.findall(r"^\| `([^|]+?)` \|", TABLE, re.MULTILINE)]
BEGINNINGS = [".*".join(re.escape(part) for part in text.split("…")) for text in SENTENCES]
NOBODY = "http://127.0.0.1:1"


def checked(said: str) -> str:
    """It is one line, no traceback, and what the page says that it says."""
    sentence = said.strip().splitlines()[-1].removeprefix("rlproxy: ")
    assert "Traceback" not in said and sentence
    assert any(re.match(beginning, sentence) for beginning in BEGINNINGS), f"docs/reference/errors.md lacks: {sentence}"
    return sentence


@pytest.fixture
def person(tmp_path: Path) -> Newcomer:
    return Newcomer(tmp_path)


@pytest.fixture
async def another() -> AsyncIterator[AnotherProgram]:
    program = AnotherProgram()
    await program.start()
    yield program
    await program.stop()


async def test_the_wrong_port(person: Newcomer, another: AnotherProgram) -> None:
    code, out, err = await person.run("status")
    assert code == 3 and not out and "`rlproxy serve`" in checked(err) and "refused" in err
    for another.status in (200, 404):
        code, out, err = await person.run("status", RLPROXY_SERVER__PORT=another.url.rpartition(":")[2])
        assert code == 3 and not out and "`rlproxy serve --port" in checked(err) and "html" not in err
    code, out, _ = await person.run("doctor", "--json", RLPROXY_SERVER__PORT=another.url.rpartition(":")[2])
    assert code == 3 and "is another program" in out and "html" not in out


async def test_a_base_url_without_v1(proxy: Proxy) -> None:
    async with proxy.http.post("/chat/completions", json={"messages": []}) as response:
        assert response.status == 404
        assert checked((await response.json())["error"]["message"]).endswith(f"base URL is {proxy.url}/v1.")


async def test_a_port_that_is_taken(person: Newcomer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        flags = ("--port", str(port), "--backend", "openai", "--backend-url", NOBODY)
        code, _, err = await person.run("serve", *flags)
        assert code == 1 and f"`rlproxy serve --port {port + 1}`" in checked(err) and "Errno" not in err


async def test_a_port_that_is_taken_is_known_before_a_model_server_starts(person: Newcomer, tmp_path: Path) -> None:
    started = tmp_path / "started"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        flags = ("--port", str(taken.getsockname()[1]), "--backend", "vllm", "--backend-url", NOBODY)
        code, _, err = await person.run("serve", *flags, RLPROXY_BACKEND__COMMAND=f"touch {started}")
    assert code == 1 and "is taken" in checked(err), err
    assert not started.exists()


async def test_an_address_that_is_not_ours(person: Newcomer) -> None:
    """TEST-NET-1 is nobody's."""
    flags = ("--host", "192.0.2.1", "--backend", "openai", "--backend-url", NOBODY)
    keys = {"RLPROXY_SERVER__API_KEY": "k" * 20, "RLPROXY_SERVER__ADMIN_KEY": "a" * 20}
    code, _, err = await person.run("serve", *flags, **keys)
    assert code == 1 and "`rlproxy serve --host 127.0.0.1`" in err and "Traceback" not in err


async def test_a_home_that_is_in_use(person: Newcomer, tmp_path: Path) -> None:
    flags = ("--backend", "openai", "--backend-url", NOBODY)
    served = Serving(tmp_path / "home", tmp_path, *flags)
    await served.start()
    try:
        code, _, err = await person.run("serve", "--home", str(served.home), *flags)
        assert code == 1 and f"`kill {served.process.pid}`" in checked(err)
    finally:
        assert await served.stop() == 0


async def test_a_home_that_cannot_be(person: Newcomer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = await person.run("serve", "--home", str(tmp_path / "file/home"), "--backend", "openai")
    assert code == 1 and "--home FOLDER" in checked(err)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[server]\nprot = 9\n", "did you mean 'server.port'? `rlproxy config show`"),
        ("[sever]\nport = 9\n", "did you mean 'server.port'?"),
        ("[server\nport = 9\n", "at line 1"),
        ('[server]\nhold_most = "nine"\n', "server.hold_most: 'nine' from file"),
        ('[backend]\nkind = "vlm"\n', "'vllm'"),
    ],
)
async def test_a_settings_file_with_a_typo(person: Newcomer, text: str, says: str) -> None:
    person.rlproxy.mkdir()
    (person.rlproxy / "rlproxy.toml").write_text(text)
    code, _, err = await person.run("serve")
    assert code == 2 and says in checked(err) and "rlproxy.toml" in err


async def test_a_flag_is_named_as_it_is_written(person: Newcomer) -> None:
    code, _, err = await person.run("serve", "--backend", "vlm")
    assert code == 2 and "'vlm' from flag --backend is not allowed" in checked(err)


async def test_a_backend_that_does_not_run(tmp_path: Path) -> None:
    """Said at the start already, and by each answer; a running server is all that is missing then."""
    served = Serving(tmp_path / "home", tmp_path, "--backend", "ollama", "--backend-url", NOBODY)
    await served.start()
    try:
        body = {"model": "small", "messages": [{"role": "user", "content": "hi"}]}
        async with served.http.post("/v1/chat/completions", json=body) as response:
            assert response.status == 503
            sentence = checked((await response.json())["error"]["message"])
        assert "`ollama serve`" in sentence and "nothing listens there" in sentence and "`rlproxy init`" in sentence
        assert sentence in served.log
    finally:
        assert await served.stop() == 0


async def test_a_backend_url_of_another_program(person: Newcomer, another: AnotherProgram) -> None:
    another.status = 404
    code, _, err = await person.run("serve", "--backend", "vllm", "--backend-url", another.url)
    assert code == 1 and "`rlproxy init`" in checked(err)


async def test_a_backend_without_an_address(person: Newcomer) -> None:
    code, _, err = await person.run("serve", "--backend", "vllm")
    assert code == 1 and "--backend-url http://127.0.0.1:8000" in checked(err)


async def test_a_backend_that_wants_a_key(person: Newcomer, another: AnotherProgram) -> None:
    another.status = 401
    code, _, err = await person.run("serve", "--backend", "vllm", "--backend-url", another.url)
    assert code == 1 and "RLPROXY_BACKEND__API_KEY" in checked(err)


async def test_a_model_that_is_not_there(proxy: Proxy, backend: FakeBackend) -> None:
    body = {"model": "gpt-9", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
    for path in ("/v1/chat/completions", "/v1/messages", "/api/chat"):  # as it is, and translated
        for stream in (False, True):
            async with proxy.http.post(path, json={**body, "stream": stream}) as response:
                assert response.status == 404, path
                error = (await response.json())["error"]
            sentence = checked(error if isinstance(error, str) else error["message"])
            assert "has no model 'gpt-9'" in sentence and "(fake; GET /v1/models lists them)" in sentence
            assert "The model `gpt-9` does not exist" in sentence, "what the backend said itself"
    assert (await proxy.say("hi")).startswith("You said")


async def test_a_model_that_ollama_has_not_pulled(proxy: Proxy, tmp_path: Path) -> None:
    ollama = FakeOllama(tmp_path / "ollama")
    await ollama.start()
    try:
        await proxy.stop()
        proxy.kind = None
        await proxy.start(**{"backend.kind": "ollama", "backend.url": ollama.url})
        body = {"model": "llama9", "messages": [{"role": "user", "content": "hi"}]}
        async with proxy.http.post("/v1/chat/completions", json=body) as response:
            assert response.status == 404
            assert "`ollama pull llama9`" in checked((await response.json())["error"]["message"])
    finally:
        await ollama.stop()


async def test_a_key_that_is_missing(proxy: Proxy, person: Newcomer) -> None:
    await proxy.stop()
    await proxy.start(server__api_key="k" * 20)
    for headers, says in (({}, "none came"), ({"authorization": "Bearer wrong"}, "does not know this one")):
        response = await proxy.chat("hi", headers=headers)
        sentence = (await response.json())["error"]["message"]
        assert (
            response.status == 401 and says in sentence and "`rlproxy keys create --role use --name NAME`" in sentence
        )
    checked(sentence.replace("does not know this one", "none came"))
    code, _, err = await person.run("serve", "--host", "0.0.0.0", "--backend", "openai", "--backend-url", NOBODY)
    assert code == 1 and "`rlproxy keys create --role admin --name YOU`" in checked(err)


def hide(person: Newcomer, *modules: str) -> None:
    hidden = person.folder / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        f"u.find_spec = lambda name, *a: None if name in {modules} else find(name, *a)\n"
    )
    person.env["PYTHONPATH"] += f":{hidden}"


async def test_an_extra_that_is_not_installed(person: Newcomer) -> None:
    hide(person, "torch", "peft")
    code, _, err = await person.run("serve")
    assert code == 1 and "need torch, peft" in checked(err) and "-m pip install 'rlproxy[train]'`" in err


@pytest.mark.parametrize(("weights", "says"), [("/no/where", "There is no folder"), ("some/model", "no hub answered")])
async def test_weights_that_are_not_there(person: Newcomer, weights: str, says: str) -> None:
    code, _, err = await person.run("serve", "--port", "0", "--weights", weights, HF_ENDPOINT=NOBODY)
    assert code == 1 and says in checked(err) and "--weights" in err and "status 1" not in err and "error:" not in err


async def test_no_gpu(person: Newcomer) -> None:
    """`nvidia-smi` is not on this person's PATH."""
    (person.bin / "python").symlink_to("/usr/bin/env")
    code, out, _ = await person.run("doctor", "--json", PATH=str(person.bin), RLPROXY_TRAIN__LOAD_IN_4BIT="true")
    assert code == 3 and "train.load_in_4bit = false" in out
    checked("train.load_in_4bit needs" + out.partition('"train.load_in_4bit needs')[2].partition('"')[0])
    code, out, _ = await person.run("doctor", "--json", PATH=str(person.bin))
    assert "no NVIDIA GPU is found: runs train on the CPU" in out


@pytest.mark.parametrize("lora", [False, None])
async def test_lora_that_is_off(proxy: Proxy, backend: FakeBackend, lora: bool | None) -> None:
    backend.lora = lora
    await proxy.say("hi")
    await proxy.rate(completion_id="last", rating="good")
    code, body = await proxy.post("/rl/train")
    assert code == 409 and "--enable-lora" in body["error"]["message"]
    obstacle = checked((await proxy.get("/rl/status"))["backend"]["obstacle"])
    flags = "--enable-lora --generation-config vllm"
    assert f"start it with `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve MODEL {flags}`" in obstacle


async def test_a_trainer_that_the_kernel_ends(proxy: Proxy) -> None:
    proxy.launcher.crashes = 3
    for _ in range(4):
        await proxy.say("hi")
        await proxy.rate(completion_id="last", rating="good")
    reason = checked((await until(proxy, ended="failed"))["last_run"]["reason"])
    assert "killed, most likely because the machine's memory was full" in reason and "train.max_memory_gb" in reason


def test_the_page_names_each_once() -> None:
    assert len(BEGINNINGS) == len(set(BEGINNINGS)) > 20
