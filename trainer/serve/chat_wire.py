"""The chat wire format as vLLM speaks it: a request body in, the bodies of answers and stream chunks out.

Owns field names, types, limits and the shape of errors. A field that would change what is sampled, and that this server
does not have, is refused by name. Any other unknown field is ignored, as vLLM does. Not here: routes (http_api),
what a reply may be (reply_forms), generation (engine).
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from trainer.lessons.captured_tokens import bytes_of
from trainer.serve.engine import Delta
from trainer.serve.reply_forms import CallForm, CallPiece, CallReader, ReplyForm

T = TypeVar("T", bound=BaseModel)

MAX_CHOICES = 8
MAX_LIKELIEST = 20  # vLLM's default limit
MAX_STOPS, MAX_STOP = 64, 1000  # stop strings, and characters of one: each token of each reply is compared with all
MAX_BIAS = 100.0
# OpenAI's words for what is wrong with a member, by pydantic's.
CODES: Final = {
    "missing": "missing_required_parameter",
    "less_than_equal": "above_max_value",
    "greater_than_equal": "below_min_value",
    "greater_than": "below_min_value",
    "too_short": "empty_array",
    "finite_number": "invalid_value",
    "value_error": "invalid_value",
}
PICTURE_PARTS: Final = ("image_url", "image", "input_image")
NO_SIGHT: Final = (
    "this server does not see pictures: {}. Send text alone, or serve a model that sees with llama.cpp (an mmproj "
    "beside it) or vLLM"
)
NO_DATA: Final = "a picture is taken as a `data:` URL in base64: nothing is fetched from elsewhere"
TYPES = {400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError", 415: "UnsupportedMediaTypeError"}


class WireError(Exception):
    """A request that cannot be answered: a status, one sentence, and the field at fault."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "InternalServerError" if self.status >= 500 else "InvalidRequestError")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


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


def _check_bias(value: dict[str, float] | None) -> dict[str, float] | None:
    for token, bias in (value or {}).items():
        if not token.isdecimal() or not -MAX_BIAS <= bias <= MAX_BIAS:
            raise ValueError(f"token ids with numbers from -{MAX_BIAS:.0f} to {MAX_BIAS:.0f} are required")
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
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    seed: int | None = None
    stop: Annotated[str | list[str] | None, AfterValidator(_check_stops)] = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    n: int | None = Field(default=1, ge=1, le=MAX_CHOICES)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    presence_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    logit_bias: Annotated[dict[str, float] | None, AfterValidator(_check_bias)] = None
    logprobs: bool | None = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LIKELIEST)
    return_token_ids: bool | None = False
    ignore_eos: bool | None = False
    chat_template_kwargs: dict[str, Any] | None = None

    # What vLLM has and this server does not.
    min_p: Annotated[float | None, _neutral_only(0)] = None
    repetition_penalty: Annotated[float | None, _neutral_only(1)] = None

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
        code = CODES.get(first["type"], "invalid_type" if first["type"].endswith("_type") else "invalid_value")
        if code in ("above_max_value", "below_min_value"):
            code = f"{'integer' if isinstance(first.get('input'), int) else 'decimal'}_{code}"
        raise WireError(400, f"{param}: {first['msg']}", param, code) from None


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


def template_messages(messages: Sequence[Mapping[str, Any]], blind: str | None = "") -> list[dict[str, Any]]:
    """Messages as chat templates expect them: content is a string, arguments of tool calls are objects. A content with
    pictures is a list of parts. `blind`: why pictures are refused, or None."""
    return [_template_message(message, f"messages.{n}", blind) for n, message in enumerate(messages)]


def pictures_in(messages: Sequence[Mapping[str, Any]], most: int) -> list[bytes]:
    """The pictures of these messages, in their order; of what has another form nothing is said here."""
    places = [
        (part, f"messages.{n}.content.{m}")
        for n, message in enumerate(messages)
        if isinstance(content := message.get("content"), list)
        for m, part in enumerate(content)
        if _is_picture(part)
    ]
    if len(places) > most:
        raise WireError(400, f"messages: {len(places)} pictures, and at most {most} are taken", "messages")
    return [_picture(part, location) for part, location in places]


def has_pictures(messages: Sequence[Mapping[str, Any]]) -> bool:
    contents = (message.get("content") for message in messages)
    return any(_is_picture(part) for content in contents if isinstance(content, list) for part in content)


