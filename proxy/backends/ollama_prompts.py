"""A prompt as a request to Ollama, so that it renders it as it did when it was asked.

Owns what becomes of messages in chat form there. Ollama's routes differ. Chat completions make a message of each part
of a message. `/api/generate` and `/v1/completions` put a prompt into the chat template, and only its own routes take
`num_ctx`. In a rendered prompt `[img-N]` stands for a picture (Ollama's server/prompt.go). Not here: sending it
(ollama), the way back (dialects).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from proxy.backends.base import Prompt, RenderedPrompt
from proxy.dialects.chat_form import arguments_of, reasoning_of
from proxy.images.parts import count_images, image_urls, is_inline

PICTURE_MARKER: Final = "[img]"
_NUMBERED: Final = re.compile(r"\[img-[0-9]+\]")
MAX_TOKENS: Final = 1  # token, at most, should it answer all the same


def ollama_request(prompt: Prompt) -> tuple[str, dict[str, Any]]:
    """The route and the request."""
    if prompt.dialect == "chat":
        return "/v1/chat/completions", {**prompt.chat(), "max_tokens": MAX_TOKENS}
    request, kwargs = prompt.request, prompt.template_kwargs or {}
    options = request.get("options") if prompt.dialect.startswith("ollama") else None
    body: dict[str, Any] = {"options": {**(options if isinstance(options, dict) else {}), "num_predict": MAX_TOKENS}}
    think = request.get("think", kwargs.get("enable_thinking"))
    if think is None and isinstance(thinking := request.get("thinking"), dict):  # of Messages
        think = thinking.get("type") == "enabled" or None
    if think is not None:
        body["think"] = think
    if prompt.dialect in ("ollama-generate", "completions") and prompt.text is not None:
        system = [m.get("content") for m in prompt.messages[:-1] if m.get("role") == "system"]
        return "/api/generate", {"prompt": prompt.text, **({"system": system[0]} if system else {}), **body}
    tools = {"tools": prompt.tools} if prompt.tools else {}
    return "/api/chat", {"messages": [native_message(m) for m in prompt.messages], **tools, **body}


def rendered_prompt(text: str, prompt: Prompt) -> RenderedPrompt:
    """Read Ollama's rendering: it numbers the pictures, and here each has one marker."""
    if not any(map(count_images, prompt.messages)):
        return RenderedPrompt(text, None)
    return RenderedPrompt(_NUMBERED.sub(PICTURE_MARKER, text), None, PICTURE_MARKER)


def native_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message in chat form as `/api/chat` takes it."""
    converted: dict[str, Any] = {"role": message.get("role"), "content": _text(message.get("content"))}
    if pictures := [url.partition(",")[2] for url in image_urls(message) if url is not None and is_inline(url)]:
        converted["images"] = pictures
    if thinking := reasoning_of(message):
        converted["thinking"] = thinking
    if calls := message.get("tool_calls"):
        functions = [call.get("function") or {} for call in calls]
        converted["tool_calls"] = [
            {"function": {"name": f.get("name"), "arguments": arguments_of(f.get("arguments") or "")}}
            for f in functions
        ]
    if message.get("role") == "tool":
        converted |= {
            member: message[key]
            for member, key in (("tool_name", "name"), ("tool_call_id", "tool_call_id"))
            if message.get(key)
        }
    return converted


def _text(content: Any) -> str:
    """Ollama's own conversions join the texts of a message without anything between."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""
