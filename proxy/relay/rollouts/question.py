"""A captured prompt as it is asked again, and the row of the answer.

Owns what stays of the captured request: its messages, tools, and how it was sampled. It is asked as a chat completion,
whole, with what makes the capture exact. One that was sampled without chance gets a temperature, or all answers would
be the same. Not here: which prompt (store.learning.rollouts), when (sampler).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from proxy.backends.base import Backend, Prompt
from proxy.conversation.as_sent import as_sent
from proxy.conversation.conversations import as_chat, canonical
from proxy.core.json_edit import dumps, loads
from proxy.dialects import CHAT, ParsedRequest, chat_tools, chat_turns, template_kwargs
from proxy.dialects.base import OutgoingRequest
from proxy.relay.codecs import Native
from proxy.relay.context import new_id
from store.captured.completions import ROLLOUTS
from store.records import Completion, NewCompletion

MOST_TOKENS: Final = 1024  # of an answer whose request names no most
# Members of a chat request that are about its client, its stream, or its one answer.
_LEFT_OUT: Final = frozenset((
    "model", "messages", "tools", "chat_template_kwargs", "stream", "stream_options", "n", "seed", "logprobs",
    "top_logprobs", "return_token_ids", "return_tokens_as_token_ids", "user", "metadata", "store", "safety_identifier",
    "prompt_cache_key", "session_id", "service_tier", "background", "request_id", "rid", "best_of",
))  # fmt: skip
_OF_ALL_FORMATS: Final = ("temperature", "top_p")


@dataclass(frozen=True, slots=True)
class RolloutQuestion:
    source: Completion
    body: dict[str, Any]  # without the model, and what is wished for beside it
    parsed: ParsedRequest

    def exact_body(self, backend: Backend) -> dict[str, Any]:
        """The body to send, with what makes the capture exact."""
        outgoing = OutgoingRequest(b"{}", {}, self.body, self.parsed)
        wishes = Native(CHAT, outgoing, backend.capabilities, None, None).asks
        return self.body | {name: loads(value) for name, value in wishes.items()}

    def row(self, backend: Backend, *, served_model: str, version: int) -> NewCompletion:
        """The row of one answer; its session is the episode's id."""
        id, new, served = new_id(), self.source.new, backend.served
        is_as_sent = new.dialect == CHAT.name and not _is_translated(self.source)
        members = {name: value for name, value in self.body.items() if name != "messages"}
        return NewCompletion(
            id=id,
            request_id=id,
            choice=0,
            created_at=time.time(),
            dialect=CHAT.name,
            backend=backend.kind,
            model=new.model,
            served_model=served_model,
            version=version,
            session=f"rollout-{id}",
            user=None,
            turn="side",
            turn_rule=ROLLOUTS,
            streamed=False,
            prompt=tuple(canonical(message) for message in self.parsed.messages),
            request=dumps(members),
            sampling={**served.sampling, **served.by_dialect.get(CHAT.name, {}), **self.parsed.sampling},
            key=ROLLOUTS,
            forms=new.forms if is_as_sent else None,
            line=new.line,
        )


def make_question(source: Completion) -> RolloutQuestion:
    new = source.new
    messages = as_sent([as_chat(message) for message in new.prompt], new.forms)
    is_translated = _is_translated(source)
    if new.dialect != CHAT.name:
        messages = chat_turns(new.dialect, messages)
    variables = template_kwargs(new.dialect, new.request, translated=is_translated)
    prompt = Prompt(messages, chat_tools(new.dialect, new.request), variables)
    body = {**prompt.chat(), **_members(new), "stream": False}
    return RolloutQuestion(source, body, CHAT.parse({"model": new.model, **body}))


def _members(new: NewCompletion) -> Mapping[str, Any]:
    """How its answer is sampled."""
    request: Any = orjson.loads(new.request or b"{}")
    if new.dialect == CHAT.name and isinstance(request, dict):
        members = {name: value for name, value in request.items() if name not in _LEFT_OUT}
    else:
        members = {name: new.sampling[name] for name in _OF_ALL_FORMATS if name in new.sampling}
        members |= _bounds(request) if isinstance(request, dict) else {}
    if not new.sampling.get("temperature", 1.0):
        members["temperature"] = 1.0
    if members.get("max_tokens") is None and members.get("max_completion_tokens") is None:
        members["max_tokens"] = MOST_TOKENS
    return members


def _bounds(request: Mapping[str, Any]) -> dict[str, Any]:
    """Where an answer ends, as messages, Responses and Ollama's format name it."""
    options = request.get("options")
    ollama_options: Mapping[str, Any] = options if isinstance(options, dict) else {}
    bounds: dict[str, Any] = {}
    for limit in (request.get("max_tokens"), request.get("max_output_tokens"), ollama_options.get("num_predict")):
        if type(limit) is int and limit > 0:  # Ollama's -1 is not a bound
            bounds["max_tokens"] = limit
    for stop in (request.get("stop_sequences"), ollama_options.get("stop")):
        if stop:
            bounds["stop"] = stop
    return bounds


def _is_translated(source: Completion) -> bool:
    return source.end is not None and source.end.translated
