"""Work on large bodies, off the event loop: 30 MB of pictures must not keep others waiting.

Owns what is large, and the threads for it. Most requests are not, and a thread would cost them more than it saves. The
threads are shared: one key's work fills at most half of them, and what waits goes by turns of the keys. Work that
belongs to no request (files, names of machines) has asyncio's own threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from proxy.core.sharing.shares import HOLDER, Holder, Shares
from proxy.core.sharing.waiting_line import WaitingLine

P = ParamSpec("P")
T = TypeVar("T")

LARGE: Final = 1 << 20
OBJECT: Final = 256  # bytes that an object counts as: an empty message is looked at as often as any other
ITEM: Final = 16  # bytes that any other member, or a list, does
TEXT: Final = 64  # bytes that a text takes beside its own
NUMBER: Final = 36  # bytes of a token id, and of a log-prob, each in a list
SHARED: Final = 1024  # characters of a text from which it is looked whether another has it, too
# Beginnings of characters beyond U+FFFF, and of their halves as JSON escapes them.
_WIDEST: Final = (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4", b"\\ud", b"\\uD")
LIGHT: Final = LARGE // (OBJECT + ITEM)  # bytes that are never large, whatever they say
THREADS: Final = min(16, (os.cpu_count() or 1) + 4)
MANY: Final = 1 << 20  # pieces of work that wait: each is a request's, and those are bounded elsewhere


class Marks(NamedTuple):
    """Numbers of brackets and commas in JSON, those in its texts among them."""

    objects: int
    lists: int
    commas: int


def marks(raw: bytes, start: int = 0) -> Marks:
    """Those from this byte on."""
    return Marks(raw.count(b"{", start), raw.count(b"[", start), raw.count(b",", start))


def weight(raw: bytes, known_marks: Marks | None = None) -> int:
    """Bytes that this JSON counts as: work takes as long as there are bytes, or as there are things in it.

    A bracket or a comma in a text counts, too. That costs a thread where none is needed, and no count can be evaded.
    `known_marks`: its marks, where they are known.
    """
    if len(raw) < LIGHT or len(raw) >= LARGE:  # or large in any case
        return len(raw)
    counts = known_marks or marks(raw)
    return len(raw) + OBJECT * counts.objects + ITEM * (counts.commas + counts.lists)


def whole_weight(raw: bytes) -> int:
    """The same, also of what is large by its bytes alone: what it may come to in memory."""
    counts = marks(raw)
    return len(raw) * _width(raw) + OBJECT * counts.objects + ITEM * (counts.commas + counts.lists)


def _width(raw: bytes) -> int:
    """Bytes that one byte of this JSON comes to, in its text and in the copy that is searched. One wide character makes
    all characters of a text as wide (PEP 393)."""
    if raw.isascii() and b"\\u" not in raw:
        return 1
    return 1 + 2 * (3 if any(mark in raw for mark in _WIDEST) else 1)


def length(value: Any) -> int:
    """Characters in a value of JSON, about; however deep it is."""
    total, stack = 0, [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, dict):
            stack += item.values()
        elif isinstance(item, list):
            stack += item
        else:
            total += 1
    return total


def memory_of(value: Any, most: int, excluded: Any = ()) -> int:
    """Bytes that a value of JSON takes in memory, or an object that holds such; about. More than `most` are not counted
    to their end, and `excluded` is somebody else's."""
    total, stack = 0, [value]
    counted_ids: set[int] = set()  # long texts: several parts may share one
    while stack and total <= most:
        part = stack.pop()
        if part is excluded:
            continue
        if isinstance(part, str | bytes):
            if len(part) > SHARED:
                if id(part) in counted_ids:
                    continue
                counted_ids.add(id(part))
            total += len(part) + TEXT
        elif isinstance(part, dict):
            total += OBJECT
            stack += part
            stack += part.values()
        elif isinstance(part, list | tuple):
            numbers = _numbers(part)
            total += TEXT + (numbers or ITEM * len(part))
            stack += () if numbers else part
        elif members := _members(part):
            total += OBJECT
            stack += members
        else:
            total += ITEM
    return total


def _numbers(values: Sequence[Any]) -> int:
    """Bytes of a list of numbers, as are token ids and log-probs; 0 where it is another."""
    try:
        return NUMBER * len(array("d", values))
    except (TypeError, OverflowError):
        return 0


def _members(holder: object) -> list[Any]:
    """The members of an object of ours; of a number there are none."""
    members = getattr(holder, "__dict__", None)
    return list(members.values()) if members else [getattr(holder, name) for name in getattr(holder, "__slots__", ())]


class WorkerThreads:
    """Threads for the work of requests. No key holds more than its share of them, also not by leaving: a thread is free
    once its work has ended."""

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="request")
        self._shares = Shares(count, factor=1)
        self._line = WaitingLine(MANY)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work` in a thread, once it is the turn of its key."""
        loop, holder = asyncio.get_running_loop(), HOLDER.get()
        if self._shares.take(holder) is not None:
            await self._line.wait(partial(self._ended, holder))
        context = copy_context()
        future = self._threads.submit(partial(context.run, work, *args, **kwargs))
        future.add_done_callback(lambda _: _in_loop(loop, self._ended, holder))
        return await asyncio.wrap_future(future)

    def _ended(self, holder: Holder) -> None:
        self._shares.give_back(holder)
        while (following := self._next()) is not None:
            self._shares.take(following)
            self._line.let_in(following)

    def _next(self) -> Holder | None:
        return next((holder for holder in self._line.holders() if self._shares.refusal(holder) is None), None)


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[Holder], None], holder: Holder) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever waited
        loop.call_soon_threadsafe(call, holder)


_THREADS: Final = WorkerThreads(THREADS)


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`work` of a request in a thread. It must not touch what the loop may change meanwhile."""
    return await _THREADS.run(work, *args, **kwargs)


async def off_loop(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`work` on so many bytes, or what they count as. It must not touch what the loop may change meanwhile."""
    return await off_loop_above(LARGE, size, work, *args, **kwargs)


async def off_loop_above(least: int, size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The same for work that takes longer a byte."""
    return work(*args, **kwargs) if size < least else await in_thread(work, *args, **kwargs)
