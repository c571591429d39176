"""Continuous batching: many replies generated at once over one model, each joining and leaving at any step.

Owns the worker thread, the one batch it advances, and the way in and out for asyncio (`generate` returns a Stream).
Rows wear their adapters (batched_lora) in the same forward pass, so base and adapters share a batch. Prompts are read
in chunks between steps, so a long one does not stop the others. Not here: HTTP, names of adapters (http_api).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import random
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from trainer.policy import eos
from trainer.serve.batched_lora import BatchedAdapter, LoraRows
from trainer.serve.constraints import Constraint, ConstraintError, ConstraintState
from trainer.serve.kv import RowCache, gather
from trainer.serve.reply_text import ReplyText
from trainer.serve.sampling import ChosenTokens, Sampling, choose
from trainer.serve.sight import PlacedPicture, Sight

MAX_ROWS = 16  # bounds memory and how slow one reply gets; more rows would still yield more tokens in all
# Prompt tokens read between two steps, over all rows. On one CPU thread 128 stop running replies for 0.5 s (512: 1.7 s)
# and read a prompt 10 % slower than 512.
CHUNK = 128
CACHE_BYTES = 2 << 30  # of keys and values; padding counts, so one long row is not joined by many short ones
RESERVED = 256  # tokens that a reply is expected to need at admission; max_tokens is often far more than it uses
CLOSING = "The server is shutting down."

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GenerationRequest:
    """A prompt and how to answer it."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    adapter: BatchedAdapter | None = None
    likeliest: int = 0  # alternatives to report for each token
    ignore_eos: bool = False  # but for the end of what a constraint allows
    constraint: Constraint | None = None
    pictures: tuple[PlacedPicture, ...] = ()


@dataclass(frozen=True)
class Delta:
    """One step of one reply: one token, and the text that is safe to show by now."""

    token: int
    logprob: float
    text: str
    likeliest: list[tuple[int, float]]
    finish: str | None = None  # stop | length
    stopped_by: str | None = None
    unconstrained: float | None = None  # the token's log-prob, had the constraint ruled nothing out


class EngineError(Exception):
    """Generation stopped for a reason of the server's own."""


