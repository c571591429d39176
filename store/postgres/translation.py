"""One text of SQL for both engines: what the store's queries say as SQLite, as PostgreSQL reads it.

Owns the syntax that differs, each difference in one rule below. Functions that SQLite has and PostgreSQL has not are
defined in the database (functions.sql), under SQLite's names. Not here: values (values), tables (schema).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

_LITERAL: Final = re.compile(r"(x?)'((?:[^']|'')*)'")
_HIDDEN: Final = re.compile(r"§(\d+)§")
_PARAMETER: Final = re.compile(r"\?|(?<!:):([A-Za-z_]\w*)")
_NULL: Final = re.compile(r"\$(\d+) IS NULL\b")
_CROSS_JOIN: Final = re.compile(r"\bCROSS JOIN\s+")
_CAST: Final = re.compile(r"\bCAST\(")
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_CACHED: Final = 4096  # texts

# Rules that need no more than a pattern, in this order.
_RULES: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"\bBEGIN IMMEDIATE\b"), "BEGIN"),
    (re.compile(r"/\* (ORDER BY [^*]*) \*/"), r"\1"),  # what SQLite does by itself
    (re.compile(r"\s+INDEXED BY \w+"), ""),  # PostgreSQL has no hints
    (re.compile(r"(?:(?<=[\s(,])|^)\+(?=[A-Za-z_])"), ""),  # a hint, too: not by this column's index
    (re.compile(r"\bsqlite_sequence\b"), "counters"),
    (re.compile(r"(?<![$\w\"])user(?![\w\"])"), '"user"'),  # a word of the language
    # Beside a parameter, in the form that an index serves.
    (
        re.compile(r"(\w+(?:\.\"?\w+\"?)?|\"user\") IS (\$\d+)"),
        r"(\1 = \2 OR (\1 IS NULL AND \2 IS NULL))",
    ),
    (re.compile(r"\bIS (?!NULL\b|NOT\b)"), "IS NOT DISTINCT FROM "),
    (re.compile(r"\bLIKE\b"), "ILIKE"),
    (re.compile(r"\bsearch MATCH (\$\d+)"), r"search.words @@ search_query(\1)"),
)


class Statement(NamedTuple):
    """A text for PostgreSQL, with its parameters as $1, $2, …"""

    text: str
    names: tuple[str, ...] | None  # of its parameters in their order; None: they come in the caller's order
    asked_for_null: tuple[int, ...] = ()  # parameters of which the text asks whether they are NULL

    def values(self, parameters: Sequence[Any] | Mapping[str, Any]) -> Sequence[Any]:
        """The parameters in the order of the text. Raises KeyError where one is missing."""
        if self.names is None:
            return tuple(parameters)
        assert isinstance(parameters, Mapping), "named parameters come by their names"
        return [parameters[name] for name in self.names]

    def text_for(self, values: Sequence[Any]) -> str:
        """The text for these values. PostgreSQL cannot tell of which type a parameter is that is only asked for NULL,
        and plans better where the answer is in the text."""
        if not self.asked_for_null:
            return self.text
        return _answered(self.text, frozenset(number for number in self.asked_for_null if values[number - 1] is None))


@lru_cache(_CACHED)
def translate(sql: str) -> Statement:
    literals: list[str] = []

    def hide(match: re.Match[str]) -> str:
        literals.append(rf"'\x{match[2]}'::bytea" if match[1] else match[0])
        return f"§{len(literals) - 1}§"

    names: list[str] = []
    count = 0

    def number(match: re.Match[str]) -> str:
        nonlocal count
        if match[1] is None:
            count += 1
            return f"${count}"
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    text = _PARAMETER.sub(number, _LITERAL.sub(hide, sql))
    assert not (count and names), f"both kinds of parameters: {sql}"
    text = _inner_joins(_casts(text))
    for expression, replacement in _RULES:
        text = expression.sub(replacement, text)
    text = _HIDDEN.sub(lambda match: literals[int(match[1])], text)
    return Statement(text, tuple(names) or None, tuple(sorted({int(match[1]) for match in _NULL.finditer(text)})))


@lru_cache(_CACHED)
def _answered(text: str, nulls: frozenset[int]) -> str:
    return _NULL.sub(lambda match: "TRUE" if int(match[1]) in nulls else "FALSE", text)


def _casts(text: str) -> str:
    """CAST(… AS INTEGER) cuts, and of a blob CAST(… AS TEXT) reads the bytes."""

    def called(inside: str, kind: str) -> str:
        function = {"INTEGER": "to_integer", "TEXT": "to_text"}.get(kind)
        return f"CAST({inside} AS double precision)" if function is None else f"{function}({inside})"

    return _each_call(text, _CAST, lambda inside: called(*re.split(r"\s+AS\s+(?=\w+$)", inside)))


def _each_call(text: str, opening: re.Pattern[str], replace: Callable[[str], str]) -> str:
    """Replace what stands between `opening` and the parenthesis that closes it, the innermost first."""
    while calls := list(opening.finditer(text)):
        last = calls[-1]
        end = _closing(text, last.end())
        text = text[: last.start()] + replace(text[last.end() : end]).replace("CAST(", "CAST (") + text[end + 1 :]
    return text


def _inner_joins(text: str) -> str:
    """SQLite's CROSS JOIN fixes the order of tables and may have a condition: that one is JOIN here."""
    position = 0
    while (match := _CROSS_JOIN.search(text, position)) is not None:
        position = end = match.end()
        if (name := _NAME.match(text, end)) is not None:
            end = name.end()
        if text[end : end + 1] == "(":
            end = _closing(text, end + 1) + 1
        words = re.compile(r"(?:\s+(?:AS\s+)?(?!ON\b)[a-z]\w*)?\s+ON\b").match(text, end)
        if words is not None:
            text = text[: match.start()] + "JOIN " + text[match.end() :]
            position = match.start() + len("JOIN ")
    return text


def _closing(text: str, start: int) -> int:
    """Where the parenthesis closes that was opened before `start`."""
    depth = 1
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if not depth:
            return index
    raise AssertionError(f"a parenthesis is open: {text}")
