"""A server's chat answer with every reply in the one form that renderers read.

Owns the other forms that servers send. Content may be a list of parts, and a spoken answer has a transcript. A call may
be the one `function_call` of old, or have its arguments as an object. Each becomes texts and tool calls. Choices of a
stream may lack a sound number, or have a message for a delta. Odd members of a whole answer are left out before it is
given up. Captures fold what the server sent, not this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from proxy.core.json_edit import dumps
from proxy.dialects.chat_form import choice_number, delta_of, reasoning_of, reply_parts

_OTHER_FORMS: Final = ("function_call", "audio")
_TEXTS: Final = ("content", "refusal", "reasoning", "reasoning_content")
_MEMBERS: Final = frozenset((*_TEXTS, *_OTHER_FORMS, "tool_calls"))  # of a delta, which are read here or said again
_COUNTS: Final = ("prompt_tokens", "completion_tokens", "total_tokens")


class SoundChunks:
    """Chunks of one stream with a number and a delta in each choice."""

    def __init__(self, n: int) -> None:
        """`n`: how many choices were asked for."""
        self._n = n
        self._started_choices: set[int] = set()  # choices of which something has come

    def sound(self, chunk: Mapping[str, Any]) -> Mapping[str, Any]:
        """Without what is not what its name says: one odd member ends no stream, and the capture has marked it."""
        choices = chunk.get("choices")
        pairs = enumerate(choices if isinstance(choices, list) else ())
        sound_choices = [self._sound(choice, place) for place, choice in pairs if isinstance(choice, Mapping)]
        return {**chunk, "choices": sound_choices}

    def _sound(self, choice: Mapping[str, Any], place: int) -> Mapping[str, Any]:
        number, delta, message = choice_number(choice, place, self._n), choice.get("delta"), choice.get("message")
        if not delta and isinstance(message, Mapping) and number not in self._started_choices:
            choice, delta = {**choice, "delta": delta_of(message)}, message
        if isinstance(delta, Mapping) and any(value for key, value in delta.items() if key != "role"):
            self._started_choices.add(number)
        return {**(choice if _is_sound(choice) else _sound_piece(choice)), "index": number}


def _is_sound(choice: Mapping[str, Any]) -> bool:
    """Tell whether each member of a piece is what its name says: nearly all are."""
    delta, reason, logprobs = choice.get("delta"), choice.get("finish_reason"), choice.get("logprobs")
    if not isinstance(delta, dict | None) or not isinstance(reason, str | None):
        return False
    return (logprobs is None or _are_logprobs(logprobs)) and all(_is_member(*item) for item in (delta or {}).items())


def _is_member(name: str, value: Any) -> bool:
    if value is None or name not in _MEMBERS:
        return True
    if name == "tool_calls":
        return isinstance(value, list) and all(map(_is_piece_of_call, value))
    if name == "function_call":
        return _is_piece_of_call({"function": value})
    if name == "audio":
        return isinstance(value, Mapping) and isinstance(value.get("transcript"), str | None)
    return isinstance(value, str) or (name == "content" and isinstance(value, list))


def _is_piece_of_call(call: Any) -> bool:
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping | None):
        return False
    function = call.get("function") or {}
    names = (call.get("id"), function.get("name"))
    return (
        all(isinstance(name, str | None) for name in names)
        and isinstance(call.get("index"), int | None)
        and isinstance(function.get("arguments"), str | dict | None)
    )


def _are_logprobs(logprobs: Any) -> bool:
    entries = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    return isinstance(logprobs, Mapping) and (
        entries is None or (isinstance(entries, list) and all(map(_is_whole_entry, entries)))
    )


def _is_whole_entry(entry: Any) -> bool:
    return (
        _is_entry(entry)
        and isinstance(entry.get("token"), str)
        and isinstance(alternatives := entry.get("top_logprobs"), list | None)
        and all(_is_entry(token) and isinstance(token.get("token"), str) for token in alternatives or ())
    )


def _sound_piece(choice: Mapping[str, Any]) -> dict[str, Any]:
    delta, reason, logprobs = choice.get("delta"), choice.get("finish_reason"), choice.get("logprobs")
    members = {name: value for name, value in delta.items() if _is_member(name, value)} if _is_object(delta) else {}
    if _is_object(delta) and isinstance(calls := delta.get("tool_calls"), list):
        members["tool_calls"] = [call for call in calls if _is_piece_of_call(call)]
    return {
        **choice,
        "delta": members,
        "finish_reason": reason if isinstance(reason, str) else None,
        "logprobs": logprobs if _are_logprobs(logprobs) else None,
    }


def _is_object(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)


def plain_answer(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """A chunk or a whole answer; the same object where every reply is in that form already."""
    choices = body.get("choices") or ()
    if all(_is_plain(_message(choice)) for choice in choices):
        return body
    return {**body, "choices": [_plain_choice(choice) for choice in choices]}


def sound_answer(body: Mapping[str, Any]) -> dict[str, Any]:
    """A whole answer without the members that are not what their names say. Raises KeyError, TypeError, AttributeError
    where that leaves no answer. Where its reason to finish is not a text, the likeliest one
    takes its place: the answer is whole."""
    usage = body.get("usage")
    counts = isinstance(usage, Mapping) and all(type(usage.get(name, 0)) is int for name in _COUNTS)
    choices = [_sound_choice(choice, place) for place, choice in enumerate(body["choices"])]
    return {**body, "choices": choices, "usage": usage if counts else None}


def _sound_choice(choice: Mapping[str, Any], place: int) -> dict[str, Any]:
    index, reason, logprobs = choice.get("index"), choice.get("finish_reason"), choice.get("logprobs")
    entries = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    message = _sound_message(choice["message"])
    return {
        "index": index if type(index) is int else place,
        "message": message,
        "finish_reason": reason if isinstance(reason, str) else "tool_calls" if message["tool_calls"] else "stop",
        "logprobs": logprobs if isinstance(entries, list) and all(map(_is_entry, entries)) else None,
    }


def _sound_message(message: Mapping[str, Any]) -> dict[str, Any]:
    sound = {name: value for name, value in message.items() if name not in _TEXTS or isinstance(value, (str, list))}
    calls = message.get("tool_calls")
    sound["tool_calls"] = [_sound_call(call) for call in calls if _is_call(call)] if isinstance(calls, list) else []
    if not isinstance(message.get("audio"), Mapping):
        sound.pop("audio", None)
    if not _is_call({"function": message.get("function_call")}):
        sound.pop("function_call", None)
    return sound


def _sound_call(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = _arguments(call)
    text = arguments if isinstance(arguments, str) else dumps(arguments or {}).decode()
    return {**call, "function": {**call["function"], "arguments": text}}


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, Mapping) and type(entry.get("logprob")) in (int, float)


def _message(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    return choice.get("delta") or choice.get("message") or {}


def _is_plain(message: Mapping[str, Any]) -> bool:
    if type(message.get("content")) is list or any(message.get(member) for member in _OTHER_FORMS):
        return False
    calls = message.get("tool_calls")
    return not calls or not any(isinstance(_arguments(call), Mapping) for call in calls)


def _plain_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    member = "delta" if choice.get("delta") else "message"
    return {**choice, member: _plain_message(_message(choice))}


def _plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Pictures and sounds among the parts are left out: no other format has a place for a model's."""
    content = message.get("content")
    text, thinking, refusal, _ = reply_parts(content) if isinstance(content, list) else (content or "", "", "", [])
    texts = {
        "content": text + ((message.get("audio") or {}).get("transcript") or ""),
        "reasoning_content": thinking + reasoning_of(message),
        "refusal": refusal + (message.get("refusal") or ""),
    }
    plain = {key: value for key, value in message.items() if key not in (*_OTHER_FORMS, "reasoning", "tool_calls")}
    plain |= {member: text for member, text in texts.items() if text or member in plain}
    if calls := _calls(message):
        plain["tool_calls"] = calls
    return plain


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    if calls := message.get("tool_calls"):
        return [_plain_call(call) for call in calls]
    function = message.get("function_call")
    return [_plain_call({"index": 0, "type": "function", "function": function})] if function else []


def _plain_call(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = _arguments(call)
    if not isinstance(arguments, Mapping):
        return dict(call)
    return {**call, "function": {**call["function"], "arguments": dumps(arguments).decode()}}


def _arguments(call: Mapping[str, Any]) -> Any:
    return (call.get("function") or {}).get("arguments")
