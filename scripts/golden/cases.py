"""The requests of the golden corpus: the same dozen questions in every wire format.

Owns the cases and their names. What the model answers to them is in `model`, who is asked in `record`.
"""

from __future__ import annotations

import json
from typing import Any, Final

from scripts.golden.model import AFTER_TOOL, ANSWERS, RAW, TOOLS

ROUTES: Final = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "ollama": "/api/chat",
    "ollama-generate": "/api/generate",
}
_WITH_TOOLS: Final = ("tool", "tools", "reasoned-tool", "after-tool")
_LIMIT: Final = 70
_NEARLY_GREEDY: Final = {"temperature": 0.01}  # vLLM refuses two greedy answers

Body = dict[str, Any]


def _chat() -> dict[str, Body]:
    def ask(messages: Any, **options: Any) -> Body:
        return {"messages": messages, "temperature": 0, "seed": 1, "max_tokens": _LIMIT, **options}

    usage = {"stream_options": {"include_usage": True}}
    messages_by_name: dict[str, Any] = {
        name: [{"role": "user", "content": question}] for name, (question, _) in ANSWERS.items()
    }
    messages_by_name["after-tool"] = AFTER_TOOL[0]
    cases = {name: ask(messages, **usage, **_tools(name, TOOLS)) for name, messages in messages_by_name.items()}
    return cases | {
        "no-usage": ask(messages_by_name["text"]),
        "length": ask(messages_by_name["text"], **usage) | {"max_tokens": 5},
        "stop": ask(messages_by_name["text"], stop=["help"], **usage),
        "choices": ask(messages_by_name["text"], n=2, **usage) | _NEARLY_GREEDY,
        "logprobs": ask(messages_by_name["text"], logprobs=True, top_logprobs=1, **usage),
        "logprobs-unicode": ask(messages_by_name["unicode"], logprobs=True, top_logprobs=1, **usage),
        "logprobs-tool": ask(messages_by_name["tool"], logprobs=True, top_logprobs=1, tools=TOOLS, **usage),
    }


def _completions() -> dict[str, Body]:
    usage = {"stream_options": {"include_usage": True}}
    ask = {"prompt": RAW[0], "temperature": 0, "seed": 1, "max_tokens": _LIMIT}
    return {
        "text": ask | usage,
        "no-usage": ask,
        "length": ask | usage | {"max_tokens": 4},
        "stop": ask | usage | {"stop": ["slept"]},
        "echo": ask | usage | {"echo": True},
        "choices": ask | usage | {"n": 2} | _NEARLY_GREEDY,
        "logprobs": ask | usage | {"logprobs": 1},
    }


def _responses() -> dict[str, Body]:
    ask: Body = {"temperature": 0, "seed": 1, "max_output_tokens": _LIMIT, "store": False}
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    cases = {name: ask | {"input": question} | _tools(name, tools) for name, (question, _) in ANSWERS.items()}
    question, call, answer = AFTER_TOOL[0]
    items = [
        {"type": "message", "role": "user", "content": question["content"]},
        {"type": "function_call", "call_id": "call_1", **call["tool_calls"][0]["function"]},
        {"type": "function_call_output", "call_id": "call_1", "output": answer["content"]},
    ]
    return cases | {
        "after-tool": ask | {"input": items, "tools": tools},
        "length": ask | {"input": ANSWERS["text"][0], "max_output_tokens": 5},
        "logprobs": ask | {"input": ANSWERS["text"][0], "include": ["message.output_text.logprobs"]},
    }


def _messages() -> dict[str, Body]:
    ask: Body = {"temperature": 0, "max_tokens": _LIMIT}
    tools = [
        {
            "name": tool["function"]["name"],
            "description": tool["function"]["description"],
            "input_schema": tool["function"]["parameters"],
        }
        for tool in TOOLS
    ]
    messages_by_name: dict[str, Any] = {
        name: [{"role": "user", "content": question}] for name, (question, _) in ANSWERS.items()
    }
    question, call, answer = AFTER_TOOL[0]
    function = call["tool_calls"][0]["function"]
    use = {"type": "tool_use", "id": "call_1", "name": function["name"], "input": json.loads(function["arguments"])}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": answer["content"]}
    messages_by_name["after-tool"] = [
        question,
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    cases = {name: ask | {"messages": messages} | _tools(name, tools) for name, messages in messages_by_name.items()}
    return cases | {
        "length": ask | {"messages": messages_by_name["text"], "max_tokens": 5},
        "stop": ask | {"messages": messages_by_name["text"], "stop_sequences": ["help"]},
    }


def _ollama() -> dict[str, Body]:
    ask = {"options": {"temperature": 0, "seed": 1, "num_predict": _LIMIT}}
    return {
        name: ask | {"messages": [{"role": "user", "content": question}]} | _tools(name, TOOLS)
        for name, (question, _) in ANSWERS.items()
    }


def _tools(name: str, tools: list[Any]) -> Body:
    return {"tools": tools} if name in _WITH_TOOLS else {}


CASES: Final[dict[str, dict[str, Body]]] = {
    "chat": _chat(),
    "completions": _completions(),
    "responses": _responses(),
    "messages": _messages(),
    "ollama": _ollama(),
    "ollama-generate": {"text": {"prompt": ANSWERS["text"][0], "options": {"temperature": 0, "seed": 1}}},
}
