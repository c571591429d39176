"""One noun of the store: its queries read through the reader, its changes go through the writer.

Each class that derives from this stands in the module of its noun, and `Store` has one of each as an attribute.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from store.file.reader import Reader

T = TypeVar("T")
R = TypeVar("R")


class Writes(Protocol):
    def submit(self, operation: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]: ...

    def submit_rows(
        self, write: Callable[[sqlite3.Connection, Sequence[R]], None], rows: Sequence[R]
    ) -> asyncio.Future[None]: ...


class StorePart:
    def __init__(self, reader: Reader, writer: Writes) -> None:
        self._reader = reader
        self._writer = writer
