"""Every shape that rlproxy itself says, asked for one after the other.

Owns the list: dialects, whole and streamed, with tools, log-probs, `n`, stops, cuts, refusals, and errors; its own
routes. The server behind it has chat completions alone, so that all else is rlproxy's word. Not here: what is sound
(published, schemas).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import aiohttp

from scripts.fakes.backend import FakeBackend
from scripts.suites.published import Kind

SAY: Final = "one two three"
SCHEMA: Final[Mapping[str, Any]] = {"type": "object", "properties": {"said": {"type": "string"}}}
ANTHROPIC: Final = {"anthropic-version": "2023-06-01"}


@dataclass(frozen=True)
class Format:
    """A dialect as this list asks it."""

    name: str
    path: str
    whole: Kind
    piece: Kind
    error: Kind
    body: Mapping[str, Any]
    cases: Mapping[str, Mapping[str, Any]]  # members of a request, by the name of the case
    headers: Mapping[str, str] = field(default_factory=dict)
    is_native: bool = False  # the backend has it: only what rlproxy says in its place is asked for


def _messages(text: str = SAY) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


_FUNCTION: Final = {"name": "look", "parameters": SCHEMA}
_TOOL: Final = {"type": "function", "function": _FUNCTION}
_LOGPROBS: Final = ["message.output_text.logprobs"]

FORMATS: Final = (
    Format(
        "chat", "/v1/chat/completions", "chat", "chat chunk", "openai error", {"messages": _messages()},
        {"command": {"messages": _messages("/rl status")}}, is_native=True,
    ),
    Format(
        "completions", "/v1/completions", "completion", "completion chunk", "openai error", {"prompt": SAY},
        {"logprobs": {"logprobs": 2}, "n": {"n": 2}, "stop": {"stop": "three"}, "cut": {"max_tokens": 2},
         "echo": {"echo": True}, "usage": {"stream_options": {"include_usage": True}},
         "command": {"prompt": "/rl status"}},
    ),
    Format(
        "responses", "/v1/responses", "response", "response event", "openai error", {"input": SAY},
        {"tools": {"tools": [{"type": "function", **_FUNCTION}]},
         "forced": {"tools": [{"type": "function", **_FUNCTION}], "tool_choice": {"type": "function", "name": "look"}},
         "custom tool": {"tools": [{"type": "custom", "name": "look"}]},
         "logprobs": {"include": _LOGPROBS, "top_logprobs": 2}, "cut": {"max_output_tokens": 2},
         "schema": {"text": {"format": {"type": "json_schema", "name": "said", "schema": SCHEMA}}},
         "verbosity": {"text": {"verbosity": "low"}}, "effort": {"reasoning": {"effort": "low"}},
         "metadata": {"metadata": {"a": "b"}, "store": False, "instructions": "Be brief.", "user": "ann"},
         "command": {"input": "/rl status"}},
    ),
    Format(
        "messages", "/v1/messages", "message", "message event", "anthropic error",
        {"messages": _messages(), "max_tokens": 99},
        {"tools": {"tools": [{"name": "look", "input_schema": SCHEMA}]}, "stop": {"stop_sequences": ["three"]},
         "cut": {"max_tokens": 2}, "thinking": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
         "schema": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
         "command": {"messages": _messages("/rl status")}},
        ANTHROPIC,
    ),
    Format(
        "ollama", "/api/chat", "ollama chat", "ollama chat", "ollama error", {"messages": _messages()},
        {"tools": {"tools": [_TOOL]}, "logprobs": {"logprobs": True, "top_logprobs": 2},
         "stop": {"options": {"stop": ["three"]}}, "cut": {"options": {"num_predict": 2}}, "thinking": {"think": True},
         "schema": {"format": SCHEMA}, "command": {"messages": _messages("/rl status")}, "load": {"messages": []}},
    ),
    Format(
        "ollama-generate", "/api/generate", "ollama generate", "ollama generate", "ollama error", {"prompt": SAY},
        {"logprobs": {"logprobs": True}, "cut": {"options": {"num_predict": 2}}, "thinking": {"think": True},
         "schema": {"format": SCHEMA}, "command": {"prompt": "/rl status"}, "load": {"prompt": ""}},
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """One body or event that rlproxy said."""

    dialect: str
    case: str
    kind: Kind
    body: Any


@dataclass
class Asker:
    """Asks a running rlproxy, before a backend that is told how to answer."""

    http: aiohttp.ClientSession
    backend: FakeBackend

    async def all(self) -> AsyncIterator[Shape]:
        for format_ in FORMATS:
            async for shape in self.answers(format_):
                yield shape
            async for shape in self.errors(format_):
                yield shape
        for routes in (self.responses, self.lists, self.ollama_lists):
            async for shape in routes():
                yield shape

    async def answers(self, format_: Format) -> AsyncIterator[Shape]:
        """Each case, whole and streamed; then what only the backend decides."""
        plain: Mapping[str, Mapping[str, Any]] = {} if format_.is_native else {"plain": {}}
        for case, members in {**plain, **format_.cases}.items():
            self.backend.wants = ("look", {"said": "here"}) if {"tools", "forced", "custom tool"} & {case} else None
            self.backend.logprob_ids = case == "logprobs"
            async for shape in self._both(format_, case, members):
                yield shape
        self.backend.wants, self.backend.logprob_ids = None, False
        for case, change in _BACKEND.items():
            change(self.backend, True)
            async for shape in self._both(format_, case, {}):
                if not format_.is_native or (case == "cut off" and shape.kind == format_.error):
                    yield shape
            change(self.backend, False)

    async def _both(self, format_: Format, case: str, members: Mapping[str, Any]) -> AsyncIterator[Shape]:
        for streams in (False, True):
            body = {"model": "fake", **format_.body, **members, "stream": streams}
            if not streams:
                body.pop("stream_options", None)
            if case == "cut off" and not streams:
                continue
            async with self.http.post(format_.path, json=body, headers=format_.headers) as response:
                raw = await response.read()
                name = f"{case}, {'streamed' if streams else 'whole'}"
                if response.status != 200:
                    yield Shape(format_.name, name, format_.error, json.loads(raw))
                    continue
                for piece in _pieces(raw, response.content_type):
                    yield Shape(format_.name, name, _kind(format_, piece, streams), piece)

    async def errors(self, format_: Format) -> AsyncIterator[Shape]:
        """Errors of the request, of the backend, and of rlproxy."""
        body = {"model": "fake", **format_.body}
        cases: dict[str, tuple[Any, dict[str, str]]] = {
            "not JSON": (b"{", {}),
            "not an object": (b"[]", {}),
            "no model": (json.dumps({**body, "model": "other"}).encode(), {}),
            "odd stream": (json.dumps({**body, "stream": "yes"}).encode(), {}),
            "odd id": (json.dumps(body).encode(), {"x-rl-completion-id": "#"}),
            "compressed": (b"x", {"content-encoding": "zip"}),
        }
        if not format_.is_native:
            cases["no prompt"] = (json.dumps({"model": "fake"}).encode(), {})
        for case, (raw, headers) in cases.items():
            async for shape in self._error(format_, case, raw, headers):
                yield shape
        for mood in ("no-http",) if format_.is_native else ("error", "bad-json", "no-http"):
            self.backend.mood = mood
            async for shape in self._error(format_, f"backend: {mood}", json.dumps(body).encode(), {}):
                yield shape
        self.backend.mood = "well"

    async def _error(self, format_: Format, case: str, raw: bytes, headers: Mapping[str, str]) -> AsyncIterator[Shape]:
        sent = {"content-type": "application/json", **format_.headers, **headers}
        async with self.http.post(format_.path, data=raw, headers=sent) as response:
            answer = await response.read()
            if response.status != 200:  # Ollama loads a model without a prompt
                yield Shape(format_.name, f"error: {case}", format_.error, json.loads(answer))

    async def responses(self) -> AsyncIterator[Shape]:
        """Responses by their ids: got, streamed again, cancelled, deleted, and their items."""
        calls: dict[str, Mapping[str, Any]] = {
            "plain": {},
            "cut": {"max_output_tokens": 2},
            "tools": {"tools": [{"type": "function", **_FUNCTION}]},
        }
        for case, members in calls.items():
            self.backend.wants = ("look", {"said": "here"}) if case == "tools" else None
            async with self.http.post("/v1/responses", json={"model": "fake", "input": SAY, **members}) as response:
                id = (await response.json())["id"]
            path = f"/v1/responses/{id}"
            for name, method, target, kind in (
                ("got", "GET", path, "response"),
                ("streamed again", "GET", f"{path}?stream=true", "response event"),
                ("streamed from 2 on", "GET", f"{path}?stream=true&starting_after=2", "response event"),
                ("its items", "GET", f"{path}/input_items", "response items"),
                ("cancelled", "POST", f"{path}/cancel", "openai error"),
                ("deleted", "DELETE", path, "deleted response"),
                ("got when deleted", "GET", path, "openai error"),
                ("items when deleted", "GET", f"{path}/input_items", "openai error"),
                ("cancelled when deleted", "POST", f"{path}/cancel", "openai error"),
            ):
                async with self.http.request(method, target) as response:
                    raw = await response.read()
                    for piece in _pieces(raw, response.content_type):
                        yield Shape("responses", f"{name}: {case}", cast(Kind, kind), piece)
        self.backend.wants = None

    async def lists(self) -> AsyncIterator[Shape]:
        for name, headers in (("openai", {}), ("anthropic", ANTHROPIC)):
            dialect = "chat" if name == "openai" else "messages"
            for path, kind in (
                ("/v1/models", f"{name} models"),
                ("/v1/models/fake", f"{name} model"),
                ("/v1/models/fake@base", f"{name} model"),
                ("/v1/models/other", f"{name} error"),
            ):
                async with self.http.get(path, headers=headers) as response:
                    yield Shape(dialect, f"GET {path}", cast(Kind, kind), await response.json())
        path = "/v1/messages/count_tokens"
        async with self.http.post(path, json={"model": "fake", "messages": _messages()}, headers=ANTHROPIC) as response:
            kind = "token count" if response.status == 200 else "anthropic error"
            yield Shape("messages", path, cast(Kind, kind), await response.json())

    async def ollama_lists(self) -> AsyncIterator[Shape]:
        for path, kind in (("/api/tags", "tags"), ("/api/ps", "ps"), ("/api/version", "version")):
            async with self.http.get(path) as response:
                yield Shape("ollama", path, cast(Kind, kind), await response.json())
        for name, kind in (("fake", "show"), ("fake@base", "show"), ("other", "ollama error")):
            async with self.http.post("/api/show", json={"model": name}) as response:
                yield Shape("ollama", f"/api/show {name}", cast(Kind, kind), await response.json())


def _refusing(backend: FakeBackend, on: bool) -> None:
    backend.refuses = "I would rather not." if on else None


def _thinking(backend: FakeBackend, on: bool) -> None:
    backend.thinks = on


def _mood(mood: str) -> Callable[[FakeBackend, bool], None]:
    def change(backend: FakeBackend, on: bool) -> None:
        backend.mood = mood if on else "well"

    return change


_BACKEND: Final[Mapping[str, Callable[[FakeBackend, bool], None]]] = {
    "refusal": _refusing,
    "thoughts": _thinking,
    "cut off": _mood("cut"),
    "error in its stream": _mood("error-event"),
}


def _pieces(raw: bytes, content_type: str) -> list[Any]:
    """The JSON of an answer, or of each event or line of it."""
    if content_type == "application/json":
        return [json.loads(raw)]
    lines = raw.splitlines()
    if content_type == "text/event-stream":
        lines = [line.removeprefix(b"data:").strip() for line in lines if line.startswith(b"data:")]
    return [json.loads(line) for line in lines if line.strip() not in (b"", b"[DONE]")]


def _kind(format_: Format, piece: Mapping[str, Any], streams: bool) -> Kind:
    """An error in a stream has the shape of its dialect's events or errors."""
    if not streams:
        return format_.whole
    if format_.piece == "response event":
        return format_.piece
    return format_.error if "error" in piece else format_.piece
