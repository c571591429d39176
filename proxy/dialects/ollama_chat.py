"""Ollama's requests in chat form: the messages, and the whole request for backends that lack the format.

Owns what becomes of images, thinking, tool calls and options. Options that say how a model is loaded (`num_ctx`,
`num_gpu`, …) and `keep_alive` are left out, for another server's model is loaded as its owner wants.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.core.errors import BadRequest
from proxy.dialects.chat_form import content_of, image_part, json_schema, text_part, tool_call
from proxy.dialects.fields import member, objects

# Ollama's names, and those of chat completions.
SAMPLING: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repeat_penalty": "repetition_penalty",
}
_NEUTRAL: Final = {"mirostat": 0, "typical_p": 1, "tfs_z": 1}  # samplers that chat completions do not have
NOT_CHAT: Final = ("raw", "suffix", "template", "context")  # of `/api/generate`: no chat template, or not only it
_IMAGES: Final = {"iVBOR": "png", "/9j/": "jpeg", "UklGR": "webp", "R0lGOD": "gif"}  # how their base64 begins


def chat_message(message: Mapping[str, Any], within: str = "") -> dict[str, Any]:
    """One message of `/api/chat`, from a client or the model. Calls are numbered; whose result a tool's message is
    shows only in the whole conversation."""
    text = member(message, "content", str, "", within=within)
    parts = [text_part(text)] if text else []
    parts += [image_part(_image(str(data))) for data in member(message, "images", list, [], within=within)]
    converted: dict[str, Any] = {"role": message.get("role"), "content": content_of(parts)}
    if thinking := member(message, "thinking", str, "", within=within):
        converted["reasoning_content"] = thinking
    if calls := objects(message, "tool_calls", within=within):
        functions: list[dict[str, Any]] = [member(call, "function", dict, {}, within=within) for call in calls]
        converted["tool_calls"] = [
            tool_call(_number(i), str(f.get("name") or ""), f.get("arguments") or {}) for i, f in enumerate(functions)
        ]
    if name := message.get("tool_name") or (message.get("name") if message.get("role") == "tool" else None):
        converted["name"] = name
    return converted


def chat_messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The conversation of `/api/chat`. A tool's message names the call it answers: the first of its name that is still
    open, else the first open one."""
    messages: list[dict[str, Any]] = []
    unanswered = _OpenCalls(())
    for i, item in enumerate(objects(body, "messages")):
        message = chat_message(item, f"messages[{i}].")
        if message["role"] == "assistant":
            unanswered = _OpenCalls(message.get("tool_calls", ()))
        elif message["role"] == "tool" and (id := unanswered.next(message.get("name"))) is not None:
            message["tool_call_id"] = id
        messages.append(message)
    return messages


class _OpenCalls:
    """The calls of one message that are still open; each is looked at once, however many there are."""

    def __init__(self, calls: Sequence[Mapping[str, Any]]) -> None:
        self._open = {call["id"] for call in calls}
        self._all = deque(call["id"] for call in calls)
        self._ids_by_name: dict[str, deque[str]] = {}
        for call in calls:
            self._ids_by_name.setdefault(call["function"]["name"], deque()).append(call["id"])

    def next(self, name: Any) -> str | None:
        """The id of the call that this result answers."""
        calls = self._ids_by_name.get(name) if isinstance(name, str) else None
        for ids in (calls, self._all):
            while ids:
                if (id := ids.popleft()) in self._open:  # else it has its result
                    self._open.remove(id)
                    return id
        return None


def prompt_messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A prompt of `/api/generate`, with the system text before it."""
    prompt, system = member(body, "prompt", str, ""), member(body, "system", str, "")
    message = chat_message({"role": "user", "content": prompt, "images": body.get("images")})
    return [{"role": "system", "content": system}, message] if system else [message]


def chat_request(body: Mapping[str, Any], messages: list[dict[str, Any]], *, stream: bool) -> dict[str, Any]:
    """Raises BadRequest for what chat completions cannot say."""
    options = member(body, "options", dict, {})
    _refuse(body, options)
    request: dict[str, Any] = {"model": body.get("model"), "messages": messages, **_sampling(options)}
    if stream:
        request |= {"stream": True, "stream_options": {"include_usage": True}}
    if tools := objects(body, "tools"):
        request["tools"] = tools
    if body.get("logprobs"):
        request |= {"logprobs": True, "top_logprobs": member(body, "top_logprobs", int, 0)}
    form = body.get("format")
    if form == "json":
        request["response_format"] = {"type": "json_object"}
    elif isinstance(form, dict):
        request["response_format"] = json_schema(form)
    think = body.get("think")
    if (kwargs := template_kwargs(body)) is not None:
        request["chat_template_kwargs"] = kwargs
    elif isinstance(think, str):
        request["reasoning_effort"] = "high" if think == "max" else think
    return request


def template_kwargs(body: Mapping[str, Any]) -> dict[str, Any] | None:
    return {"enable_thinking": False} if body.get("think") is False else None  # vLLM, SGLang, llama.cpp and MLX take it


def _sampling(options: Mapping[str, Any]) -> dict[str, Any]:
    sampling = {chat: options[option] for option, chat in SAMPLING.items() if options.get(option) is not None}
    if (limit := member(options, "num_predict", int, -1, within="options.")) > 0:  # -1 and -2: no limit of its own
        sampling["max_tokens"] = limit
    for key in ("seed", "stop"):
        if options.get(key) is not None:
            sampling[key] = options[key]
    return sampling


def _refuse(body: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    for key in NOT_CHAT:
        if body.get(key):
            raise _cannot(key)
    for key, neutral in _NEUTRAL.items():
        if options.get(key, neutral) not in (None, neutral):
            raise _cannot(f"options.{key}")


def _cannot(location: str) -> BadRequest:
    return BadRequest(
        f"This backend speaks chat completions, which cannot say `{location}`; nothing was sent to it.", param=location
    )


def _number(i: int) -> str:
    """Nine letters and digits: Mistral's templates take nothing else."""
    return f"call{i:05}"


def _image(data: str) -> str:
    kind = next((kind for start, kind in _IMAGES.items() if data.startswith(start)), "png")
    return f"data:image/{kind};base64,{data}"
