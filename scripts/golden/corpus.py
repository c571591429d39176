"""The golden corpus as tests read it, and what a whole answer says, read apart from `proxy.dialects`.

Owns the files under tests/golden and a second, plain reading of each format. The answer that rlproxy captures from a
stream is compared with this reading of the server's own whole answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parents[2] / "tests/golden"
NOT_ASKED = {"ollama-main"}  # recorded with `logprobs` too, which rlproxy does not ask of it yet


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    cuts: tuple[int, ...]  # of a stream: the sizes of the server's own chunks

    @property
    def pieces(self) -> list[bytes]:
        chunks, position = [], 0
        for size in self.cuts:
            chunks.append(self.body[position : position + size])
            position += size
        assert position == len(self.body) or not self.cuts
        return chunks or [self.body]

    def id(self, dialect: str) -> bytes:
        """The id that the server gave this answer; Ollama's have none, and what cannot be there stands for it."""
        if dialect.startswith("ollama"):
            return b"\0"
        first = next(line for line in self.body.split(b"\n") if b"{" in line)
        event = json.loads(first[first.index(b"{") :])
        event = event.get("response") or event.get("message") or event
        return str(event["id"]).encode()


@dataclass(frozen=True)
class Case:
    server: str
    dialect: str
    name: str
    route: str
    request: dict[str, Any]
    answers: dict[tuple[str, str], Answer]  # (plain | asked, stream | whole)

    @property
    def id(self) -> str:
        return f"{self.server}-{self.dialect}-{self.name}"

    def best(self, kind: str) -> Answer:
        """The answer to what rlproxy really sends: with its own wishes, where the server takes any."""
        exact_answer = None if self.server in NOT_ASKED else self.answers.get(("asked", kind))
        return exact_answer if exact_answer is not None and exact_answer.status == 200 else self.answers["plain", kind]

    def choices(self) -> list[Choice]:
        """Read the server's whole answer, without the prompt that its client wanted to be repeated."""
        choices = _READERS[self.dialect](json.loads(self.best("whole").body))
        if self.request.get("echo"):
            for choice in choices:
                choice.text = choice.text.removeprefix(self.request["prompt"])
        return choices


@cache
def cases(root: str = "") -> tuple[Case, ...]:
    """Server, dialect, case. `written`, one folder deeper, was made by hand after documentation: no recordings."""
    return tuple(_case(file) for file in sorted((GOLDEN / root).glob("*/*/*.json")))


def recordings() -> tuple[Case, ...]:
    return cases()


def written() -> tuple[Case, ...]:
    return cases("written")


def servers() -> list[dict[str, str]]:
    return [json.loads(file.read_text()) for file in sorted(GOLDEN.glob("*/server.json"))]


def _case(file: Path) -> Case:
    recording = json.loads(file.read_text(encoding="utf-8"))
    answers = {
        (way, kind): Answer(a["status"], a["headers"], a["body"].encode(), tuple(map(int, a.get("cuts", "").split())))
        for way in ("plain", "asked")
        for kind, a in recording.get(way, {}).items()
    }
    return Case(file.parts[-3], file.parts[-2], file.stem, recording["route"], recording["request"], answers)


# What a whole answer says


@dataclass
class Choice:
    """One choice."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, Any], ...] = ()  # name and arguments
    finish: str | None = None
    usage: tuple[int, int] | None = None
    prompt_ids: list[int] | None = None
    ids: list[int] | None = None
    logprobs: list[float] | None = None


def _chat(body: dict[str, Any]) -> list[Choice]:
    return [
        Choice(
            text=c["message"].get("content") or c["message"].get("refusal") or "",
            reasoning=c["message"].get("reasoning_content") or c["message"].get("reasoning") or "",
            calls=tuple(_call(t["function"]) for t in c["message"].get("tool_calls") or ()),
            finish=c["finish_reason"],
            usage=(body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]),
            prompt_ids=body.get("prompt_token_ids"),
            ids=c.get("token_ids"),
            logprobs=[e["logprob"] for e in c["logprobs"]["content"]] if c.get("logprobs") else None,
        )
        for c in body["choices"]
    ]


def _completions(body: dict[str, Any]) -> list[Choice]:
    return [
        Choice(
            text=c["text"],
            finish=c["finish_reason"],
            usage=(body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]),
            prompt_ids=c.get("prompt_token_ids"),
            ids=c.get("token_ids"),
            # With `echo`, those of the prompt come first; where there are ids, they are the answer's only.
            logprobs=_old_logprobs(c.get("logprobs"), len(c.get("token_ids") or ())),
        )
        for c in body["choices"]
    ]


def _old_logprobs(logprobs: dict[str, Any] | None, last: int) -> list[float] | None:
    """llama.cpp sends the new form here, too."""
    if not logprobs:
        return None
    return [e["logprob"] for e in logprobs["content"]] if "content" in logprobs else logprobs["token_logprobs"][-last:]


def _responses(body: dict[str, Any]) -> list[Choice]:
    choice = Choice(usage=(body["usage"]["input_tokens"], body["usage"]["output_tokens"]))
    for item in body["output"]:
        if item["type"] == "message":
            choice.text += "".join(part["text"] for part in item["content"])
            for part in item["content"]:
                if part.get("logprobs"):
                    choice.logprobs = (choice.logprobs or []) + [e["logprob"] for e in part["logprobs"]]
        elif item["type"] == "reasoning":
            choice.reasoning += "".join(part["text"] for part in item.get("content") or item["summary"])
        else:
            choice.calls += (_call(item),)
    complete = "tool_calls" if choice.calls else "stop"
    choice.finish = "length" if body["status"] == "incomplete" else complete
    for name, messages in (("prompt_ids", "input_messages"), ("ids", "output_messages")):
        if body.get(messages) and len(body[messages]) == 1:
            setattr(choice, name, body[messages][0]["tokens"])
    return [choice]


def _messages(body: dict[str, Any]) -> list[Choice]:
    blocks, usage = body["content"] or (), body["usage"]
    read = usage["input_tokens"] + (usage.get("cache_read_input_tokens") or 0)
    reasons = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
    return [
        Choice(
            text="".join(b["text"] for b in blocks if b["type"] == "text"),
            reasoning="".join(b["thinking"] for b in blocks if b["type"] == "thinking"),
            calls=tuple((b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"),
            finish=reasons[body["stop_reason"]],
            usage=(read + (usage.get("cache_creation_input_tokens") or 0), usage["output_tokens"]),
        )
    ]


def _ollama(body: dict[str, Any]) -> list[Choice]:
    message = body["message"] if "message" in body else {**body, "content": body["response"]}
    calls = tuple((c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ())
    return [
        Choice(
            text=message["content"],
            reasoning=message.get("thinking") or "",
            calls=calls,
            finish="tool_calls" if calls and body["done_reason"] == "stop" else body["done_reason"],
            usage=(body["prompt_eval_count"], body["eval_count"]),
            logprobs=[e["logprob"] for e in body["logprobs"]] if body.get("logprobs") else None,
        )
    ]


def _call(function: dict[str, Any]) -> tuple[str, Any]:
    return function["name"], json.loads(function["arguments"])


_READERS = {
    "chat": _chat,
    "completions": _completions,
    "responses": _responses,
    "messages": _messages,
    "ollama": _ollama,
    "ollama-generate": _ollama,
}
