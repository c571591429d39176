"""How a request is said to the backend: in the client's own dialect, or as chat completions.

Owns the body that is sent, with what we ask for beside it, and how the answer becomes the client's bytes again. It
knows which formats the backend has: those that it declares, and those that asking it has shown. When each is sent
belongs to asking.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

from proxy.backends.base import Capabilities
from proxy.backends.refused_wishes import shape_of
from proxy.core import sse
from proxy.core.errors import BackendBroke, ProxyError
from proxy.core.json_edit import Rules, WholeAnswer, dumps, loads, loads_server_json, rewrite
from proxy.core.sse import Event
from proxy.core.upstream import error_in, error_named_in
from proxy.dialects import CHAT, Dialect, Renderer
from proxy.dialects.base import ODD, OutgoingRequest
from proxy.dialects.chat import as_chunk
from proxy.dialects.chat_answer import SoundChunks, plain_answer, sound_answer
from proxy.dialects.fields import flag
from proxy.dialects.half_characters import HalfCharacters
from proxy.relay.json_splice import Splicer, edited_once, with_members


class Codec(ABC):
    """One way to ask, and to read and pass on the answer."""

    translated: ClassVar[bool]
    path: str | None  # at the backend; None: as the client asked
    asks: Mapping[str, bytes]
    left_out: Sequence[str] = ()  # kinds of tools and items that the backend does not get

    @property
    def backlog(self) -> int:
        """Bytes that it holds to the end of a stream, about."""
        return 0

    @property
    def completed_at(self) -> float | None:
        """Unix seconds at which the answer was whole, where the client was told so."""
        return None

    @property
    @abstractmethod
    def reads(self) -> Dialect:
        """The format that the backend answers in."""

    @property
    @abstractmethod
    def shape(self) -> frozenset[str]:
        """Members of the request that may be why a server refuses our wishes."""

    @abstractmethod
    def body(self, model_members: Mapping[str, bytes], *, asking: bool) -> bytes:
        """The body to send, with the members that name the model; with `asking`, our own wishes, too."""

    @abstractmethod
    def event(self, event: Event) -> bytes:
        """An event of the stream as the client gets it. Raises BackendBroke."""

    def through(self, piece: bytes) -> bytes | None:
        """Whole events, none of them terminal, as the client gets them; None where each has to be looked at."""
        return None

    def edited(self, piece: bytes, parsed: Sequence[Any]) -> bytes | None:
        """The same, by what they say."""
        return None

    @abstractmethod
    def end(self, event: Event | None) -> tuple[bytes, bytes]:
        """The end of the stream (None where the backend sent no terminal event): what comes before the commit, and
        what after it."""

    @abstractmethod
    def whole(self, answer: WholeAnswer) -> bytes:
        """A plain answer as the client gets it. Raises BackendBroke."""

    def whole_as_stream(self, answer: WholeAnswer) -> tuple[bytes, bytes]:
        """A plain answer for a client that reads a stream: what comes before the commit, and what after it. Raises
        BackendBroke."""
        return b"", self.whole(answer)

    @abstractmethod
    def broken(self, error: ProxyError) -> bytes:
        """The end of a stream that broke."""


class Native(Codec):
    """Passed through: the backend's bytes, but for our id, their model and our own wishes."""

    translated = False
    path = None

    def __init__(
        self, dialect: Dialect, outgoing: OutgoingRequest, capabilities: Capabilities, id: str | None, model: str | None
    ) -> None:
        """`id`: of the completion, if it is captured; `model`: the name that its client asked for, where the backend
        knows it by another."""
        self._hides = bool(capabilities.leaves_out) and not outgoing.parsed.wants_logprobs
        self._spoken: set[Any] = set()  # choices whose speaker an event with nothing else has told
        some = capabilities.capture_members or capabilities.whole_capture_members
        wished = wishes(dialect, outgoing.body, capabilities) if some else {}
        self.asks = _missing(wished, outgoing.body) if wished else {}
        self._ours, self._leaves_out = bool(wished), capabilities.leaves_out
        self._dialect, self._question, self._id, self._model = dialect, outgoing, id, model
        self._last: bytes | None = None  # the data of the newest event
        self._through = b""  # the newest events, where they went through at once

    @cached_property
    def reads(self) -> Dialect:
        return self._dialect if self._id is None else self._dialect.of(self._question.body)

    @property
    def shape(self) -> frozenset[str]:
        body = self._question.body
        return shape_of(body, streams=flag(body, "stream", self._dialect.framing == "ndjson"))

    @cached_property
    def _rules(self) -> Rules:
        """Changes of the answer."""
        rules: Rules = {"model": dumps(self._model)} if self._model else {}
        if self._id is not None:
            rules = self._dialect.rules(
                id=self._id, model=self._model or None, parsed=self._question.parsed, ours=self._ours
            )
        return without(rules, self._leaves_out) if self._hides else rules

    @cached_property
    def _splicer(self) -> Splicer:
        return Splicer(self._rules)

    def body(self, model_members: Mapping[str, bytes], *, asking: bool) -> bytes:
        asks = self.asks if asking else {}
        parsed = self._question
        if parsed.add:  # what is parsed is not what the client sent
            return rewrite(parsed.raw, {}, {**parsed.add, **asks, **model_members})
        return with_members(parsed.raw, parsed.body, {**asks, **model_members}, parsed.item_range)

    def event(self, event: Event) -> bytes:
        data = event.data
        if data is None or not event.begins_object:
            return event.raw
        self._last, self._through = data, b""
        if not self._rules:
            return event.raw
        try:
            chunk = event.json()
            if self._only_tokens(chunk) and not self._names_speaker(chunk):
                return b""
            changed = self._splicer.edited(data, chunk)
        except ODD:  # garbage is passed on as garbage, byte for byte; the capture has marked it
            return event.raw
        return event.raw if changed == data else event.with_data(changed)

    def through(self, piece: bytes) -> bytes | None:
        if not self._rules:
            output: bytes | None = piece
        else:
            output = self._splicer.through(piece) if self._dialect.framing == "sse" else None
        if output is not None:
            self._through = piece
        return output

    def edited(self, piece: bytes, parsed: Sequence[Any]) -> bytes | None:
        if any(map(self._only_tokens, parsed)):
            return None
        output = self._splicer.edited_all(piece, parsed)
        if output is not None:
            self._through = piece
        return output

    def _only_tokens(self, chunk: Any) -> bool:
        """Tell if an event is there for what is hidden, and nothing else; what is odd says something."""
        if not (self._hides and self.asks and isinstance(chunk, dict)):
            return False
        try:
            return self.reads.only_tokens(chunk)
        except ODD:
            return False

    def _names_speaker(self, chunk: Mapping[str, Any]) -> bool:
        """Note who speaks in the choices of such an event, and tell if one of them has not said it: then it goes on."""
        new = {choice.get("index") for choice in chunk.get("choices", ()) if choice["delta"].get("role")} - self._spoken
        self._spoken |= new
        return bool(new)

    def end(self, event: Event | None) -> tuple[bytes, bytes]:
        return b"", b"" if event is None else self.event(event)

    def whole(self, answer: WholeAnswer) -> bytes:
        """Garbage is passed on as garbage, byte for byte; the capture has marked it."""
        try:
            if isinstance(answer.parsed, dict):
                return edited_once(answer.raw, answer.parsed, self._rules)
            return rewrite(answer.raw, self._rules)
        except ValueError:
            return answer.raw

    def broken(self, error: ProxyError) -> bytes:
        newest = sse.EventSplitter().feed(self._through) if self._dialect.framing == "sse" else ()
        openings = [event.data for event in newest if event.begins_object]
        return self._dialect.error_event(error, openings[-1] if openings else self._last)


