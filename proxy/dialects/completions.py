"""OpenAI legacy completions: `POST /v1/completions`, raw text in and out, streamed and whole.

Owns this wire format, with vLLM's `token_ids` and `prompt_token_ids` on each choice. In chat form a prompt is one user
message: enough to find it again. It says nothing of how the model saw it, so a completion of raw text trains on its
exact token ids or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import orjson

from proxy.core import sse
from proxy.core.errors import BadRequest, NoPrompt, ProxyError, Unreadable
from proxy.core.sse import Event
from proxy.core.upstream import error_in
from proxy.dialects import token_entries
from proxy.dialects.base import Dialect, Fold, ParsedRequest, Renderer, Reply, extend, join_pieces
from proxy.dialects.chat import SAMPLING, choice_rules
from proxy.dialects.chat_form import a_text, choice_number, words_of
from proxy.dialects.fields import MAX_CHOICES, an_object, count, flag, member, numbers

MAX_TOKENS = 16  # what a request gets that names no limit; chat completions have none
# What goes to chat completions under the same name. Anything unknown does too.
_NOT_CHAT = ("prompt", "echo", "suffix", "best_of", "logprobs", "max_tokens")
# A program asks for these: an editor for what goes between two pieces of a file, an evaluation for the prompt's scores.
_NOT_TYPED = (("suffix", ""), ("echo", False), ("best_of", 1))

EMBEDS = "prompt_embeds"  # vLLM's: what the model reads in place of a text, or before it

Prompt = str | list[int]


class Completions(Dialect):
    name: ClassVar[str] = "completions"
    marks: ClassVar[tuple[bytes, ...]] = (b"[DONE]",)
    paths: ClassVar[tuple[str, ...]] = ("/v1/completions",)
    carriers: ClassVar[tuple[str, ...]] = ("prompt", EMBEDS)
    is_prompt: ClassVar[bool] = True

    def __init__(self, echoed: Sequence[Prompt] = (), n: int = 1) -> None:
        self._echoed, self._n = echoed, n  # what each choice repeats, for one request that wants that

    def of(self, body: Any) -> Dialect:
        return Completions(_prompts(body), count(body)) if body.get("echo") else self

    def bends(self, body: Mapping[str, Any]) -> bool:
        return bool(body.get("echo"))  # vLLM 0.32 leaves the echo out where token ids are asked for

    def parse(self, body: Any) -> ParsedRequest:
        body = an_object(body)
        prompts, embeds = _prompts(body), _embeds(body)
        options = body.get("stream_options")
        n = count(body) * (len(prompts) + embeds)
        if n > MAX_CHOICES:
            raise BadRequest(f"`n` times the number of prompts must be at most {MAX_CHOICES}.", param="n")
        sampling, unclear = numbers(body, SAMPLING)
        return ParsedRequest(
            model=member(body, "model", str, ""),
            messages=[{"role": "user", "content": _content(prompts, embeds)}],
            stream=flag(body, "stream", False),
            n=n,
            sampling=sampling,
            wants_logprobs=_wants_logprobs(body),
            wants_token_ids=body.get("return_token_ids") is True,
            wants_usage=isinstance(options, dict) and options.get("include_usage") is True,
            body=body,
            typed=n == 1
            and not embeds
            and _is_line(prompts[0])
            and all(body.get(k) in (None, plain) for k, plain in _NOT_TYPED),
            untrainable=EMBEDS if embeds else None,
            unclear=unclear,
        )

    def keep(self, body: Any, parsed: ParsedRequest, indices: Sequence[int]) -> dict[str, bytes]:
        return {"prompt": orjson.dumps(body["prompt"])}  # one message: it stays, or there is no request

    def to_chat(self, body: Any, parsed: ParsedRequest) -> dict[str, Any]:
        prompts = _prompts(body)
        if len(prompts) != 1 or not isinstance(prompts[0], str):
            raise _unsaid("several prompts, or token ids as a prompt,", "prompt")
        for key, neutral in (("suffix", ""), ("best_of", 1), (EMBEDS, None)):
            if body.get(key) not in (None, neutral):
                raise _unsaid(f"`{key}`", key)
        chat = {key: value for key, value in body.items() if key not in _NOT_CHAT}
        chat["messages"] = [{"role": "user", "content": prompts[0]}]
        chat["max_tokens"] = body.get("max_tokens", MAX_TOKENS)
        if "stream" in body:
            chat["stream"] = parsed.stream
        if parsed.wants_logprobs:
            chat["logprobs"] = True
            if (top := member(body, "logprobs", int, 0)) > 0:
                chat["top_logprobs"] = top
        return chat

    def renderer(self, *, id: str, parsed: ParsedRequest, created: int) -> Renderer:
        return TextRenderer(id, parsed, created)

    def fold(self, tools: Sequence[Mapping[str, Any]] | None = None, n: int | None = None) -> Fold:
        return TextFold(self._echoed, self._n, is_one=n == 1)

    def terminal(self, event: Event) -> bool:
        return event.says_done

    rules = choice_rules

    def error_event(self, error: ProxyError, last: bytes | None = None) -> bytes:
        return sse.event(orjson.dumps(self.error(error)))


class TextFold(Fold):
    """Whole bodies and chunks alike: a whole body is one chunk with all the text."""

    def __init__(self, echoed: Sequence[Prompt], n: int, *, is_one: bool = False) -> None:
        """`is_one`: one choice was asked for."""
        self.failed: str | None = None
        self._echoed, self._n, self._choices = echoed, n, 1 if is_one else None
        self._replies: dict[int, Reply] = {}
        self._pieces: dict[int, list[str]] = {}
        self._usage: dict[str, Any] | None = None

    def add(self, chunk: Any) -> None:
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk["usage"]
        if (failed := error_in(chunk)) is not None:
            self.failed = failed
        elif not (chunk.keys() & {"choices", "usage"}):
            self.skip(f"an event without choices: {list(chunk)}")
        broken: Exception | None = None
        for i, choice in enumerate(chunk.get("choices") or ()):
            try:
                self._choice(choice, i)
            except (TypeError, AttributeError) as error:
                broken = error
        if broken is not None:
            raise broken

    def _choice(self, choice: Any, place: int) -> None:
        """Raises TypeError and AttributeError where it has no text."""
        index = choice_number(choice, place, self._choices)
        reply = self._replies.setdefault(index, Reply(index))
        pieces = self._pieces.setdefault(index, [])
        reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
        if choice.get("prompt_token_ids") is not None:
            reply.prompt_token_ids = choice["prompt_token_ids"]
        if choice.get("token_ids") is not None:
            token_entries.take_ids(reply, choice["token_ids"])
        if choice.get("logprobs") is not None and reply.broken_logprobs is None:
            self._logprobs(reply, choice["logprobs"])
        pieces.append(a_text(choice.get("text")))

    def _logprobs(self, reply: Reply, logprobs: Any) -> None:
        """With the prompt's before them, where it is echoed: the first token of all has null."""
        try:
            reply.logprobs = extend(reply.logprobs, _token_logprobs(logprobs))
        except (TypeError, KeyError, AttributeError) as error:
            reply.logprobs, reply.broken_logprobs = None, f"the backend sent log-probs that are none ({error!r})"

    def replies(self) -> list[Reply]:
        return [self._finished(self._replies[i]) for i in sorted(self._replies)]

    def _finished(self, reply: Reply) -> Reply:
        """Without the prompt that the client wanted repeated before its answer."""
        text, logprobs = join_pieces(self._pieces[reply.index]), reply.logprobs
        if self._echoed:
            prompt = self._echoed[min(reply.index // self._n, len(self._echoed) - 1)]
            text = text.removeprefix(prompt) if isinstance(prompt, str) else text
            # The prompt's come first; without token ids nobody says how many they are.
            ids = reply.token_ids
            logprobs = logprobs[len(logprobs) - len(ids) :] if logprobs is not None and ids is not None else None
        reply = replace(reply, message={"role": "assistant", "content": text}, usage=self._usage, logprobs=None)
        if logprobs is not None:
            token_entries.take_numbers(reply, logprobs)
        return reply


class TextRenderer(Renderer):
    def __init__(self, id: str, parsed: ParsedRequest, created: int) -> None:
        self._head = {"id": id, "object": "text_completion", "created": created, "model": parsed.model}
        self._parsed = parsed
        self._echo = parsed.messages[0]["content"] if parsed.body.get("echo") else ""
        self._offsets: dict[int, int] = {}  # characters so far, for `text_offset`

    def chunk(self, chunk: Mapping[str, Any]) -> list[bytes]:
        choices = [piece for choice in chunk.get("choices") or () if (piece := self._delta(choice)) is not None]
        body: dict[str, Any] = {**self._head, "choices": choices}
        if self._parsed.wants_usage:
            body["usage"] = chunk.get("usage")
        if not choices and not (self._parsed.wants_usage and chunk.get("usage")):
            return []
        return [sse.event(orjson.dumps(body))]

    def end(self) -> tuple[list[bytes], bytes]:
        return [], sse.event(b"[DONE]")

    def whole(self, body: Mapping[str, Any]) -> bytes:
        choices = [self._choice(choice, words_of(choice["message"])) for choice in body["choices"]]
        return orjson.dumps({**self._head, "choices": choices, "usage": body.get("usage")})

    def _delta(self, choice: Mapping[str, Any]) -> dict[str, Any] | None:
        text = words_of(choice.get("delta") or {})
        nothing = not text and not choice.get("finish_reason") and not choice.get("token_ids")
        return None if nothing else self._choice(choice, text)

    def _choice(self, choice: Mapping[str, Any], text: str) -> dict[str, Any]:
        index = choice.get("index", 0)
        if index not in self._offsets:
            self._offsets[index] = len(self._echo)
            text = self._echo + text
        rendered: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(index, choice) if self._parsed.wants_logprobs else None,
            "finish_reason": choice.get("finish_reason"),
        }
        if self._parsed.wants_token_ids:
            rendered["token_ids"] = choice.get("token_ids")
        return rendered

    def _logprobs(self, index: int, choice: Mapping[str, Any]) -> dict[str, Any] | None:
        entries = (choice.get("logprobs") or {}).get("content")
        if entries is None:
            return None
        offsets = []
        for entry in entries:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(entry["token"])
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": [
                {alternative["token"]: alternative["logprob"] for alternative in entry.get("top_logprobs") or ()}
                for entry in entries
            ],
            "text_offset": offsets,
        }


