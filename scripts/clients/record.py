"""Stands between a client and an rlproxy before a scripted backend, and records what the client asks.

    python -m scripts.clients.record PORT FILE [--typed TEXT ...]

Drive the client by hand against http://127.0.0.1:PORT/v1. FILE gets the conversation when you end this with Ctrl-C.
It has each request, shortened, with the answer that it got and the seconds since the answer before. `--typed` names
what you type. A request whose newest message of a person begins or ends so is a main turn, all others are side turns.
Look
through the file. The model answers `Answer N.`. To `What about place N` it calls a tool, where one of LOOKS is offered;
and to the same with `, by a friend` one of GIVES, a subagent.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import re
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

from proxy.conversation.turns import limit_of
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.in_process import Proxy

HEADERS: Final = ("user-agent", "x-initiator", "x-interaction-type", "x-affinity", "x-parent-session-id")
# By the tool's name: its arguments for a look at a place, and for a subagent that looks there.
LOOKS: Final[dict[str, Any]] = {
    "bash": {"command": "echo seen {}", "description": "looks"},
    "terminal": {"command": "echo seen {}", "security_risk": "LOW", "summary": "looks"},
    "shell": {"command": "echo seen {}"},
    "run_commands": {"commands": ["echo seen {}"]},
}
GIVES: Final[dict[str, Any]] = {
    "task": {
        "agent_type": "explore", "subagent_type": "general-purpose", "name": "dig", "description": "digs",
        "prompt": "Dig into {}, and tell what is there.", "security_risk": "LOW", "summary": "digs",
    },
    "spawn_agent": {"systemPrompt": "You dig.", "task": "Dig into {}, and tell what is there."},
    "delegate_task": {"goal": "Dig into {}, and tell what is there.", "context": "Nothing."},
}  # fmt: skip
END_LENGTH: Final = 240  # characters of a long text, at either end
OURS: Final = re.compile(r"Answer \d+|What about|Dig into|\brl:|/rl|rlproxy|seen place")
MEMBERS: Final = ("model", "stream", "tool_choice", "max_tokens", "max_completion_tokens", "max_output_tokens")


def script(body: dict[str, Any]) -> str:
    return f"Answer {next(_NUMBERS)}."


_NUMBERS: Final = count(1001)


def wants(body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The tool that the model calls: one to the newest message of a person, if that is about a place."""
    newest = next(
        index for index in range(len(body["messages"]) - 1, -1, -1) if body["messages"][index]["role"] == "user"
    )
    place = re.search(r"What about (place \d+)(, by a friend)?", json.dumps(body["messages"][newest]))
    called = any(message["role"] == "tool" for message in body["messages"][newest:])
    offered = [tool.get("function", tool).get("name") for tool in body.get("tools") or []]
    if place is None or called:
        return "none", {}
    tools = GIVES if place[2] else LOOKS
    name = next((name for name in offered if name in tools), None)
    return ("none", {}) if name is None else (name, filled(tools[name], place[1]))


def filled(value: Any, place: str) -> Any:
    if isinstance(value, str):
        return value.replace("{}", place)
    if isinstance(value, dict):
        return {key: filled(item, place) for key, item in value.items()}
    return [filled(item, place) for item in value] if isinstance(value, list) else value


def shortened(text: str, length: int = END_LENGTH) -> str:
    """Its ends, and between them the lines that a person or the model said."""
    if len(text) <= 3 * length:
        return text
    middle = [line for line in text[length:-length].split("\n") if OURS.search(line)]
    return "\n".join([text[:length], f"[… {len(text)} characters]", *middle, text[-length:]])


def hashed(text: str) -> str:
    """A system text: how it begins, and what its lines are the same as."""
    lines = text.split("\n")
    names = [hashlib.sha256(line.encode()).hexdigest()[:6] for line in lines[1:80] if line.strip()]
    return "\n".join([lines[0][:600], *names])


def brief(body: dict[str, Any]) -> dict[str, Any]:
    short: dict[str, Any] = {key: body[key] for key in MEMBERS if key in body}
    if body.get("tools"):
        short["tools"] = [tool_named(tool.get("function", tool).get("name")) for tool in body["tools"]]
    short["messages"] = [brief_message(message) for message in body["messages"]]
    assert limit_of(short) == limit_of(body)
    return short


def brief_message(message: dict[str, Any]) -> dict[str, Any]:
    cut = hashed if message["role"] in ("system", "developer") else shortened
    content = message.get("content")
    if isinstance(content, str):
        content = cut(content)
    elif isinstance(content, list):
        content = [{**part, "text": cut(part["text"])} if "text" in part else part for part in content]
    fields = {key: message[key] for key in ("role", "tool_calls", "tool_call_id", "name") if message.get(key)}
    return {**fields, "content": content}


