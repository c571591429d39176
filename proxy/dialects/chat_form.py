"""Messages, tool calls and usage in chat form: the pieces that dialects translate to and from.

Owns what chat completions call a thing, and what servers call it differently. Which wire format says it how belongs
to the dialects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.core.agent_wrappers import ATTACHED, FAILED, TEXT_PARTS
from proxy.core.json_edit import DEEPEST, dumps, is_deeper, loads_arguments

# Members by which vLLM, SGLang and llama.cpp make an answer follow a form.
_FORMS: Final = frozenset((
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "json_schema", "grammar",
    "regex", "ebnf",
))  # fmt: skip
FOR_PROGRAMS: Final = _FORMS | {"response_format", "tool_choice"}  # a request without any is answered in words
_ONE_TOOL: Final = ("function", "custom", "tool")
_MARK: Final = re.compile(r'["{}\[\]]')  # of JSON, outside of its texts
_TEXT_MARK: Final = re.compile(r'["\\]')  # and in them
_BLANKS: Final = " \t\r\n"


def tool_call(id: str, name: str, arguments: Any) -> dict[str, Any]:
    """`arguments` as an object, or as text where the model wrote no JSON."""
    text = arguments if isinstance(arguments, str) else dumps(arguments).decode()
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


class Calls:
    """Which tool call of a streamed answer a piece belongs to: the place of the call, counted from 0.

    `index` tells. Some servers (Ollama 0.20, Dynamo, adapters for Gemini) give it as 0 for every call, or leave it out.
    There a name with another id begins the next call. Without a name it does not: others (Poolside, mlx-openai-server)
    make up an id for each piece. Nor does the same name, while the arguments are the beginning of an object: some
    servers repeat it with each piece.
    """

    def __init__(self) -> None:
        self._ids: list[Any] = []  # of each call, the newest
        self._names: list[Any] = []  # of each call, the first piece
        self._arguments: list[_Arguments] = []  # of each call
        self._grows: dict[Any, int] = {}  # by index: the call that has had the newest piece
        self._numbers: dict[tuple[Any, Any], int] = {}  # by index and id

    def place(self, piece: Mapping[str, Any]) -> int:
        index, id, function = piece.get("index") or 0, piece.get("id"), piece.get("function") or {}
        name, arguments = function.get("name"), function.get("arguments")
        position = self._numbers.get((index, id), self._grows.get(index))
        if position is None or (
            name and (index, id) not in self._numbers and self._ends(position, id, name, arguments)
        ):
            position = len(self._ids)
            self._ids.append(None)
            self._names.append(None)
            self._arguments.append(_Arguments())
        if id:
            self._ids[position], self._numbers[index, id] = id, position
        if name:
            self._names[position] = self._names[position] or name
        if arguments and isinstance(arguments, str):
            self._arguments[position].add(arguments)
        self._grows[index] = position
        return position

    def _ends(self, position: int, id: Any, name: Any, arguments: Any) -> bool:
        """Tell whether the call at `position` has ended where a piece comes with this name and an id not its own."""
        arguments_so_far = self._arguments[position]
        if id and self._ids[position]:
            return name != self._names[position] or arguments_so_far.are_empty or arguments_so_far.are_object
        begins = isinstance(arguments, str) and arguments.lstrip().startswith("{")
        return not id and not self._ids[position] and begins and arguments_so_far.are_object


class _Arguments:
    """The arguments of a call in pieces. Each is looked at once: a call may come in a hundred thousand of them."""

    def __init__(self) -> None:
        self.are_empty = True
        self.are_object = False  # all of them, as far as they have come
        self._pieces: list[str] = []
        self._depth = 0
        self._in_text = self._is_escaped = self._has_ended = False

    def add(self, piece: str) -> None:
        self.are_empty = False
        if self._has_ended:  # only blanks may follow an object
            self.are_object = self.are_object and not piece.strip(_BLANKS)
            return
        self._pieces.append(piece)
        end = self._end(piece)
        if end < 0:
            return
        self._has_ended = True
        self.are_object = not piece[end:].strip(_BLANKS) and _is_object("".join(self._pieces))
        self._pieces.clear()

    def _end(self, piece: str) -> int:
        """Where the outermost bracket closes; -1 where it does not yet."""
        position = 0
        if self._is_escaped and piece:
            self._is_escaped, position = False, 1
        while (mark := (_TEXT_MARK if self._in_text else _MARK).search(piece, position)) is not None:
            position = mark.end()
            match mark[0]:
                case '"':
                    self._in_text = not self._in_text
                case "\\":
                    self._is_escaped = position == len(piece)
                    position += 1
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if self._depth <= 0:
                        return position
        return -1


def choice_number(choice: Mapping[str, Any], place: int, n: int | None) -> int:
    """The number of a choice that stands at `place` in a piece of a stream. Where one choice was asked for, it is the
    first of each piece, as clients read it. Some servers count the pieces, or number the reasoning by itself."""
    index = choice.get("index")
    return place if n == 1 or type(index) is not int else index


def delta_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as a piece of a stream. Its calls are numbered, which they need not be in a message."""
    delta = dict(message)
    if isinstance(calls := delta.get("tool_calls"), list):
        delta["tool_calls"] = [
            {**call, "index": index} if isinstance(call, Mapping) else call for index, call in enumerate(calls)
        ]
    return delta


