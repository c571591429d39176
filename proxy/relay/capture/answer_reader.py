"""An answer of the backend, read for the store while it goes by.

Owns what was folded from its bytes, and what could not be. A parser that fails never breaks a stream, and an odd event
keeps no other from being read. A text that may lack something is known as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from proxy.core.backend_answer import Answer
from proxy.core.errors import BackendBroke, as_broke_off
from proxy.core.json_edit import WholeAnswer, whole_characters
from proxy.core.ndjson import Line, NdjsonSplitter
from proxy.core.offload import LARGE, OBJECT, in_thread, memory_of
from proxy.core.sharing.shares import Room
from proxy.core.sse import Event, EventSplitter, read_all
from proxy.core.upstream import error_in, error_named_in, message_in
from proxy.dialects import Dialect, Reply
from proxy.dialects.base import Fold
from proxy.relay.answer_room import REASON, AnswerRoom
from store.records import Item

NOT_UTF8: Final = "the backend sent bytes that are not UTF-8"
MEASURE_FIRST: Final = 1 << 18  # bytes of a stream after which it is measured what is folded of them
TOO_LONG: Final = f"{REASON}; it was passed on, and nothing of it is kept"
READ_AT_ONCE: Final = 1 << 15  # bytes of events that are parsed together: about a quarter of a millisecond


class AnswerReader:
    def __init__(
        self,
        dialect: Dialect,
        tools: Sequence[Mapping[str, Any]] | None = None,
        room: Room | None = None,
        n: int | None = None,
    ) -> None:
        """`tools`: those that the request offers, in chat form; `room`: for what is folded; `n`: how many choices it
        asks for, if that is known."""
        self.dialect = dialect
        self.gap: str | None = None  # why its text may lack something
        self.broken: str | None = None  # why something else of it was dropped
        self.text = ""  # what a plain body says that is not an answer
        self._tools, self._n = tools, n
        self._fold: Fold | None = None  # from the first event on
        self.has_let_go = False  # of all that was folded: it became too long
        self._room = room
        self._size = 0  # bytes of the stream
        self._measure_at = MEASURE_FIRST  # how many of them there are when what is folded is measured again
        self._has_halves = False  # of characters
        self._is_ended = False  # each reply has a reason why it finished
        self._unread: list[bytes] = []  # whole events, not parsed yet
        self._unread_size = 0
        self._kind: type[EventSplitter]  # that cuts what is unread

    @property
    def unknown(self) -> str | None:
        """The first thing that was skipped, as the format does not have it."""
        return None if self._fold is None else self._mended(self._fold.unknown)

    @property
    def odd(self) -> str | None:
        """The first thing that was not read."""
        return self.gap or self.broken or self.unknown

    @property
    def reason(self) -> str | None:
        """Why there is no reply."""
        return f"{self.gap}: {self.text!r}" if self.gap and self.text else self.odd

    @property
    def failed(self) -> str | None:
        """Why the backend gave up, where it said so inside its answer."""
        self._read()
        return None if self._fold is None else self._mended(self._fold.failed)

    @property
    def open_id(self) -> str | None:
        """The id by which the backend goes on with it in the background; None where it does not."""
        self._read()
        return None if self._fold is None else self._fold.open_id

    def drop(self, reason: str) -> None:
        self.broken = self.broken or reason

    def let_go(self, reason: str) -> None:
        """Keep nothing of it, now and later."""
        self.has_let_go, self.gap = True, reason
        self._fold = None
        self._unread.clear()
        if self._room is not None:
            self._room.end()

    def keep(self, piece: bytes, splitter: EventSplitter) -> None:
        """Whole events of the stream, as the backend sent them. They are read together: later, and off the way of
        those that come next. A splitter of the same kind will cut them: this one may know other line ends by then."""
        if self.has_let_go:
            return
        self._kind = type(splitter)
        self._unread.append(piece)
        self._unread_size += len(piece)
        if self._unread_size >= READ_AT_ONCE:
            self._read()

    def _read(self) -> None:
        if not self._unread:
            return
        piece = b"".join(self._unread)
        self._unread.clear()
        self._unread_size = 0
        events = self._kind.objects(piece)
        if events is None:
            for event in self._kind().feed(piece):
                self.add(event)
        else:
            self._take(events)
            self._count(len(piece))

    def _count(self, size: int) -> None:
        """So many bytes more have been folded. All that the fold holds is measured, whether or not a reply shows it.
        That happens each time that it has doubled, so it costs no more than the folding."""
        self._size += size
        if self._size < self._measure_at or self.has_let_go:
            return
        self.replies()  # texts that came in pieces are joined
        weight = memory_of(self._fold, OBJECT * self._size, self._tools)
        self._measure_at = self._size + max(MEASURE_FIRST, weight)
        if self._room is not None and not self._room.fits(weight):
            self.let_go(TOO_LONG)

    def take(self, events: Sequence[Any], size: int) -> None:
        """Events of the stream, parsed, and how many bytes they were."""
        self._read()
        self._take(events)
        self._count(size)

    def add(self, event: Event) -> None:
        """One event of the stream, as the backend sent it."""
        self._read()
        self._add(event)
        self._count(len(event.raw))

    def _add(self, event: Event) -> None:
        if event.data is None:
            if (failed := error_named_in(event)) is not None:
                self._take([{"error": failed}])
            return
        if not event.data.strip() or event.says_done:
            return
        try:
            parsed = event.json()
        except ValueError as error:  # it may have been an object, and a piece of the text is missing
            if (failed := error_named_in(event)) is not None:
                self._take([{"error": failed}])
                return
            self._lose(error, gap=event.begins_object)
            return
        self._has_halves = self._has_halves or event.has_halves
        if not event.is_utf8:
            self.drop(NOT_UTF8)
        if event.is_error and error_in(parsed if isinstance(parsed, dict) else {}) is None:
            parsed = {"error": parsed}
        self._take([parsed])

    def _take(self, events: Sequence[Any]) -> None:
        if self.has_let_go:
            return
        if self._fold is None:
            self._fold = self.dialect.fold(self._tools, self._n)
        fold = self._fold
        for event in events:
            try:
                fold.add(event)
            except Exception as error:  # whatever a backend may send
                if isinstance(event, dict):
                    self._lose(error, gap=True)
                else:
                    fold.skip(f"an event that is not an object ({type(event).__name__})")

    def _lose(self, error: Exception, *, gap: bool) -> None:
        reason = f"an event of the stream could not be understood: {error!r}"
        if gap and self.gap is None and not self._has_ended():
            self.gap = reason
        else:
            self.drop(reason)

    def _has_ended(self) -> bool:
        """Tell whether each reply has come to its end, so that its text lacks nothing."""
        if not self._is_ended and self._fold is not None:
            try:
                replies = self._fold.replies()
            except Exception:  # whatever a backend may send
                return False
            self._is_ended = bool(replies) and all(reply.finish_reason for reply in replies)
        return self._is_ended

    def take_whole(self, answer: WholeAnswer) -> None:
        """A plain body."""
        self._fold = self.dialect.fold(self._tools, self._n)
        try:
            parsed = answer.parsed
            if not answer.is_utf8:
                self.drop(NOT_UTF8)
            self._fold.take_whole(parsed)
        except Exception as error:  # whatever a backend may send
            self.gap = f"the answer could not be understood: {error!r}"
            self.text = message_in(answer.raw)

    def replies(self) -> list[Reply]:
        """Replies so far; none where no reply can be made of what came."""
        self._read()
        try:
            replies = (self._fold or self.dialect.fold()).replies()
        except Exception as error:  # whatever a backend may send
            self.gap = self.gap or f"the answer makes no reply: {error!r}"
            return []
        return [self._without_halves(reply) for reply in replies] if self._has_halves else replies

    def _without_halves(self, reply: Reply) -> Reply:
        return replace(
            reply,
            message=whole_characters(reply.message),
            finish_reason=whole_characters(reply.finish_reason),
            usage=whole_characters(reply.usage),
            items=tuple(Item(whole_characters(item.id), item.kind) for item in reply.items),
        )

    def _mended(self, text: str | None) -> str | None:
        return whole_characters(text) if self._has_halves and text else text


async def read_stream(reader: AnswerReader, upstream: Answer, splitter: EventSplitter, room: AnswerRoom) -> list[Reply]:
    """The replies of a whole stream. Raises BackendBroke, also where there is no room for it."""
    async for piece in upstream.pieces():
        events = splitter.whole(piece)
        if reader.has_let_go or not room.fits(splitter, events):
            raise room.error()
        whole_events = splitter.events(events)
        if len(events) >= LARGE:
            await in_thread(read_all, whole_events)
        for event in whole_events:
            reader.add(event)
    if remainder := splitter.remainder():
        reader.add(Line(remainder) if isinstance(splitter, NdjsonSplitter) else Event(remainder))
    if reader.failed:
        raise BackendBroke(f"The backend broke off its answer: {reader.failed[:300]}")
    replies = reader.replies()
    if not (replies and all(reply.finish_reason for reply in replies)):
        raise as_broke_off(None)
    return replies