def _is_picture(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in PICTURE_PARTS


def _picture(part: Mapping[str, Any], location: str) -> bytes:
    member = part.get("image_url")
    url = member.get("url") if isinstance(member, dict) else member
    head, _, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    if not head.startswith("data:") or not head.endswith(";base64"):
        raise WireError(400, f"{location}: {NO_DATA}", location, "invalid_image_url")
    try:
        return base64.b64decode(data, validate=True)
    except ValueError:
        raise WireError(400, f"{location}: its base64 cannot be read", location, "invalid_base64_image") from None


def _template_message(message: Mapping[str, Any], location: str, blind: str | None) -> dict[str, Any]:
    if not isinstance(message.get("role"), str):
        raise WireError(400, f"{location}.role: a string is required", f"{location}.role")
    content = message.get("content")
    if isinstance(content, list):
        parts = [_part(part, f"{location}.content.{n}", blind) for n, part in enumerate(content)]
        has_pictures = any("text" not in part for part in parts)
        content = parts if has_pictures else "\n".join(part["text"] for part in parts)  # as vLLM
    elif content is not None and not isinstance(content, str):
        raise WireError(400, f"{location}.content: a string or a list of parts is required", f"{location}.content")
    plain = {**message, "content": content or ""}
    if calls := message.get("tool_calls"):
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise WireError(400, f"{location}.tool_calls: a list of objects is required", f"{location}.tool_calls")
        plain["tool_calls"] = [_with_object_arguments(call) for call in calls]
    return plain


def _part(part: Any, location: str, blind: str | None) -> dict[str, str]:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if not _is_picture(part):
        raise WireError(400, f"{location}: only text parts are understood by this model", location)
    if blind is not None:
        raise WireError(400, f"{location}: {NO_SIGHT.format(blind)}", location, "image_not_supported")
    return {"type": "image"}


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

    def __init__(
        self,
        request: ChatRequest,
        tokenizer: Any,
        prompt: Sequence[int],
        head: Mapping[str, Any],
        form: ReplyForm | None = None,
        calls: CallForm = CallForm(),  # noqa: B008 (frozen)
    ) -> None:
        self.request, self.prompt = request, list(prompt)
        self._tokenizer = tokenizer
        self._head = head  # id, created, model
        self._form = form
        # One call a choice, where the reply is one.
        self._readers = [CallReader(calls) for _ in range(request.n or 1)]
        self._call_ids = [f"call_{uuid.uuid4().hex[:24]}" for _ in self._readers]

    def opening(self) -> dict[str, Any]:
        start = {"role": "assistant", "content": None if self._is_call else "", "refusal": None}
        choices = [
            {"index": n, "delta": start, "logprobs": None, "finish_reason": None} for n in range(self.request.n or 1)
        ]
        return self._with_prompt_ids(self._chunk(choices))

    def delta(self, index: int, delta: Delta) -> dict[str, Any]:
        choice = {
            "index": index,
            "delta": self._call_delta(index, delta) if self._is_call else {"content": delta.text},
            "logprobs": self._logprobs([delta]),
            "finish_reason": self._finish(delta),
        }
        if delta.finish:
            choice["stop_reason"] = delta.stopped_by
        return self._chunk([choice | self._numbers([delta])])

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
        text = "".join(delta.text for delta in deltas)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if self._is_call and (piece := self._readers[index].push(text, last=True)) is not None:
            message |= {"content": None, "tool_calls": [self._call(index, piece)]}
        choice = {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(deltas),
            "finish_reason": self._finish(deltas[-1]),
            "stop_reason": deltas[-1].stopped_by,
        }
        return choice | self._numbers(deltas)

    @property
    def _is_call(self) -> bool:
        return self._form is not None and self._form.call_finish is not None

    def _finish(self, delta: Delta) -> str | None:
        if self._form is not None and self._form.call_finish is not None and delta.finish == "stop":
            return self._form.call_finish
        return delta.finish

    def _call_delta(self, index: int, delta: Delta) -> dict[str, Any]:
        piece = self._readers[index].push(delta.text, last=delta.finish is not None)
        return {} if piece is None else {"tool_calls": [{"index": 0, **self._call(index, piece)}]}

    def _call(self, index: int, piece: CallPiece) -> dict[str, Any]:
        if piece.name is None:
            return {"function": {"arguments": piece.arguments}}
        function = {"name": piece.name, "arguments": piece.arguments}
        return {"id": self._call_ids[index], "type": "function", "function": function}

    def _numbers(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        """Ids for those who ask; of a constrained reply also its log-probs without the constraint."""
        if not self.request.return_token_ids:
            return {}
        numbers: dict[str, Any] = {"token_ids": [delta.token for delta in deltas]}
        if self._form is not None:
            numbers["unconstrained_logprobs"] = [delta.unconstrained for delta in deltas]
        return numbers

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
            ],
            "refusal": None,
        }

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text, piece = _text_and_bytes(self._tokenizer, token)
        return {"token": text, "logprob": logprob, "bytes": list(piece)}


@lru_cache(maxsize=1 << 16)
def _text_and_bytes(tokenizer: Any, token: int) -> tuple[str, bytes]:
    """Half a character decodes to U+FFFD; its bytes are its own."""
    text: str = tokenizer.decode([token])
    return text, bytes_of(tokenizer, [token])[0] or text.encode()
