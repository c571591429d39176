"""What every wire format can do. A dialect is the single place a protocol lives.

Owns the shape of that knowledge: a request parsed, a stream folded into replies, the terminal event, a local
answer, what to strip. Not here: HTTP, the store, what a rating is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from proxy.errors import ProxyError
from proxy.sse import Event
from proxy.wire import Rules


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as rlproxy needs to know it. The bytes themselves are passed on, not this."""

    model: str
    messages: list[dict[str, Any]]
    stream: bool
    n: int
    sampling: dict[str, float]  # what the client set; the backend's defaults fill the rest
    wants_logprobs: bool
    wants_token_ids: bool
    wants_usage: bool  # a usage chunk at the end of a stream
    session: str | None
    user: str | None


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

    @property
    def text(self) -> str:
        content = self.message.get("content")
        return content if isinstance(content, str) else ""

    def inexact_reason(self) -> str | None:
        """Why this reply cannot be compared token by token; None where it can."""
        if self.token_ids is None:
            return "the backend sent no token ids"
        if self.prompt_token_ids is None:
            return "the backend sent no prompt token ids"
        if self.logprobs is None:
            return "the backend sent no log-probs"
        if len(self.token_ids) != len(self.logprobs):
            return f"{len(self.token_ids)} token ids but {len(self.logprobs)} log-probs"
        return None


class Fold(ABC):
    """A stream on its way to becoming replies. `add` raises on what it does not understand."""

    @abstractmethod
    def add(self, chunk: Any) -> None:
        """Take in one parsed event of the stream."""

    @abstractmethod
    def replies(self) -> list[Reply]:
        """What has come so far, one a choice."""


class Dialect(ABC):
    name: ClassVar[str]
    paths: ClassVar[tuple[str, ...]]

    @abstractmethod
    def parse(self, body: Any) -> Asked:
        """Raises BadRequest, naming the field."""

    @abstractmethod
    def with_messages(self, messages: list[dict[str, Any]]) -> dict[str, bytes]:
        """The members of the request that carry these messages, as JSON."""

    @abstractmethod
    def whole(self, body: Any) -> list[Reply]:
        """The replies of a plain answer."""

    @abstractmethod
    def fold(self) -> Fold: ...

    @abstractmethod
    def terminal(self, event: Event) -> bool:
        """Whether this event tells the client that the answer is whole."""

    @abstractmethod
    def rules(self, *, id: str, model: str | None, asked: Asked) -> Rules:
        """What to change in each body or event on its way to the client: our id, their model, our extras gone."""

    @abstractmethod
    def answer(self, text: str, *, id: str, asked: Asked, created: int) -> tuple[str, list[bytes]]:
        """A local answer in this format: content type, and the pieces to write (one, unless streamed)."""

    def error(self, error: ProxyError) -> Mapping[str, Any]:
        return error.body()

    @abstractmethod
    def error_event(self, error: ProxyError) -> bytes:
        """An error inside a stream that has begun."""
