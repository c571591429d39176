"""A model server, a judge or a chat service that answers with redirects: no request of rlproxy's own follows one.

Each points to a trap that notes what it gets; it could as well be rlproxy's own `/rl/pause`.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from config.settings import load
from proxy.backends import make_backend
from proxy.backends.ask import ask
from proxy.backends.base import Backend, Prompt
from proxy.cli.init import discovery, extras
from proxy.client import AsyncClient, Client, Unreachable
from proxy.core.errors import BackendBroke, ProxyError
from proxy.core.redirects import Redirected, refuse_all
from proxy.feedback.webhooks import discord, slack
from proxy.feedback.webhooks.base import PlatformEvent
from proxy.feedback.webhooks.discord_gateway import Gateway
from proxy.signals.judge import AnswerJudge, Endpoint, JudgeDown
from scripts.fakes.hostile import MODELS, HostileServer
from scripts.fakes.launcher import FakeLauncher
from trainer.launch import AdapterError

ROOT = Path(__file__).parents[2]
STATUSES = (301, 302, 303, 307, 308)
VERSION = b'{"version": "0.12.0"}'
SHOWN = b'{"modelfile": "FROM /nowhere/blobs/sha256-0\\n"}'
TAGS = b'{"models": [{"name": "m", "model": "m", "digest": "d"}]}'
LM_MODELS = b'{"models": [{"key": "m", "type": "llm", "publisher": "p", "format": "gguf", "loaded_instances": []}]}'
# What a server of each kind answers as it should, so that rlproxy goes on to its other questions.
REGULAR: dict[str, dict[str, bytes]] = {
    "openai": {}, "vllm": {}, "sglang": {}, "mlx": {}, "llamacpp": {}, "ollama": {}, "lmstudio": {},
    "vllm, listed": {"/v1/models": MODELS},
    "sglang, listed": {"/v1/models": MODELS},
    "mlx, listed": {"/v1/models": MODELS},
    "llamacpp, listed": {"/v1/models": MODELS, "/lora-adapters": b"[]"},
    "ollama, shown": {"/api/version": VERSION, "/api/show": SHOWN},
    "ollama, listed": {"/api/version": VERSION, "/api/show": SHOWN, "/api/tags": TAGS, "/api/ps": TAGS},
    "lmstudio, listed": {"/v1/models": MODELS, "/api/v1/models": LM_MODELS},
}  # fmt: skip


@pytest.fixture
async def trap() -> AsyncIterator[HostileServer]:
    server = HostileServer(regular={})
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def pointing(trap: HostileServer) -> AsyncIterator[HostileServer]:
    server = HostileServer(307, (f"location: {trap.url}/rl/pause?key=secret",), b"", regular={})
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(middlewares=(refuse_all,)) as session:
        yield session


@pytest.mark.parametrize("kind", REGULAR)
async def test_no_question_to_a_backend_follows_a_redirect(
    kind: str, trap: HostileServer, pointing: HostileServer, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    pointing.regular = REGULAR[kind]
    flags: dict[str, Any] = {"home": tmp_path, "backend.kind": kind.partition(",")[0], "backend.url": pointing.url}
    settings = load({**flags, "backend.model": "m", "train.weights": str(tmp_path)}, environ={}).settings
    backend = make_backend(settings, FakeLauncher())
    (tmp_path / "v0001").mkdir()
    (tmp_path / "v0001" / "adapter_model.safetensors").write_bytes(b"x")
    refusals = await _ask_all(backend, http, tmp_path / "v0001")
    assert pointing.requests and not trap.requests
    words = [str(error) for error in refusals if "a redirect to" in str(error)]
    assert words and all(f"{trap.url}/rl/pause;" in text and "secret" not in text for text in words)


async def _ask_all(backend: Backend, http: aiohttp.ClientSession, adapter: Path) -> list[Exception]:
    """Everything that rlproxy asks a backend; the errors of it."""

    async def restarted() -> None:
        return None

    prompt = Prompt([{"role": "user", "content": "hi"}])
    refusals: list[Exception] = []
    for question in (
        lambda: backend.start(http, restarted), backend.ready, backend.models, backend.describe,
        lambda: backend.render(prompt), lambda: backend.check(8, adapter.parent),
        lambda: backend.load("m@v1", adapter), lambda: backend.read_ahead_limit("m@v1"), lambda: backend.unload("m@v1"),
        backend.free, backend.reclaim,
        lambda: ask(backend, backend.address("m"), {"messages": []}, 5.0),
    ):  # fmt: skip
        try:
            await question()
        except (ProxyError, AdapterError) as error:  # the latter: of the file here, which is no adapter
            refusals.append(error)
    await backend.stop()
    return refusals


@pytest.mark.parametrize("status", STATUSES)
async def test_where_it_pointed_is_said(
    status: int, trap: HostileServer, pointing: HostileServer, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    pointing.status = status
    flags = {"home": tmp_path, "backend.kind": "openai", "backend.url": pointing.url}
    backend = make_backend(load(flags, environ={}).settings, FakeLauncher())
    with contextlib.suppress(BackendBroke):
        await backend.start(http, lambda: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(BackendBroke) as refusal:
        await backend.models()
    assert str(refusal.value) == (
        f"The backend at {pointing.url} answered {status}, a redirect to {trap.url}/rl/pause; rlproxy follows none, so "
        "nothing was sent there. If the server itself answers there, make that backend.url."
    )
    assert not trap.requests


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ("/rl/pause", "{url}/rl/pause"),
        ("//evil.example/x", "http://evil.example/x"),
        ("http://user:pass@evil.example/?q=1#f", "http://evil.example/"),
        ("javascript:alert(1)", "javascript://alert(1)"),
        ("http://[/", "what is not an address"),
        ("/\x1b[31m", "{url}/\\x1b[31m"),
        ("/" + "x" * 9999, "{url}/"),
        ("", "{url}/v1/models"),
    ],
)
async def test_an_address_is_shown_without_its_secrets_and_not_at_any_length(
    location: str, place: str, pointing: HostileServer, http: aiohttp.ClientSession
) -> None:
    pointing.head = (f"location: {location}",)
    with pytest.raises(aiohttp.ClientError) as refusal:
        await http.get(f"{pointing.url}/v1/models")
    words = str(refusal.value)
    if isinstance(refusal.value, Redirected):  # else aiohttp takes no such header
        assert place.format(url=pointing.url) in words and len(words) < 400 and words.isprintable()


async def test_a_judge_does_not_either(
    trap: HostileServer, pointing: HostileServer, http: aiohttp.ClientSession
) -> None:
    with pytest.raises(JudgeDown, match="a redirect to"):
        await AnswerJudge(http, Endpoint(pointing.url, "m", {}), 1).ask([{"role": "user", "content": "hi"}], 0.0)
    assert pointing.requests and not trap.requests


async def test_no_chat_service_does(trap: HostileServer, pointing: HostileServer, http: aiohttp.ClientSession) -> None:
    event = PlatformEvent("discord", "e", "u", "1", "2", "reaction", "+1", 0.0)
    assert await slack.text_source(http, pointing.url, "token")(event) is None
    assert await discord.text_source(http, pointing.url, "token")(event) is None
    gateway = Gateway(http, pointing.url, "token", lambda event: None)
    with pytest.raises(Redirected):
        await gateway._connection()
    pointing.regular = {"/gateway/bot": f'{{"url": "{pointing.url.replace("http", "ws")}"}}'.encode()}
    with pytest.raises(Redirected):
        await gateway._connection()
    assert len(pointing.requests) == 6 and not trap.requests


async def test_no_command_and_no_client_of_a_program_does(trap: HostileServer, pointing: HostileServer) -> None:
    assert await discovery.look([pointing.url], {pointing.url: "key"}) == []
    assert await asyncio.to_thread(extras._size, f"{pointing.url}/x.whl") is None
    with pytest.raises(Unreachable):
        await asyncio.to_thread(Client(pointing.url, "key").status)
    async with AsyncClient(pointing.url, "key") as client:
        with pytest.raises(Unreachable):
            await client.status()
    assert len(pointing.requests) >= 4 and not trap.requests


def test_every_session_is_made_so() -> None:
    """A new request, in a new module, follows none either."""
    sessions, faults = 0, []
    for file in sorted(
        path for room in ("proxy", "trainer", "store", "config") for path in (ROOT / room).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            call, keywords = ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}
            if call.endswith("ClientSession"):
                sessions += 1
                stays = keywords.get("middlewares") == "(refuse_all,)" or file.name == "client.py"
            elif file.name == "client.py" and call == "self._http.request":
                stays = keywords.get("allow_redirects") == "False"
            elif call.endswith("build_opener"):
                stays = [ast.unparse(argument) for argument in node.args] == ["_NoRedirect"]
            else:
                stays = not call.endswith(("urlopen", "urlretrieve")) and not call.startswith(
                    ("requests.get", "requests.post", "httpx.")
                )
            if not stays:
                faults.append(f"{file.relative_to(ROOT)}:{node.lineno}: {call}")
    assert sessions > 5 and not faults