def newest_words(body: dict[str, Any]) -> str:
    for message in reversed(body["messages"]):
        if message["role"] == "user":
            content = message["content"]
            return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
    return ""


class Recorder:
    def __init__(self, proxy: Proxy, http: aiohttp.ClientSession, typed: list[str]) -> None:
        self._proxy, self._http, self._typed = proxy, http, typed
        self._ended = time.time()
        self.steps: list[dict[str, Any]] = []

    async def forward(self, request: web.Request) -> web.StreamResponse:
        raw, began, pause_s = await request.read(), time.time(), time.time() - self._ended
        headers = {
            key: value for key, value in request.headers.items() if key.lower() not in ("host", "content-length")
        }
        step: dict[str, Any] | None = None
        if request.path.endswith("/chat/completions"):
            body = json.loads(raw)
            step = {"after_s": round(pause_s, 2), "turn": self._turn(newest_words(body))}
            step["headers"] = {key: request.headers[key] for key in HEADERS if key in request.headers}
            step["body"] = brief(body)
            self.steps.append(step)
        async with self._http.request(
            request.method, self._proxy.url + request.raw_path, data=raw, headers=headers
        ) as upstream:
            response = web.StreamResponse(status=upstream.status)
            response.headers["content-type"] = upstream.headers.get("content-type", "text/plain")
            await response.prepare(request)
            async for piece in upstream.content.iter_any():
                await response.write(piece)
            if step is not None:
                self._ended = time.time()
                await self._note(step, upstream.headers.get("x-rl-completion-id"), began)
        with contextlib.suppress(ConnectionResetError):  # a client that has read the end is gone
            await response.write_eof()
        return response

    def _turn(self, words: str) -> str:
        text = words.rstrip()
        if re.search(r"(?:/rl |rl:)\w+[^\n]*$", text) and any(text.endswith(typed) for typed in self._typed):
            return "command"
        bare_text = text.removesuffix("</user_input>")
        typed = any(
            text.startswith(words) or (bare_text.endswith(words) and len(bare_text) < END_LENGTH)
            for words in self._typed
        )
        return "main" if typed else "side"

    async def _note(self, step: dict[str, Any], id: str | None, began: float) -> None:
        if id is None:  # a command
            return
        completion = await self._proxy.store.completions.get(id)
        if completion is not None and completion.end is not None and completion.end.reply is not None:
            step["reply"] = brief_message({"role": "assistant", **json.loads(completion.end.reply.body)})
            step["rule"] = f"{completion.new.turn} {completion.new.turn_rule}"


def packed(steps: list[dict[str, Any]]) -> str:
    """The same with each message and each list of tools once, a line each."""
    parts: dict[str, int] = {}

    def number(part: Any) -> int:
        return parts.setdefault(json.dumps(part, ensure_ascii=False), len(parts))

    lines = []
    for step in steps:
        body = {**step["body"], "messages": [number(message) for message in step["body"]["messages"]]}
        if "tools" in body:
            body["tools"] = number([tool["function"]["name"] for tool in body["tools"]])
        lines.append(json.dumps({**step, "body": body}, ensure_ascii=False))
    return '{"parts": [\n' + ",\n".join(parts) + '\n],\n"steps": [\n' + ",\n".join(lines) + "\n]}\n"


def unpacked(text: str) -> list[dict[str, Any]]:
    file = json.loads(text)
    parts, steps = file["parts"], file["steps"]
    for step in steps:
        body = step["body"]
        body["messages"] = [parts[number] for number in body["messages"]]
        if "tools" in body:
            body["tools"] = [tool_named(name) for name in parts[body["tools"]]]
    return list(steps)


def tool_named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {}}}


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
        yield


async def record(port: int, typed: list[str]) -> list[dict[str, Any]]:
    backend = FakeBackend()
    await backend.start()
    backend.script, backend.letter, backend.wants = script, True, wants
    with tempfile.TemporaryDirectory() as home:
        proxy = Proxy(Path(home), backend, FakeLauncher())
        await proxy.start()
        async with aiohttp.ClientSession(auto_decompress=False) as http:
            recorder = Recorder(proxy, http, typed)
            app = web.Application(client_max_size=2**27)
            app.router.add_route("*", "/{tail:.*}", recorder.forward)
            runner = web.AppRunner(app)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", port).start()
            print(f"http://127.0.0.1:{port}/v1", flush=True)
            with interrupts():
                await asyncio.Event().wait()
            await runner.cleanup()
        await proxy.stop()
        await backend.stop()
    return recorder.steps


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.clients.record", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("file", type=Path)
    parser.add_argument("--typed", nargs="*", default=[])
    arguments = parser.parse_args()
    steps = asyncio.run(record(arguments.port, arguments.typed))
    arguments.file.write_text(packed(steps), encoding="utf-8")


if __name__ == "__main__":
    main()
