"""Compile the form of a reply, a JSON schema or a tool call, to the tokens that may come next.

Owns llguidance: its tokenizer, compilation within bounds, and the mask of each step. A schema is taken whole or refused
with its reason, and never in part. Blocking: compile in a thread. Not here: which grammar a request means
(chat_wire, reply_forms), how the mask changes what is sampled (sampling).
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.hf import from_tokenizer
from torch import Tensor

from trainer.serve.schema_ends import TooManyReferences, has_finite_instance

MAX_SCHEMA: Final = 64 << 10  # bytes; the tokens of a longer one take longer than a step of the model
MASK_SECONDS: Final = 0.25  # CPU time of one mask: all rows wait for it
MAX_STATES: Final = 50_000  # of a grammar's lexer, 1 to 2 kB each
CACHED: Final = 8  # compiled grammars that are kept: the same program sends the same schema again
# As json.dumps writes it, which models know best. With free white space a small model may write nothing else.
FORM: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": False}


class ConstraintError(Exception):
    """A constraint that cannot be kept; one sentence, and which option and path of its schema, where that is known."""

    def __init__(self, reason: str, option: int = 0, path: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.option, self.path = option, path


class ConstraintState:
    """One reply's way through a grammar."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    def mask(self) -> Tensor:
        """(V,) true where a token may come next, at least once. Raises ConstraintError."""
        start = time.thread_time()
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        seconds = time.thread_time() - start
        if self._matcher.is_error():
            raise ConstraintError(_reason(self._matcher.get_error()))
        if seconds > MASK_SECONDS:
            raise ConstraintError("its grammar takes too long to follow: shorten its texts and patterns")
        flags = np.zeros(self._vocabulary, bool)
        count = min(8 * len(bits), self._vocabulary)
        flags[:count] = np.unpackbits(bits, count=count, bitorder="little")
        if not flags.any():
            raise ConstraintError("nothing may come next")
        return torch.from_numpy(flags)

    def take(self, token: int) -> None:
        """Raises ConstraintError for a token that the mask did not allow, or where a bound is reached."""
        if not self._matcher.consume_token(token):
            raise ConstraintError(_reason(self._matcher.get_error()))


class Constraint:
    """A compiled grammar, for any number of replies."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary

    def start(self) -> ConstraintState:
        return ConstraintState(self._matcher.deep_copy(), self._vocabulary)


@dataclass(frozen=True, slots=True)
class SchemaPart:
    """A JSON schema in a grammar."""

    schema: Mapping[str, Any]


Grammar = Sequence[str | int | SchemaPart]  # texts, ids of special tokens, and schemas, one after the other


class Compiler:
    """Grammars for one tokenizer. Thread-safe: one compilation at a time."""

    def __init__(self, tokenizer: Any, vocabulary: int, ends: Sequence[int]) -> None:
        """`vocabulary`: the width of the model's logits; `ends`: tokens that end a reply."""
        self._tokenizer, self._vocabulary, self._ends = tokenizer, vocabulary, tuple(ends)
        self._cached: OrderedDict[str, Constraint] = OrderedDict()
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Make the library's tokenizer of ours: a second or so, in which no other thread of Python runs."""
        _library_tokenizer(self._tokenizer, self._ends)

    def compile(self, options: Sequence[Grammar]) -> Constraint:
        """A reply is one of `options`. Raises ConstraintError."""
        text = _lark(options)
        with self._lock:
            if (constraint := self._cached.get(text)) is not None:
                self._cached.move_to_end(text)
                return constraint
            constraint = self._compile(text, options)
            self._cached[text] = constraint
            while len(self._cached) > CACHED:
                self._cached.popitem(last=False)
            return constraint

    def _compile(self, text: str, options: Sequence[Grammar]) -> Constraint:
        for n, schema in _schemas(options):
            _check_schema(schema, n)
        matcher = self._matcher(text)
        if matcher.is_error():
            raise self._fault(matcher.get_error(), options)
        constraint = Constraint(matcher, self._vocabulary)
        try:
            constraint.start().mask()
        except ConstraintError as error:
            raise ConstraintError(f"no reply satisfies it within bounds: {error}") from None
        return constraint

    def _matcher(self, text: str) -> LLMatcher:
        return LLMatcher(
            _library_tokenizer(self._tokenizer, self._ends),
            text,
            log_level=0,
            limits=LLParserLimits(max_lexer_states=MAX_STATES, verbose_errors=False),
        )

    def _fault(self, error: str, options: Sequence[Grammar]) -> ConstraintError:
        """The reason, with the first option that has it by itself."""
        reason = _reason(error)
        for n, schema in _schemas(options) if len(options) > 1 else ():
            matcher = self._matcher(_lark([[SchemaPart(schema)]]))
            if matcher.is_error():
                reason = _reason(matcher.get_error())
                return ConstraintError(reason, n, _path(schema, reason))
        return ConstraintError(reason, 0, next((_path(schema, reason) for _, schema in _schemas(options)), ()))


