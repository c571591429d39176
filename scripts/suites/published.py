"""Bodies against the types of the published packages, strictly.

Owns which type belongs to which shape, and the exceptions. A body is sound where strict pydantic takes it, and where it
has no member that the type does not know. The types of `openai` are made of OpenAI's own OpenAPI document.
Not here: that document itself, which is only validated against where it can be had (schemas).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

import anthropic.types as anthropic
import ollama
from openai.pagination import SyncPage
from openai.types import Completion, CompletionChoice, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import CompactedResponse, Response, ResponseStreamEvent
from openai.types.responses.response_item_list import ResponseItemList
from openai.types.shared import ErrorObject
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

Kind = Literal[
    "chat", "chat chunk", "completion", "completion chunk", "response", "response event", "response items",
    "compaction", "deleted response", "message", "message event", "token count", "ollama chat", "ollama generate",
    "openai models", "openai model", "anthropic models", "anthropic model", "tags", "ps", "show", "version",
    "openai error", "anthropic error", "ollama error",
]  # fmt: skip


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OpenAIError(_Closed):
    """`ErrorResponse` of OpenAI's document, whose type the package has for what is inside alone."""

    error: ErrorObject


class _ChunkChoice(CompletionChoice):
    finish_reason: Literal["stop", "length", "content_filter"] | None  # type: ignore[assignment]


class CompletionChunk(Completion):
    """OpenAI's document has one type for whole and streamed; a stream's reason is null until its end."""

    choices: list[_ChunkChoice]  # type: ignore[assignment]


class DeletedResponse(_Closed):
    """The package returns nothing here; OpenAI's example has these members."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class OllamaError(_Closed):
    """The package reads `error` alone."""

    error: str


class OllamaVersion(_Closed):
    """The package has no type for it."""

    version: str


class AnthropicModels(_Closed):
    """The page that the package reads by."""

    data: list[anthropic.ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


TYPES: Final[Mapping[Kind, Any]] = {
    "chat": ChatCompletion,
    "chat chunk": ChatCompletionChunk,
    "completion": Completion,
    "completion chunk": CompletionChunk,
    "response": Response,
    "response event": ResponseStreamEvent,
    "response items": ResponseItemList,
    "compaction": CompactedResponse,
    "deleted response": DeletedResponse,
    "message": anthropic.Message,
    "message event": anthropic.RawMessageStreamEvent,
    "token count": anthropic.MessageTokensCount,
    "ollama chat": ollama.ChatResponse,
    "ollama generate": ollama.GenerateResponse,
    "openai models": SyncPage[Model],
    "openai model": Model,
    "anthropic models": AnthropicModels,
    "anthropic model": anthropic.ModelInfo,
    "tags": ollama.ListResponse,
    "ps": ollama.ProcessResponse,
    "show": ollama.ShowResponse,
    "version": OllamaVersion,
    "openai error": OpenAIError,
    "anthropic error": anthropic.ErrorResponse,
    "ollama error": OllamaError,
}

# Where a type is stricter or poorer than the API's own examples: the place, and the reason.
_EXAMPLE: Final = "OpenAI's own examples have it"
_OPEN: Final = "Open Responses requires it"
_GO: Final = "Ollama's own api/types.go has it, and its server sends it"
EXCEPTIONS: Final[Mapping[tuple[Kind, str], str]] = {
    ("response", "store"): _EXAMPLE,
    ("response", "frequency_penalty"): _OPEN,
    ("response", "presence_penalty"): _OPEN,
    ("response", "output[].status"): "CustomToolCallResource of OpenAI's document requires it",
    ("response event", "response.store"): _EXAMPLE,
    ("response event", "response.frequency_penalty"): _OPEN,
    ("response event", "response.presence_penalty"): _OPEN,
    ("response event", "response.output[].status"): "CustomToolCallResource of OpenAI's document requires it",
    ("response event", "item.status"): "CustomToolCallResource of OpenAI's document requires it",
    ("response event", "name"): "OpenAI's document requires it of response.function_call_arguments.done",
    ("response event", "logprobs[].bytes"): _OPEN,
    ("openai models", "data[].parent"): "vLLM's member, which tells a version's model",
    ("openai model", "parent"): "vLLM's member, which tells a version's model",
    ("ollama chat", "message.tool_calls[].id"): _GO,
    ("ollama chat", "message.tool_calls[].function.index"): _GO,
    ("ollama chat", "logprobs[].bytes"): _GO,
    ("ollama generate", "logprobs[].bytes"): _GO,
    ("tags", "models[].name"): _GO,
    ("tags", "models[].capabilities"): _GO,
}


class Fault(NamedTuple):
    place: str
    reason: str


def faults(kind: Kind, body: Any) -> list[Fault]:
    """Faults of a parsed body, without the exceptions."""
    return [fault for fault in all_faults(kind, body) if (kind, fault.place) not in EXCEPTIONS]


def all_faults(kind: Kind, body: Any) -> Iterator[Fault]:
    type_ = _event_type(TYPES[kind], body) if kind.endswith("event") else TYPES[kind]
    if type_ is None:
        yield Fault("type", f"no event is called {body.get('type')!r}")
        return
    try:
        checked = _adapter(type_).validate_json(json.dumps(body), strict=True)
    except ValidationError as error:
        for problem in error.errors(include_url=False, include_context=False):
            yield Fault(_place(problem["loc"]), problem["msg"])
    else:
        yield from _unknown(checked, body, "")


def _place(parts: Sequence[int | str]) -> str:
    place = ""
    for part in parts:
        place += "[]" if isinstance(part, int) else f".{part}" if place else part
    return place


@cache
def _adapter(type_: Any) -> TypeAdapter[Any]:
    return TypeAdapter(type_)


@cache
def _events(union: Any) -> Mapping[str, Any]:
    """The types of a union of events by their name, so that a fault is one line and not one for each of them."""
    types = [type_ for type_ in get_args(get_args(union)[0]) if get_origin(type_) is None]
    return {name: type_ for type_ in types for name in get_args(type_.model_fields["type"].annotation)}


def _event_type(union: Any, body: Mapping[str, Any]) -> Any:
    return _events(union).get(str(body.get("type")))


def _unknown(checked: Any, body: Any, place: str) -> Iterator[Fault]:
    """Members that the type does not know, at any depth."""
    if isinstance(checked, BaseModel) and isinstance(body, Mapping):
        fields = {field.alias or name: name for name, field in type(checked).model_fields.items()}
        for member, value in body.items():
            path = f"{place}.{member}" if place else member
            if member not in fields:
                yield Fault(path, f"not a member of {type(checked).__name__}")
            else:
                yield from _unknown(getattr(checked, fields[member]), value, path)
    elif isinstance(checked, Sequence) and isinstance(body, Sequence) and not isinstance(body, str):
        for part, value in zip(checked, body, strict=False):
            yield from _unknown(part, value, f"{place}[]")