def call_name(pieces: Sequence[str], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
    """The name of a streamed call. Most servers send it once, some in fragments, and some whole with every piece.
    `tools`: those of the request, which tell fragments and repetitions apart where both make sense."""
    joined = "".join(pieces)
    if len(pieces) < 2:
        return joined
    names = {_function(tool).get("name") for tool in tools or ()}
    if joined in names:
        return joined
    if offered := [piece for piece in pieces if piece in names]:
        return max(offered, key=len)
    longest = max(pieces, key=len)
    return longest if all(map(longest.startswith, pieces)) else joined


def arguments_piece(value: Any) -> str:
    """A piece of a call's arguments as text; some servers send all of them as an object. Raises TypeError."""
    return dumps(value).decode() if isinstance(value, dict) else a_text(value)


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    return function if isinstance(function, Mapping) else {}


def _is_object(text: str) -> bool:
    try:
        return isinstance(_read(text), dict)
    except ValueError:
        return False


def a_text(piece: Any) -> str:
    """A piece of a text in a stream; nothing where it is null. Raises TypeError."""
    if not isinstance(piece, str | None):
        raise TypeError(f"{type(piece).__name__} where a text should be")
    return piece or ""


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments of a call as an object, for formats that have no place for anything else.

    What a model wrote that is not a JSON object is kept as the one argument `arguments`. The tool refuses it, and the
    model sees why.
    """
    try:
        arguments = _read(text) if text.strip() else {}
    except ValueError:
        arguments = text
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}


def tidy_arguments(text: str) -> str:
    """Streamed arguments as a whole answer has them: without the model's own white space, where they are JSON."""
    try:
        return dumps(_read(text)).decode() if text.strip() else "{}"
    except ValueError:
        return text


def _read(text: str) -> Any:
    """Raises ValueError, also for what is nested too deeply to be written again."""
    arguments = loads_arguments(text.encode())
    if is_deeper(arguments, DEEPEST):
        raise ValueError("nested too deeply")
    return arguments


def reasoning_of(message: Mapping[str, Any]) -> str:
    """The reasoning in a message or delta; vLLM and Ollama call it `reasoning`, the others `reasoning_content`."""
    return message.get("reasoning_content") or message.get("reasoning") or ""


def words_of(message: Mapping[str, Any]) -> str:
    """The words of a message or delta for formats that have one text: a refusal is words, too."""
    return (message.get("content") or "") + (message.get("refusal") or "")


# Types of the parts that a reply may have: its text, what it thought before, and why it refused.
_TEXT: Final = frozenset(TEXT_PARTS)
_THINKING: Final = frozenset(("thinking", "reasoning", "reasoning_text", "redacted_thinking"))


def reply_parts(content: Sequence[Any]) -> tuple[str, str, str, list[Any]]:
    """Text, thinking and refusal in the content of a reply, and the parts that are something else."""
    texts, thoughts, refusals, other_parts = [], [], [], []
    for part in content:
        kind = str(part.get("type")) if isinstance(part, Mapping) else ""
        if isinstance(part, str):
            texts.append(part)
        elif kind in _TEXT:
            texts.append(a_text(part.get("text")))
        elif kind in _THINKING:
            thoughts.append(_thinking(part))
        elif kind == "refusal":
            refusals.append(a_text(part.get("refusal")))
        else:
            other_parts.append(part)
    return "".join(texts), "".join(thoughts), "".join(refusals), other_parts


def _thinking(part: Mapping[str, Any]) -> str:
    """Mistral has a list of texts where the others have a text."""
    thought = part.get("thinking") or part.get("reasoning") or part.get("text") or ""
    return thought if isinstance(thought, str) else reply_parts(thought)[0]


def reply_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A reply as it is stored: its content is one text, its thinking stands beside it, and its call is a tool call.
    Parts that are more than text stay parts. Raises TypeError where the content is neither text nor parts."""
    reply = dict(message)
    content = reply.get("content")
    if isinstance(content, list):
        text, thinking, refusal, other_parts = reply_parts(content)
        reply["content"] = [*([text_part(text)] if text else []), *other_parts] if other_parts else text
        reply |= {"reasoning_content": thinking} if thinking and not reasoning_of(reply) else {}
        reply |= {"refusal": refusal} if refusal else {}
    elif content is not None:
        a_text(content)
    reply["content"] = reply.get("content") or reply.get("refusal") or ""
    call = reply.pop("function_call", None)
    if isinstance(call, Mapping) and call.get("name") and not reply.get("tool_calls"):
        reply["tool_calls"] = [{"type": "function", "function": dict(call)}]
    return reply


def reply_text(message: Mapping[str, Any]) -> str:
    """The words of a reply that a person reads or hears."""
    content, audio = message.get("content"), message.get("audio")
    if isinstance(content, list):
        content = reply_parts(content)[0]
    transcript = audio.get("transcript") if isinstance(audio, Mapping) else None
    texts = (text for text in (content, message.get("refusal"), transcript) if isinstance(text, str) and text)
    return next(texts, "")


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def image_part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def content_of(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """A lone text is a plain string, which every server takes; that of a document keeps its mark."""
    if not parts:
        return ""
    if len(parts) == 1 and parts[0].get("type") == "text" and ATTACHED not in parts[0]:
        return str(parts[0]["text"])
    return parts


def mark_attached(part: dict[str, Any]) -> dict[str, Any]:
    """A text that nobody typed, so it is never a command."""
    return {**part, ATTACHED: True} if part.get("type") == "text" else part


def without_marks(message: Mapping[str, Any]) -> dict[str, Any]:
    """Write it as a backend takes it."""
    message = {key: value for key, value in message.items() if key != FAILED}
    content = message.get("content")
    if not isinstance(content, list) or not any(ATTACHED in part for part in content if isinstance(part, dict)):
        return dict(message)
    parts = [{k: v for k, v in p.items() if k != ATTACHED} if isinstance(p, dict) else p for p in content]
    return {**message, "content": content_of(parts)}


def usage(prompt: int, completion: int, *, cached: int = 0) -> dict[str, Any]:
    counts: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if cached:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return counts


def token_counts(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Token counts of a whole answer or a chunk; nothing, where the server sent what is not a count."""
    return _counts(body.get("usage"))


def _counts(counts: Any) -> dict[str, Any]:
    if not isinstance(counts, Mapping):
        return {}
    members = {name: _counts(count) if isinstance(count, Mapping) else count for name, count in counts.items()}
    return {name: count for name, count in members.items() if type(count) in (int, float, dict)}


def is_for_words(body: Mapping[str, Any], form: Any) -> bool:
    """Tell whether the model answers in words, as to a person. A program reads JSON (`form`, the request's response
    format), what follows a grammar, or the one tool that must be called."""
    if isinstance(form, Mapping) and form.get("type") not in (None, "text"):
        return False
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") in _ONE_TOOL:
        return False
    return _FORMS.isdisjoint(body) or all(body.get(key) in (None, "") for key in _FORMS)


def json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A `response_format` that makes an answer follow `schema`."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
