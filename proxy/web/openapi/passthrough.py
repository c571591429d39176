"""The formats that are relayed, as far as rlproxy reads them: every other member goes to the backend as it came.

Owns the members that we look at, not the formats: those are in their makers' documents. An answer is the backend's.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from proxy.dialects.fields import MAX_CHOICES
from proxy.web.openapi.shapes import RequestShape


class _Relayed(RequestShape):
    model_config = ConfigDict(extra="allow")


class _Sampled(_Relayed):
    model: str | None = Field(None, description="`MODEL@base` and `MODEL@vN` pin a version; default: what is served.")
    stream: bool | None = None
    user: Any = Field(None, description="Who asks, where a text.")
    session_id: Any = Field(None, description="The session, where a text; also in `metadata`.")
    metadata: Any = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None


class _Choices(_Sampled):
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    return_token_ids: Any = None
    stream_options: Any = None


class MessageBody(_Relayed):
    role: str
    content: Any = None


class ChatRequestBody(_Choices):
    messages: list[MessageBody] = Field(min_length=1)
    tools: Any = None
    logprobs: Any = None


class CompletionRequest(_Choices):
    prompt: str | list[str] | list[int] | list[list[int]]
    echo: Any = None
    logprobs: float | None = None


class ResponsesRequest(_Sampled):
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = Field(
        None, description="The id of a captured answer; the backend gets its messages."
    )
    include: list[Any] | None = None
    tools: list[dict[str, Any]] | None = None


class MessagesRequest(_Sampled):
    messages: list[MessageBody] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None


class OllamaOptions(_Relayed):
    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    min_p: float | None = None


class _Ollama(_Relayed):
    model: str | None = None
    stream: bool | None = Field(None, description="True where it is missing.")
    options: OllamaOptions | None = None
    logprobs: Any = None
    tools: list[dict[str, Any]] | None = None


class OllamaChatRequest(_Ollama):
    messages: list[MessageBody] | None = None


class OllamaGenerateRequest(_Ollama):
    prompt: str | None = None
    system: str | None = None
    images: list[Any] | None = None


class ModelEntry(_Relayed):
    id: str


class ModelList(_Relayed):
    object: Literal["list"]
    data: list[ModelEntry]


class TokenCount(_Relayed):
    input_tokens: int


class Relayed(_Relayed):
    """A JSON object of the backend's, with our `id` and the model that was asked for."""


class RelayedError(_Relayed):
    """An error in the shape of the route's own format, ours and the backend's alike."""
