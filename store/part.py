"""One noun of the store: its queries read through the reader, its changes go through the writer.

Each class that derives from this stands in the module of its noun, and `Store` has one of each as an attribute.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Protocol, TypeVar

from store.reader import Reader

T = TypeVar("T")


class Writes(Protocol):
    def submit(self, operation: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]: ...

    def submit_soon(self, operation: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]: ...


class StorePart:
    def __init__(self, reader: Reader, writer: Writes) -> None:
        self._reader = reader
        self._writer = writer