@lru_cache(maxsize=2)
def _library_tokenizer(tokenizer: Any, ends: tuple[int, ...]) -> LLTokenizer:
    return from_tokenizer(tokenizer, eos_token=list(ends))


def _schemas(options: Sequence[Grammar]) -> list[tuple[int, Mapping[str, Any]]]:
    """Schemas with the numbers of their options."""
    return [(n, part.schema) for n, option in enumerate(options) for part in option if isinstance(part, SchemaPart)]


def _check_schema(schema: Mapping[str, Any], option: int) -> None:
    try:
        size = len(json.dumps(schema))
    except RecursionError:
        raise ConstraintError("it is nested too deeply", option) from None
    if size > MAX_SCHEMA:
        raise ConstraintError(f"it has {size:,} bytes, and at most {MAX_SCHEMA:,} are taken", option)
    try:
        is_finite = has_finite_instance(schema)
    except (TooManyReferences, RecursionError):
        raise ConstraintError("its references lead to too many places", option) from None
    if not is_finite:
        reason = "its references require each other without end, so no answer would ever be complete"
        raise ConstraintError(reason, option)


def _lark(options: Sequence[Grammar]) -> str:
    """The grammar in llguidance's own form of Lark."""
    rules = [f"option_{n}: {' '.join(map(_term, option))}" for n, option in enumerate(options)]
    return "\n".join(["start: " + " | ".join(f"option_{n}" for n in range(len(options))), *rules])


def _term(part: str | int | SchemaPart) -> str:
    if isinstance(part, SchemaPart):
        try:
            # The last member of that name wins: a schema does not choose how the library reads it.
            return f"%json {json.dumps({**part.schema, 'x-guidance': FORM})}"
        except RecursionError:
            raise ConstraintError("it is nested too deeply") from None
    return f"<[{part}]>" if isinstance(part, int) else json.dumps(part)


def _reason(error: str) -> str:
    """The library's message without its grammar and state."""
    text = re.split(r"<state>|<non-verbose", error.split("failed to compile JSON schema:")[-1])[0]
    lines = [
        line.strip() for line in text.splitlines() if line.strip() and not re.match(r"\s*\d+ \| |\s*\^+\s*$", line)
    ]
    return " ".join(lines)[:300] or "the library gave no reason"


def _path(schema: Any, reason: str) -> tuple[str, ...]:
    """The path of the first member or value that the reason quotes; empty where there is none."""
    quoted = set(re.findall(r"""["']([^"'\s]+)["']""", reason)) | set(re.findall(r": (\S+)$", reason))
    return _path_to(schema, quoted, ())


def _path_to(value: Any, quoted: set[str], path: tuple[str, ...]) -> tuple[str, ...]:
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        item_path = (*path, str(key))
        is_schema_member = isinstance(key, str) and path[-1:] not in (("properties",), ("$defs",), ("definitions",))
        if (is_schema_member and key in quoted) or (isinstance(item, str) and item in quoted):
            return item_path
        if deeper := _path_to(item, quoted, item_path):
            return deeper
    return ()