class Stream:
    """Replies as they come, as (choice, Delta); over when each has `finish`. `cancel` frees their rows."""

    def __init__(self, choices: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.cancelled = False
        self._open = choices
        self._queue: asyncio.Queue[tuple[int, Delta | EngineError]] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[tuple[int, Delta]]:
        while self._open:
            choice, item = await self._queue.get()
            if isinstance(item, EngineError):
                raise item
            self._open -= item.finish is not None
            yield choice, item

    def cancel(self) -> None:
        self.cancelled = True

    def push(self, choice: int, item: Delta | EngineError) -> None:
        self._queue.put_nowait((choice, item))


class _Row:
    """A reply in the making."""

    def __init__(self, stream: Stream, choice: int, request: GenerationRequest, tokenizer: Any) -> None:
        self.stream, self.choice, self.request = stream, choice, request
        self.text = ReplyText(tokenizer, request.stop)
        seed = request.sampling.seed
        # Replies to one request share a seed, not their randomness.
        self.random = random.Random(None if seed is None else f"{seed}/{choice}")  # noqa: S311 (no secret)
        self.last = 0
        self.count = 0
        self.counts: Counter[int] = Counter()  # of its tokens, for penalties
        self.is_finished = False
        self._constraint: ConstraintState | None = None
        self._failure: str | None = None

    def mask(self) -> torch.Tensor | None:
        """(V,) what its constraint allows next. Where that cannot be said, the row ends with the next `advance`."""
        if self.request.constraint is None or self.is_finished or self._failure:
            return None
        if self._constraint is None:
            self._constraint = self.request.constraint.start()
        try:
            return self._constraint.mask()
        except ConstraintError as error:
            self._failure = str(error)
            return None

    def advance(self, chosen: ChosenTokens, index: int, ends: frozenset[int]) -> Delta | EngineError:
        self.last, self.count = chosen.ids[index], self.count + 1
        if self.request.sampling.has_penalty:
            self.counts[self.last] += 1
        if self._constraint is not None and self.last not in ends and self._failure is None:
            try:
                self._constraint.take(self.last)
            except ConstraintError as error:
                self._failure = str(error)
        if self._failure is not None:
            self.is_finished = True
            return EngineError(f"The reply cannot go on in the form that was asked for: {self._failure}.")
        if not math.isfinite(chosen.logprobs[index]):
            self.is_finished = True
            return EngineError("The model computed no probabilities (its logits are not finite).")
        finish = None
        if self.last in ends and (self._constraint is not None or not self.request.ignore_eos):
            text, finish = self.text.finish(), "stop"
        else:
            text = self.text.push(self.last)
            if self.text.stopped_by is not None:
                finish = "stop"
            elif self.count >= self.request.max_tokens:
                text += self.text.finish()
                finish = "length" if self.text.stopped_by is None else "stop"
        self.is_finished = finish is not None
        likeliest = chosen.likeliest(index, self.request.likeliest) if self.request.likeliest else []
        stop, unconstrained = self.text.stopped_by, chosen.unconstrained[index]
        return Delta(self.last, chosen.logprobs[index], text, likeliest, finish, stop, unconstrained)


class _Wave:
    """New rows whose prompts are being read. Rows with the same prompt and adapter read it once."""

    def __init__(
        self,
        rows: Sequence[_Row],
        layers: int,
        device: torch.device,
        read: Sequence[tuple[PlacedPicture, torch.Tensor]] = (),
    ) -> None:
        """`read`: pictures of these rows that were read before."""
        distinct = {(id(r.request.adapter), r.request.prompt): r.request for r in rows}
        self.requests = sorted(distinct.values(), key=lambda request: id(request.adapter))
        place = {(id(request.adapter), request.prompt): n for n, request in enumerate(self.requests)}
        self.rows = sorted(rows, key=lambda r: id(r.request.adapter))
        self.places = [place[id(r.request.adapter), r.request.prompt] for r in self.rows]
        self.width = max(len(request.prompt) for request in self.requests)
        padded = [[0] * (self.width - len(request.prompt)) + list(request.prompt) for request in self.requests]
        self.ids = torch.tensor(padded, device=device)  # (W, P), padded on the left
        self.cache = RowCache(layers, [0] * len(self.requests))
        pictures = [picture for request in self.requests for picture in request.pictures]
        self.unread = deque(picture for picture in pictures if picture.image)
        self.read = [(picture, rows_of_it) for picture, rows_of_it in read if picture in pictures]

    def rows_with(self, picture: PlacedPicture) -> list[_Row]:
        return [row for row in self.rows if picture in row.request.pictures]


def context_of(config: Any) -> int:
    """How many tokens a row may have. With longrope, as many as the model had before it was stretched. Beyond, its
    rotary factors change for a whole batch, and so a long request would change the answers beside it."""
    rope = getattr(config, "rope_parameters", None) or {}
    longest = int(config.max_position_embeddings)
    if rope.get("rope_type") != "longrope":
        return longest
    short = rope.get("original_max_position_embeddings")
    return int(short or getattr(config, "original_max_position_embeddings", None) or longest)


def _cached_width(config: Any) -> int:
    """Numbers of a key or a value that a layer keeps for a token: the most, where layers differ (Gemma 4)."""
    members = config.to_dict()

    def size(name: str) -> int:
        value = members.get(name) or 0
        return max(value) if isinstance(value, list) else int(value)

    heads = max(size("num_key_value_heads"), size("num_global_key_value_heads")) or size("num_attention_heads")
    head = max(size("head_dim"), size("global_head_dim")) or size("hidden_size") // size("num_attention_heads")
    return heads * head


class Engine:
    def __init__(self, model: Any, tokenizer: Any, *, max_rows: int = MAX_ROWS, sight: Sight | None = None) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.sight = sight
        config = model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or []) - {"full_attention", "sliding_attention"}
        if kinds:
            raise EngineError(
                "The built-in server runs models with attention layers only, and this one has "
                f"{', '.join(sorted(kinds))}. Serve it with vLLM, llama.cpp or Ollama (docs/reference/models.md)."
            )
        self.context = context_of(config)
        self._layers: int = config.num_hidden_layers
        token_bytes = 2 * self._layers * _cached_width(config) * next(model.parameters()).element_size()
        self._columns = max(self.context, CACHE_BYTES // token_bytes)  # one row of full length always fits
        self.vocabulary: int = config.vocab_size
        self.ends = frozenset(eos.of_replies(model.generation_config.eos_token_id, tokenizer))
        self._max_rows = max_rows
        self._lora = LoraRows(model)
        self._wake = threading.Condition()
        self._waiting: deque[_Row] = deque()
        self._rows: list[_Row] = []
        self._cache: RowCache | None = None
        self._wave: _Wave | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    # --- from asyncio ---

    def generate(self, request: GenerationRequest, choices: int = 1) -> Stream:
        assert 0 < len(request.prompt) < self.context, "the caller checks what fits"
        assert request.max_tokens > 0
        stream = Stream(choices)
        with self._wake:
            if self._closing:
                raise EngineError(CLOSING)
            self._waiting.extend(_Row(stream, n, request, self.tokenizer) for n in range(choices))
            self._wake.notify()
        return stream

    @property
    def load(self) -> tuple[int, int]:
        """Replies being generated, and waiting."""
        wave = self._wave
        return len(self._rows) + (len(wave.rows) if wave else 0), len(self._waiting)

    def close(self) -> None:
        """Ends what runs with an error to each. Call it from the loop's thread or after the loop has ended."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    # --- the worker ---

    def _work(self) -> None:
        while True:
            with self._wake:
                while not (self._closing or self._waiting or self._rows or self._wave):
                    self._wake.wait()
            if self._closing:
                self._fail(CLOSING)
                return
            try:
                with torch.inference_mode():
                    self._turn()
            except Exception as error:  # whatever a model raises: the server outlives it
                log.exception("generation failed")
                self._fail(f"Generation failed: {error}")

    def _turn(self) -> None:
        self._leave()
        if self._wave is None:
            self._admit()
        if self._wave is not None and self._wave.unread:
            self._read_picture(self._wave)
        elif self._wave is not None:
            self._read_prompts(self._wave)
        if self._rows:
            assert self._cache is not None
            self._lora.wear([row.request.adapter for row in self._rows])
            ids = torch.tensor([[row.last] for row in self._rows], device=self.model.device)  # (B, 1)
            logits = self._cache.append(self.model, ids, [length + 1 for length in self._cache.lengths])
            self._advance(self._rows, logits)

    def _leave(self) -> None:
        """Free the rows that have ended or whose client has gone."""
        staying = [n for n, row in enumerate(self._rows) if not (row.is_finished or row.stream.cancelled)]
        if len(staying) < len(self._rows):
            self._rows = [self._rows[n] for n in staying]
            self._cache = gather([(self._cache, staying)]) if self._cache and staying else None
        if self._wave and all(row.stream.cancelled for row in self._wave.rows):
            self._wave = None

    def _admit(self) -> None:
        """Take waiting rows, in order, while there are rows and cache for them."""
        rows = len(self._rows)
        widest = max(self._cache.lengths, default=0) if self._cache else 0
        admitted: list[_Row] = []
        with self._wake:
            while self._waiting:
                row = self._waiting[0]
                if not row.stream.cancelled:
                    count = rows + len(admitted) + 1
                    need = len(row.request.prompt) + min(row.request.max_tokens, RESERVED)
                    if count > 1 and (count > self._max_rows or count * max(widest, need) > self._columns):
                        break
                    widest = max(widest, need)
                    admitted.append(row)
                self._waiting.popleft()
        if admitted:
            self._wave = _Wave(admitted, self._layers, self.model.device)

    def _read_picture(self, wave: _Wave) -> None:
        """One picture of the new rows' prompts. One that cannot be read ends its own requests."""
        assert self.sight is not None, "only what was seen has pictures"
        picture = wave.unread.popleft()
        self._lora.wear([])
        try:
            wave.read.append((picture, self.sight.read(picture)))
        except Exception as error:  # a processor and a model are programs: they may raise anything
            log.exception("a picture was not read")
            failed = wave.rows_with(picture)
            remaining = [row for row in wave.rows if row not in failed]
            self._wave = _Wave(remaining, self._layers, self.model.device, wave.read) if remaining else None
            self._deliver([(row, EngineError(f"A picture was not read: {error}")) for row in failed])

    def _read_prompts(self, wave: _Wave) -> None:
        """One chunk of the new rows' prompts; after the last one they get their first token and join the batch."""
        start = wave.cache.width
        end = min(wave.width, start + max(CHUNK // len(wave.requests), 1))
        self._lora.wear([request.adapter for request in wave.requests])
        lengths = [max(end - (wave.width - len(request.prompt)), 0) for request in wave.requests]
        with self.sight.showing(wave.read) if self.sight else contextlib.nullcontext():
            logits = wave.cache.append(self.model, wave.ids[:, start:end], lengths)
        if end < wave.width:
            return
        self._wave = None
        self._join(wave)
        self._advance(wave.rows, logits[wave.places])

    def _join(self, wave: _Wave) -> None:
        """One batch of old and new rows, with those of an adapter side by side (lora_rows computes them together)."""
        old = [(self._cache, n, row) for n, row in enumerate(self._rows) if self._cache is not None]
        new = [(wave.cache, place, row) for place, row in zip(wave.places, wave.rows, strict=True)]
        entries = sorted(old + new, key=lambda entry: id(entry[2].request.adapter))
        self._cache = gather(
            [(cache, [n for _, n, _ in run]) for cache, run in itertools.groupby(entries, key=lambda entry: entry[0])]
        )
        self._rows = [row for _, _, row in entries]

    def _advance(self, rows: Sequence[_Row], logits: torch.Tensor) -> None:
        draws = [row.random.random() for row in rows]
        masks = {index: mask for index, row in enumerate(rows) if (mask := row.mask()) is not None}
        counts = {index: row.counts for index, row in enumerate(rows) if row.counts}
        chosen = choose(logits, [row.request.sampling for row in rows], draws, masks, counts)
        open_rows = [(index, row) for index, row in enumerate(rows) if not row.is_finished]
        self._deliver([(row, row.advance(chosen, index, self.ends)) for index, row in open_rows])

    def _deliver(self, items: Sequence[tuple[_Row, Delta | EngineError]]) -> None:
        """One wake-up of an event loop a step, not one a token."""

        def push_all() -> None:
            for row, item in items:
                row.stream.push(row.choice, item)

        if items:
            try:
                items[0][0].stream.loop.call_soon_threadsafe(push_all)
            except RuntimeError:  # the loop has closed: nobody listens any more
                for row, _ in items:
                    row.stream.cancel()

    def _fail(self, reason: str) -> None:
        with self._wake:
            waiting, self._waiting = list(self._waiting), deque()
        rows = [*self._rows, *(self._wave.rows if self._wave else []), *waiting]
        self._rows, self._cache, self._wave = [], None, None
        self._deliver([(row, EngineError(reason)) for row in rows if not row.is_finished])