class Translated(Codec):
    """Asked as chat completions, and said again in the client's dialect. Raises BadRequest for what cannot be."""

    translated = True
    path = CHAT.paths[0]
    reads: Dialect = CHAT

    def __init__(
        self,
        dialect: Dialect,
        outgoing: OutgoingRequest,
        capabilities: Capabilities,
        *,
        id: str,
        model: str,
        created: int,
    ) -> None:
        chat = dialect.to_chat(outgoing.body, outgoing.parsed)
        self.left_out = dialect.left_out(outgoing.body)
        self.asks = _missing(wishes(CHAT, chat, capabilities), chat)
        self._hides = bool(self.asks) and not outgoing.parsed.wants_logprobs
        self._chat = dumps(chat)
        self._shape = shape_of(chat, streams=flag(chat, "stream", False))
        self._dialect = dialect
        self._halves = HalfCharacters()
        self._chunks = SoundChunks(outgoing.parsed.n)
        self._renderer = partial(dialect.renderer, id=id, parsed=replace(outgoing.parsed, model=model), created=created)
        self._say: Renderer = self._renderer()

    @property
    def shape(self) -> frozenset[str]:
        return self._shape

    def body(self, model_members: Mapping[str, bytes], *, asking: bool) -> bytes:
        return rewrite(self._chat, {}, {**(self.asks if asking else {}), **model_members})

    def event(self, event: Event) -> bytes:
        if (failed := error_named_in(event)) is not None:
            raise _broke_off(failed)
        if event.data is None or not event.begins_object:
            return b""  # a comment, or garbage that the capture has marked
        try:
            chunk = event.json()
        except ValueError:
            return b""
        if (failed := error_in(chunk)) is not None:
            raise _broke_off(failed)
        chunk = self._chunks.sound(chunk)
        if event.has_halves or self._halves.are_held:
            chunk = self._halves.joined(chunk)
        if self._hides and CHAT.only_tokens(chunk):
            return b""
        return b"".join(self._say.chunk(plain_answer(chunk)))

    def end(self, event: Event | None) -> tuple[bytes, bytes]:
        output, last = self._say.end()
        return b"".join(output), last

    def whole(self, answer: WholeAnswer) -> bytes:
        self._check(answer)
        try:
            return self._say.whole(plain_answer(answer.parsed))
        except ODD:
            return self._without_odd_members(answer)

    def _without_odd_members(self, answer: WholeAnswer) -> bytes:
        """Raises BackendBroke where nothing of it can be said."""
        self._say = self._renderer()  # the other one may have begun
        try:
            return self._say.whole(plain_answer(sound_answer(answer.parsed)))
        except ODD as error:
            raise _not_chat(error) from error

    def _check(self, answer: WholeAnswer) -> None:
        """Raises BackendBroke where it is an error, or not JSON."""
        try:
            failed = error_in(answer.parsed)
        except ODD as error:
            raise _not_chat(error) from error
        if failed is not None:
            raise BackendBroke(f"The backend answered with an error: {failed[:300]}")

    def whole_as_stream(self, answer: WholeAnswer) -> tuple[bytes, bytes]:
        self._check(answer)
        try:
            output = b"".join(self._say.chunk(as_chunk(plain_answer(answer.parsed))))
            further, last = self._say.end()
        except ODD as error:
            raise _not_chat(error) from error
        return output + b"".join(further), last

    def broken(self, error: ProxyError) -> bytes:
        try:
            text = self._say.failed(error)
        except ODD:
            text = None
        return self._dialect.error_event(error) if text is None else text

    @property
    def backlog(self) -> int:
        return self._say.backlog

    @property
    def completed_at(self) -> float | None:
        return self._say.completed_at

    @property
    def content_type(self) -> str:
        return "text/event-stream; charset=utf-8" if self._dialect.framing == "sse" else "application/x-ndjson"


