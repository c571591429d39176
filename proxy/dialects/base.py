"""Abilities of every wire format. A dialect is the single place a protocol lives.

Owns the shape of that knowledge: a request parsed, a stream folded into replies, the terminal event, a local answer,
and what to strip. Backends that speak nothing else need the way to chat completions and back. Messages are in chat form
from here on, whatever the wire has. Not here: HTTP, the store, what a rating is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

from proxy.core.errors import ProxyError, Unreadable
from proxy.core.json_edit import Rules
from proxy.core.sse import Event
from proxy.dialects.chat_form import reply_text
from proxy.dialects.fields import flag, member
from store.records import Item

# What comes of JSON that is not what it should be, deep in a renderer.
ODD: Final = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError)


# A run finds the ids by the weights' vocabulary (trainer.lessons.captured_tokens).
PIECE: Final = 160  # bytes of a piece of an answer beside its text
FROM_BYTES: Final = "the backend sent the bytes of each token and no ids"


def extend(so_far: list[Any] | None, items: Any) -> list[Any]:
    """`so_far` with `items` at its end, in place: what a token costs must not grow with those before it. Raises
    TypeError where `items` is not a list."""
    if not isinstance(items, list):
        raise TypeError(f"{type(items).__name__} where a list should be")
    if so_far is None:
        return items.copy()
    so_far += items
    return so_far


def join_pieces(pieces: list[str]) -> str:
    """The text of these pieces, which become one: each takes memory beside its own letters."""
    pieces[:] = ["".join(pieces)]
    return pieces[0]


@dataclass(slots=True)
class ParsedRequest:
    """A request as rlproxy needs to know it. The bytes themselves are passed on, not this.

    Nobody changes it. It is not frozen, as that costs each request as much as reading its JSON."""

    model: str
    messages: list[dict[str, Any]]  # in chat form, system text included
    stream: bool
    n: int
    sampling: dict[str, float]  # what the client set; the backend's defaults fill the rest
    wants_logprobs: bool
    wants_token_ids: bool
    wants_usage: bool  # a usage chunk at the end of a stream
    # The item of the request's own list that each message came from; None: from elsewhere (`system`). Empty: itself.
    origins: tuple[int | None, ...] = ()
    tools: list[dict[str, Any]] | None = None  # in chat form
    previous: str | None = None  # the completion this request goes on from, where it does not send the history
    body: Mapping[str, Any] = field(default_factory=dict)  # the request, for dialects whose answers repeat it
    typed: bool = True  # its newest message may be just what a person typed, and its answer what they read
    untrainable: str | None = None  # the member by which the model sees something else than the messages
    unclear: tuple[str, ...] = ()  # members of sampling of which only the server knows what it takes them for
    unreadable: Unreadable | None = None  # why the request is passed on as it is, and not captured
    # What stands in `messages` for the items that the request only names by the backend's ids, by those.
    referred: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def unclear_reason(self) -> str | None:
        """Why nobody knows how it was sampled; None where each member that says it is a number."""
        if not self.unclear:
            return None
        return f"the client sent {', '.join(self.unclear)} in another form than a number"


@dataclass(slots=True)
class OutgoingRequest:
    """One request, ready to be sent: commands are out of it, and what it only named is spelled out. Nobody changes
    it."""

    raw: bytes  # as the client sent it
    add: Mapping[str, bytes]  # the members that differ from that
    body: dict[str, Any]  # parsed, with those in place
    parsed: ParsedRequest
    item_range: tuple[int, int] | None = None  # where in `raw` the items of its longest list are, if that is known
    weight: int = 0  # bytes that work on it counts as, where those are more than it has

    @property
    def size(self) -> int:
        return len(self.raw) + sum(map(len, self.add.values()))


@dataclass(frozen=True, slots=True)
class PreviousCompletion:
    """A completion that a request names instead of repeating it."""

    id: str
    messages: list[dict[str, Any]]  # its prompt, in chat form
    reply: dict[str, Any] | None
    request: Mapping[str, Any]  # the request's other members


@dataclass(slots=True)
class Reply:
    """One choice, finished or as far as it came."""

    index: int
    message: dict[str, Any] = field(default_factory=lambda: {"role": "assistant", "content": ""})
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    unconstrained_logprobs: list[float] | None = None  # had a schema or a forced call ruled nothing out
    pieces: list[bytes] | None = None  # the bytes behind each log-prob, where no ids came
    broken_ids: str | None = None  # why its token ids were dropped
    broken_logprobs: str | None = None  # why its log-probs were dropped
    items: tuple[Item, ...] = ()  # as its backend named them

    @property
    def text(self) -> str:
        """The words that a person reads or hears."""
        content = self.message.get("content")
        return content if content and isinstance(content, str) else reply_text(self.message)

    def inexact_reason(self) -> str | None:
        """Why this reply cannot be compared token by token; None where it can."""
        if broken := self.broken_ids or self.broken_logprobs:
            return broken
        if self.token_ids is None:
            return "the backend sent no token ids" if self.pieces is None else FROM_BYTES
        if self.prompt_token_ids is None:
            return "the backend sent no prompt token ids"
        if self.logprobs is None:
            return "the backend sent no log-probs"
        if len(self.token_ids) != len(self.logprobs):
            return f"{len(self.token_ids)} token ids but {len(self.logprobs)} log-probs"
        if self.unconstrained_logprobs is not None and len(self.unconstrained_logprobs) != len(self.logprobs):
            return f"{len(self.logprobs)} log-probs but {len(self.unconstrained_logprobs)} without the constraint"
        return None


class Fold(ABC):
    """An answer on its way to becoming replies."""

    failed: str | None = None  # why the backend gave up, where it said so in its answer
    unknown: str | None = None  # the first thing that was skipped, as this format does not have it
    open_id: str | None = None  # the id by which the backend goes on with it, where it is not final

    @abstractmethod
    def add(self, chunk: Any) -> None:
        """Take in one parsed event of the stream. What is unknown is skipped. Raises for what is broken, once the
        remaining members of the event have been taken in; then the text may have a gap."""

    def take_whole(self, body: Any) -> None:
        """Take in a plain answer, likewise."""
        self.add(body)

    @abstractmethod
    def replies(self) -> list[Reply]:
        """Replies so far, one a choice."""

    def skip(self, part: str) -> None:
        self.unknown = self.unknown or f"skipped {part[:200]}"


class Renderer(ABC):
    """One chat completion said in another dialect: for backends that lack it, and for local answers."""

    backlog = 0  # bytes that it holds to the end of a stream, about
    completed_at: float | None = None  # Unix seconds at which the answer was whole, where it tells its client so

    @abstractmethod
    def chunk(self, chunk: Mapping[str, Any]) -> list[bytes]:
        """A `chat.completion.chunk` as what goes over the wire for it; often nothing, or several events."""

    @abstractmethod
    def end(self) -> tuple[list[bytes], bytes]:
        """When the last chunk is in: what comes before the terminal event, and the terminal event."""

    @abstractmethod
    def whole(self, body: Mapping[str, Any]) -> bytes:
        """A plain `chat.completion` as a plain body."""

    def failed(self, error: ProxyError) -> bytes | None:
        """The end of a stream that broke, where the dialect says more than `Dialect.error_event`."""
        return None


class Dialect(ABC):
    name: ClassVar[str]
    paths: ClassVar[tuple[str, ...]]
    framing: ClassVar[Literal["sse", "ndjson"]] = "sse"  # how a stream is cut into events
    carriers: ClassVar[tuple[str, ...]] = ("messages",)  # members with the messages: kept in the tree, not beside it
    is_prompt: ClassVar[bool] = False  # a request is one prompt: it can have no history
    marks: ClassVar[tuple[bytes, ...]] = ()  # a terminal event has one of these in it; none: each is to be looked at
    goes_on: ClassVar[bool] = False  # whether a request may name an earlier answer instead of repeating it
    has_one_text: ClassVar[bool] = False  # a message is one text, and pictures beside it
    may_be_empty: ClassVar[bool] = False  # an empty list of messages is for the server to judge

    def of(self, body: Any) -> Dialect:
        """The format of one request's answers, where the request decides what they mean."""
        return self

    def bends(self, body: Mapping[str, Any]) -> bool:
        """Tell whether asking for more beside this request would change what its client gets."""
        return False

    def only_tokens(self, event: Mapping[str, Any]) -> bool:
        """Tell if an event of a stream is there for its log-probs alone: without them it would not have been sent."""
        return False

    @abstractmethod
    def parse(self, body: Any) -> ParsedRequest:
        """Raises BadRequest, naming the field; Unreadable where the backend may know better."""

    def unread(self, body: Mapping[str, Any], error: Unreadable) -> ParsedRequest:
        """Read the model alone of a request that `parse` cannot read. Raises BadRequest where even that is odd."""
        return ParsedRequest(
            model=member(body, "model", str, ""),
            messages=[],
            stream=flag(body, "stream", self.framing == "ndjson"),
            n=1,
            sampling={},
            wants_logprobs=True,
            wants_token_ids=True,
            wants_usage=True,
            typed=False,
            body=body,
            unreadable=error,
        )

    def without_prompt(self, body: Mapping[str, Any], *, model: str, created: int) -> bytes | None:
        """The answer to a request without a prompt; None where the format has none but an error."""
        return None

    def tools(self, body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Tools that a request offers, in chat form."""
        return None

    def turns(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Messages of a request in chat form, as `to_chat` sends them."""
        return messages

    def template_kwargs(self, body: Mapping[str, Any], *, translated: bool) -> Any:
        """Arguments for the chat template besides messages and tools."""
        return body.get("chat_template_kwargs")

    @abstractmethod
    def keep(self, body: Any, parsed: ParsedRequest, indices: Sequence[int]) -> dict[str, bytes]:
        """The members of the request that carry the messages, as JSON, with only those of `asked.messages` left whose
        indices are in `indices`. Every item that stays is as the client sent it."""

    @abstractmethod
    def to_chat(self, body: Any, parsed: ParsedRequest) -> dict[str, Any]:
        """The same request as chat completions. Raises BadRequest for what chat completions cannot say."""

    def left_out(self, body: Any) -> list[str]:
        """Kinds of tools, items and blocks of a request that `to_chat` leaves out."""
        return []

    def without_messages(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The members of a request that are not its messages."""
        return {name: value for name, value in body.items() if name not in self.carriers}

    def names(self, body: Any) -> list[str]:
        """Ids of captured completions that its items may stand for."""
        return []

    def refers_to(self, body: Any) -> list[str]:
        """Ids in the request that stand for items of earlier answers, as their backend named them."""
        return []

    def item(self, id: str, reply: Mapping[str, Any], kind: str, position: int) -> dict[str, Any]:
        """The item of that id, the `position`th of its kind in this reply, as a request has it."""
        raise NotImplementedError

    def read(self, body: Any, referred: Mapping[str, dict[str, Any]]) -> ParsedRequest:
        """Do `parse` with these items in place of their ids."""
        return self.parse(body)

    def spell_out(self, body: Any, completions: Mapping[str, PreviousCompletion]) -> dict[str, bytes]:
        """The members to change so that the request says itself what it named. What is not in `completions` stays."""
        return {}

    @abstractmethod
    def renderer(self, *, id: str, parsed: ParsedRequest, created: int) -> Renderer: ...

    def whole(self, body: Any) -> list[Reply]:
        """The replies of a plain answer. Raises what `Fold.take_whole` raises."""
        fold = self.fold()
        fold.take_whole(body)
        return fold.replies()

    @abstractmethod
    def fold(self, tools: Sequence[Mapping[str, Any]] | None = None, n: int | None = None) -> Fold:
        """`tools`: those that the request offers, in chat form; `n`: how many choices it asks for, if that is known."""

    def is_event(self, body: Mapping[str, Any]) -> bool:
        """Tell whether an object is an event of a stream rather than a whole answer; true where they look alike."""
        return True

    @abstractmethod
    def terminal(self, event: Event) -> bool:
        """Tell whether this event tells the client that the answer is whole."""

    def before_the_end(self, piece: bytes, gap: bytes) -> int:
        """How many bytes of these events are sure to be before the terminal one; `gap` ends each event."""
        if not self.marks:
            return 0
        ends = [index for mark in self.marks if (index := piece.find(mark)) >= 0]
        return len(piece) if not ends else piece.rfind(gap, 0, min(ends)) + len(gap) if gap in piece[: min(ends)] else 0

    @abstractmethod
    def rules(self, *, id: str, model: str | None, parsed: ParsedRequest, ours: bool = True) -> Rules:
        """Changes of each body or event on its way to the client: our id, their model, and our extras gone.
        `ours`: whether we asked for any; else whatever an answer has, the backend sent to the client."""

    def answer(self, text: str, *, id: str, parsed: ParsedRequest, created: int) -> tuple[str, list[bytes]]:
        """A local answer in this format: content type, and the pieces to write (one, unless streamed)."""
        say = self.renderer(id=id, parsed=parsed, created=created)
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        head = {"id": id, "created": created, "model": parsed.model}
        if not parsed.stream:
            message = {"role": "assistant", "content": text, "refusal": None}
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
            body = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
            return "application/json", [say.whole(body)]
        head["object"] = "chat.completion.chunk"
        deltas: list[tuple[dict[str, str], str | None]] = [
            ({"role": "assistant", "content": ""}, None),
            ({"content": text}, None),
            ({}, "stop"),
        ]
        chunks: list[dict[str, Any]] = [
            {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}
            for delta, reason in deltas
        ]
        if parsed.wants_usage:
            chunks.append({**head, "choices": [], "usage": usage})
        pieces = [piece for chunk in chunks for piece in say.chunk(chunk)]
        output, last = say.end()
        kind = "text/event-stream" if self.framing == "sse" else "application/x-ndjson"
        return kind, [*pieces, *output, last]

    def error(self, error: ProxyError) -> Mapping[str, Any]:
        return error.body()

    @abstractmethod
    def error_event(self, error: ProxyError, last: bytes | None = None) -> bytes:
        """An error inside a stream that has begun; `last` is the data of the event before it."""
