"""Values and rows between Python and PostgreSQL, as the store knows them from SQLite.

Owns what differs: a truth is 1 or 0, a sum of integers an integer, and a row answers by place and by name. A text of
PostgreSQL cannot hold NUL, so that U+10FFFE, which nobody writes, stands in its place. Not here: SQL (translation).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format
from psycopg.types.numeric import NumericBinaryLoader, NumericLoader

NUL: Final = "\0"
NUL_SIGN: Final = "\U0010fffe"
_INT8: Final = 20  # oids of pg_type, which never change
_TEXT: Final = 25
_BIGINT: Final = struct.Struct("!q")


class TextDumper(Dumper):
    oid = _TEXT

    def dump(self, obj: Any) -> Buffer:
        text: str = obj.replace(NUL, NUL_SIGN) if NUL in obj else obj
        return text.encode()


class IntegerDumper(Dumper):
    """One type, whatever the size: else a statement is prepared once for each size of its numbers."""

    format = Format.BINARY
    oid = _INT8

    def dump(self, obj: Any) -> Buffer:
        return _BIGINT.pack(obj)


class TruthDumper(Dumper):
    """Without a type: it goes where an integer is wanted, and where a condition is."""

    oid = 0

    def dump(self, obj: Any) -> Buffer:
        return b"1" if obj else b"0"


class TextLoader(Loader):
    format = Format.BINARY

    def load(self, data: Buffer) -> str:
        text = bytes(data).decode()
        return text.replace(NUL_SIGN, NUL) if NUL_SIGN in text else text


class PlainTextLoader(TextLoader):
    format = Format.TEXT


class TruthLoader(Loader):
    format = Format.BINARY

    def load(self, data: Buffer) -> int:
        return bytes(data)[0]


class NumberLoader(NumericBinaryLoader):
    def load(self, data: Buffer) -> Any:
        return _number(super().load(data))


class PlainNumberLoader(NumericLoader):
    def load(self, data: Buffer) -> Any:
        return _number(super().load(data))


def _number(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else float(value)


def adapt(context: AdaptContext) -> None:
    """Have a connection, or all of them, dump and load values like this."""
    adapters = context.adapters
    assert adapters is not None
    for kind, dumper in ((str, TextDumper), (int, IntegerDumper), (bool, TruthDumper)):
        adapters.register_dumper(kind, dumper)
    for loader in (TextLoader, PlainTextLoader):
        for name in ("text", "varchar", "name"):
            adapters.register_loader(name, loader)
    adapters.register_loader("bool", TruthLoader)
    adapters.register_loader("numeric", NumberLoader)
    adapters.register_loader("numeric", PlainNumberLoader)


class PostgresRow:
    """A row that answers by place and by name, as sqlite3.Row does; it iterates over its values."""

    __slots__ = ("_places", "_values")

    def __init__(self, places: dict[str, int], values: Sequence[Any]) -> None:
        self._places = places
        self._values = values

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            place = self._places.get(key)
            if place is None:
                raise IndexError(f"No item with that key: {key}")
            return self._values[place]
        return self._values[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, row: object) -> bool:
        return isinstance(row, PostgresRow) and self.keys() == row.keys() and tuple(self) == tuple(row)

    def __hash__(self) -> int:
        return hash(tuple(self._values))

    def keys(self) -> list[str]:
        return list(self._places)


def make_rows(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> Any:
    """A row factory of psycopg."""
    places: dict[str, int] = {}
    for place, column in enumerate(cursor.description or ()):
        places.setdefault(column.name, place)
    return lambda values: PostgresRow(places, values)