def _broke_off(message: str) -> BackendBroke:
    return BackendBroke(f"The backend broke off its answer: {message[:300]}")


def _not_chat(error: Exception) -> BackendBroke:
    return BackendBroke(f"The backend's answer is not a chat completion ({error!r}); what came is kept.")


def wishes(dialect: Dialect, body: Mapping[str, Any], capabilities: Capabilities) -> Mapping[str, bytes]:
    """Members added to a request; nothing, where its client would notice."""
    parts, whole = (
        capabilities.capture_members.get(dialect.name, {}),
        capabilities.whole_capture_members.get(dialect.name, {}),
    )
    if not (parts or whole) or dialect.bends(body):
        return {}
    if not flag(body, "stream", dialect.framing == "ndjson"):
        return {**parts, **whole}
    return {} if any(body.get(member) for member in capabilities.refuses_beside) else parts


def without(rules: Rules, names: Collection[str]) -> Rules:
    """The same rules, with the members of these names taken out where they would become null."""
    changes: dict[str, bytes | Rules | None] = {}
    for name, rule in rules.items():
        if isinstance(rule, Mapping):
            changes[name] = without(rule, names)
        else:
            changes[name] = None if name in names and rule == b"null" else rule
    return changes


def _missing(asks: Mapping[str, bytes], body: Mapping[str, Any]) -> dict[str, bytes]:
    """Our wishes as far as the client does not wish for the same or more."""
    additions: dict[str, bytes] = {}
    for key, wish in asks.items():
        if key == "top_logprobs" and body.get("logprobs"):
            continue  # how many they get is their own choice, also where they leave it to the server
        theirs = body.get(key)
        if theirs is None or theirs is False:
            additions[key] = wish
        elif isinstance(theirs, list) and isinstance(ours := loads(wish), list):
            additions[key] = dumps([*theirs, *(item for item in ours if item not in theirs)])
    return additions


