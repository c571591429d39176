"""The chat wire format as vLLM speaks it: a request body in, the bodies of answers and stream chunks out.

Owns field names, types, limits and the shape of errors. A field that would change what is sampled, and that this server
does not have, is refused by name. Any other unknown field is ignored, as vLLM does. Not here: routes (http_api),
generation (engine).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from trainer.serve.engine import Delta

T = TypeVar("T", bound=BaseModel)

MAX_CHOICES = 8
MAX_LIKELIEST = 20  # vLLM's default limit
MAX_STOPS, MAX_STOP = 64, 1000  # stop strings, and characters of one: each token of each reply is compared with all
TYPES = {400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError", 415: "UnsupportedMediaTypeError"}


class WireError(Exception):
    """A request that cannot be answered: a status, one sentence, and the field at fault."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param

    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "InternalServerError" if self.status >= 500 else "InvalidRequestError")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.status}}


def _neutral_only(*neutral: Any) -> AfterValidator:
    def check(value: Any) -> Any:
        if value is not None and value not in neutral:
            raise ValueError(f"this server does not have it; leave it out or send {json.dumps(neutral[0])}")
        return value

    return AfterValidator(check)


def _check_stops(value: str | list[str] | None) -> str | list[str] | None:
    if value == "" or (isinstance(value, list) and "" in value):
        raise ValueError("a stop string is empty")
    stops = [value] if isinstance(value, str) else value or []
    if len(stops) > MAX_STOPS or any(len(stop) > MAX_STOP for stop in stops):
        raise ValueError(f"at most {MAX_STOPS} stop strings of {MAX_STOP} characters are taken")
    return value


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool | None = False


class ChatRequest(BaseModel):
    model_config = ConfigDict(strict=True, protected_namespaces=())

    model: str | None = None
    messages: list[dict[str, Any]] = Field(min_length=1)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    seed: int | None = None
    stop: Annotated[str | list[str] | None, AfterValidator(_check_stops)] = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    n: int | None = Field(default=1, ge=1, le=MAX_CHOICES)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Annotated[str | dict[str, Any] | None, _neutral_only("auto", "none")] = None
    logprobs: bool | None = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LIKELIEST)
    return_token_ids: bool | None = False
    ignore_eos: bool | None = False
    chat_template_kwargs: dict[str, Any] | None = None

    # What vLLM has and this server does not.
    min_p: Annotated[float | None, _neutral_only(0)] = None
    presence_penalty: Annotated[float | None, _neutral_only(0)] = None
    frequency_penalty: Annotated[float | None, _neutral_only(0)] = None
    repetition_penalty: Annotated[float | None, _neutral_only(1)] = None
    logit_bias: Annotated[dict[str, float] | None, _neutral_only({})] = None
    response_format: Annotated[dict[str, Any] | None, _neutral_only({"type": "text"})] = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


def parse(body: bytes) -> ChatRequest:
    request = _validate(ChatRequest, body)
    if request.top_logprobs and not request.logprobs:
        raise WireError(400, "top_logprobs needs logprobs to be true.", "top_logprobs")
    return request


class AdapterRequest(BaseModel):
    model_config = ConfigDict(strict=True)

    lora_name: str = Field(min_length=1)
    lora_path: str = ""


def parse_adapter(body: bytes) -> AdapterRequest:
    return _validate(AdapterRequest, body)


def _validate(kind: type[T], body: bytes) -> T:
    try:
        return kind.model_validate(json_object(body))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        # A union reports one error for each of its types; the field is what the caller can act on.
        param = ".".join(str(part) for part in first["loc"] if not _names_a_type(part))
        raise WireError(400, f"{param}: {first['msg']}", param) from None


def _names_a_type(part: int | str) -> bool:
    return isinstance(part, str) and (part == "str" or "[" in part)