def _token_logprobs(logprobs: Mapping[str, Any]) -> list[float]:
    """llama.cpp sends them as chat completions have them."""
    if "content" in logprobs:
        return [entry["logprob"] for entry in logprobs["content"] or ()]
    numbers: list[float] = logprobs["token_logprobs"]
    return numbers


def _prompts(body: Mapping[str, Any]) -> list[Prompt]:
    prompt = body.get("prompt")
    if isinstance(prompt, str) or _is_ids(prompt):
        return [prompt]  # type: ignore[list-item]
    if isinstance(prompt, list) and prompt and all(isinstance(p, str) or _is_ids(p) for p in prompt):
        return prompt
    if prompt in (None, []) and _embeds(body):
        return []
    reason = "`prompt` must be a string, token ids, or a list of either."
    raise (NoPrompt if prompt in (None, []) else Unreadable)(reason, param="prompt")


def _wants_logprobs(body: Mapping[str, Any]) -> bool:
    """0 asks for those of the chosen tokens alone. It equals False, which asks for none."""
    logprobs = body.get("logprobs")
    return logprobs is not None and logprobs is not False


def _embeds(body: Mapping[str, Any]) -> int:
    """How many prompts come as embeddings."""
    embeds = body.get(EMBEDS)
    return 0 if embeds is None else len(embeds) if isinstance(embeds, list) else 1


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _is_line(prompt: Prompt) -> bool:
    """A file up to the cursor looks like a prompt, and begins with whatever its author wrote. It has more lines."""
    return isinstance(prompt, str) and len(prompt.strip().splitlines()) <= 1


def _content(prompts: Sequence[Prompt], embeds: int) -> Any:
    if len(prompts) == 1 and isinstance(prompts[0], str) and not embeds:
        return prompts[0]
    parts = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "token_ids", "ids": p} for p in prompts]
    # A list of texts would count as one text: what comes of several prompts must not be found by their sum.
    return [{"type": "prompts", "prompts": [*parts, *[{"type": EMBEDS}] * embeds]}]


def _unsaid(subject: str, param: str) -> BadRequest:
    return BadRequest(
        f"This backend has no /v1/completions, and chat completions cannot say {subject}: send one prompt as text.",
        param=param,
    )