class Formats:
    def __init__(self, capabilities: Capabilities, translate: Collection[str] = ()) -> None:
        """`translate`: what is to be translated though the backend has it."""
        self._capabilities = capabilities
        self._translate = frozenset(translate)
        self._proven: dict[str, bool] = {}

    def native(self, dialect: str) -> bool:
        """Tell whether to ask in this dialect; if not, chat completions, which every backend has, say it."""
        if dialect in self._translate:
            return False
        return self._proven.get(dialect, self._capabilities.tries_formats or dialect in self._capabilities.dialects)

    def has(self, dialect: str) -> None:
        self._proven[dialect] = True

    def is_proven(self, dialect: str) -> bool:
        """Tell whether it has answered in this dialect."""
        return self._proven.get(dialect, False)

    def lacks(self, dialect: str) -> None:
        """From now on it is translated, unless it has answered in it; a backend that learns it is asked again after a
        restart of rlproxy."""
        self._proven.setdefault(dialect, False)

    def table(self, dialects: Iterable[str]) -> dict[str, Literal["native", "translated", "untried"]]:
        """For `status`: how a request in each dialect reaches the backend."""
        return {
            name: "translated" if not self.native(name)
            else "native" if name in self._proven or name in self._capabilities.dialects
            else "untried"
            for name in dialects
        }  # fmt: skip

    def inexact(self, dialects: Iterable[str]) -> list[str]:
        """Those that are passed through and whose answers have no token ids, though the backend has them in others."""
        wishes = self._capabilities
        if not (wishes.token_ids and wishes.logprobs):
            return []
        return [name for name in dialects if self.native(name) and name not in wishes.capture_members]


def about_what_was_asked(answer: bytes, model: str, path: str) -> bool:
    """Tell if a 404 names a parameter or the model, so that the route is there. Else only asking elsewhere tells."""
    try:
        body = loads_server_json(answer).value
        error = body.get("error") or body
        if isinstance(error.get("param"), str):
            return True
        message = str(error["message"])
    except (ValueError, KeyError, AttributeError):
        return False
    return bool(model) and path not in message and _names(message, model)


def _names(message: str, model: str) -> bool:
    """Tell if the model's name stands in it, and not as a part of a longer word. Each place is looked at once: as a
    regular expression a name of a megabyte takes a second to compile."""
    start = message.find(model)
    while start >= 0:
        end = start + len(model)
        if not (_is_word(message[start - 1 : start]) or _is_word(message[end : end + 1])):
            return True
        start = message.find(model, end)
    return False


def _is_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"