def json_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WireError(400, f"The body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise WireError(400, "The body is not a JSON object.")
    return value


def template_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as chat templates expect them: content is a string, arguments of tool calls are objects."""
    return [_template_message(message, f"messages.{n}") for n, message in enumerate(messages)]


def _template_message(message: Mapping[str, Any], location: str) -> dict[str, Any]:
    if not isinstance(message.get("role"), str):
        raise WireError(400, f"{location}.role: a string is required", f"{location}.role")
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(_text_part(part, f"{location}.content.{n}") for n, part in enumerate(content))  # as vLLM
    if content is not None and not isinstance(content, str):
        raise WireError(400, f"{location}.content: a string or a list of parts is required", f"{location}.content")
    plain = {**message, "content": content or ""}
    if calls := message.get("tool_calls"):
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise WireError(400, f"{location}.tool_calls: a list of objects is required", f"{location}.tool_calls")
        plain["tool_calls"] = [_with_object_arguments(call) for call in calls]
    return plain


def _text_part(part: Any, location: str) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    raise WireError(400, f"{location}: only text parts are understood by this model", location)


def _with_object_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if isinstance(function, dict) and isinstance(function.get("arguments"), str):
        try:
            return {**call, "function": {**function, "arguments": json.loads(function["arguments"] or "{}")}}
        except (ValueError, RecursionError):
            return call  # what a model wrote need not be JSON; the template gets it as it is
    return call


class WireAnswer:
    """The bodies of one answer, whole or in chunks."""

    def __init__(self, request: ChatRequest, tokenizer: Any, prompt: Sequence[int], head: Mapping[str, Any]) -> None:
        self.request, self.prompt = request, list(prompt)
        self._tokenizer = tokenizer
        self._head = head  # id, created, model

    def opening(self) -> dict[str, Any]:
        choices = [
            {"index": n, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
            for n in range(self.request.n or 1)
        ]
        return self._with_prompt_ids(self._chunk(choices))

    def delta(self, index: int, delta: Delta) -> dict[str, Any]:
        choice = {
            "index": index,
            "delta": {"content": delta.text},
            "logprobs": self._logprobs([delta]),
            "finish_reason": delta.finish,
        }
        if delta.finish:
            choice["stop_reason"] = delta.stopped_by
        if self.request.return_token_ids:
            choice["token_ids"] = [delta.token]
        return self._chunk([choice])

    def closing(self, tokens: int) -> dict[str, Any]:
        return {**self._chunk([]), "usage": self._usage(tokens)}

    def whole(self, replies: Sequence[Sequence[Delta]]) -> dict[str, Any]:
        return self._with_prompt_ids(
            {
                **self._head,
                "object": "chat.completion",
                "choices": [self._choice(n, deltas) for n, deltas in enumerate(replies)],
                "usage": self._usage(sum(map(len, replies))),
            }
        )

    def _choice(self, index: int, deltas: Sequence[Delta]) -> dict[str, Any]:
        choice = {
            "index": index,
            "message": {"role": "assistant", "content": "".join(delta.text for delta in deltas)},
            "logprobs": self._logprobs(deltas),
            "finish_reason": deltas[-1].finish,
            "stop_reason": deltas[-1].stopped_by,
        }
        if self.request.return_token_ids:
            choice["token_ids"] = [delta.token for delta in deltas]
        return choice

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk", "choices": choices}

    def _with_prompt_ids(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "prompt_token_ids": self.prompt} if self.request.return_token_ids else body

    def _usage(self, tokens: int) -> dict[str, int]:
        prompt = len(self.prompt)
        return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}

    def _logprobs(self, deltas: Sequence[Delta]) -> dict[str, Any] | None:
        if not self.request.logprobs:
            return None
        return {
            "content": [
                {
                    **self._token(delta.token, delta.logprob),
                    "top_logprobs": [self._token(token, logprob) for token, logprob in delta.likeliest],
                }
                for delta in deltas
            ]
        }

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text: str = self._tokenizer.decode([token])
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
