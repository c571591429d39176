"""The end of a completion, as the store takes it: a reply, redacted, with what is known of its tokens.

Owns why a reply cannot be compared token by token, and why it never trains. A member of an odd type costs that member,
not the answer. Not here: how the answer was read (answer_reader), its commit (capture).
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Final, NamedTuple

import orjson
import structlog

from proxy.backends.sampling_defaults import changes_nothing
from proxy.conversation.capture_health import Health
from proxy.conversation.conversations import canonical, extend_thread
from proxy.conversation.cut_prompts import CUT, cut_reason
from proxy.conversation.modalities import first_non_text
from proxy.conversation.redaction import INEXACT, UNTRAINABLE, Redactor, places
from proxy.core.events import Events
from proxy.dialects import Reply
from proxy.dialects.chat_form import reply_message
from proxy.relay.capture.answer_reader import AnswerReader
from store.captured.rows import IDS, LOGPROBS
from store.records import FinishedCompletion, NewCompletion, Status

log = structlog.get_logger()

ROUNDING: Final = 1e-3  # a log-prob of 0 may come as a little more (trainer.lessons.samples)
UNREAD: Final = "unread_event"  # the reason why a reply never trains whose text may lack something


@dataclass(slots=True)
class AnswerSource:
    """How the backend came to an answer."""

    translated: bool = False  # it comes as chat completions, and is said again
    guessed: str | None = None  # the reason why it is not known how the server samples
    finished_at: float | None = None  # Unix seconds at which its client was told that it is whole; None: now
    withheld: str | None = None  # the server's message about our wishes, where it was asked without them
    logprobs_of: str | None = None  # what the backend's log-probs are of (proxy.backends.base)


class AnswerOutcome:
    """The ends of one request's completions."""

    def __init__(
        self,
        reader: AnswerReader,
        source: AnswerSource,
        redactor: Redactor,
        health: Health,
        events: Events,
        keepable: Callable[[str], str],
    ) -> None:
        """`keepable`: what may be stored of an error."""
        self._reader = reader
        self._source = source
        self._redactor = redactor
        self._health = health
        self._events = events
        self._keepable = keepable

    def ends(
        self, rows: Sequence[NewCompletion], replies: Mapping[int, Reply], status: Status, error: str | None
    ) -> list[FinishedCompletion]:
        """One a row. `replies`: by the choice."""
        ends: list[FinishedCompletion] = []
        for row in rows:
            reply = replies.get(row.choice)
            try:
                end = self._end(row, reply, status, error) if reply else self._end_without_reply(row, status, error)
            except Exception as failure:  # a member of an odd type must not cost the client its answer
                self._reader.drop(f"the answer could not be understood: {failure!r}")
                end = self._end_without_reply(row, status, self._reader.broken)
            ends.append(end)
        return ends

    def message(self, text: str | None) -> str | None:
        """Another's words as they may be stored."""
        return None if text is None else self._redactor.text(self._keepable(text))

    def _end_without_reply(self, row: NewCompletion, status: Status, error: str | None) -> FinishedCompletion:
        missing = error or (None if status != "done" else "the backend sent no such choice")
        return FinishedCompletion(
            row.id,
            "error" if status == "done" else status,
            self._source.finished_at or time.time(),
            error=missing and self._redactor.text(missing),
            inexact_reason=self._broken(),
            translated=self._source.translated,
            redacted=row.redacted,
        )

    def _end(self, row: NewCompletion, reply: Reply, status: Status, error: str | None) -> FinishedCompletion:
        """Raises TypeError for what the store does not take."""
        reply, numbers = self._sound(reply)
        secrets: set[str] = set()
        # All of it: the token ids have the reasoning too.
        is_clean = self._redactor.value(reply.message, secrets) is reply.message
        redacted = (*row.redacted, *places(reply=secrets)) if secrets else row.redacted
        reason = self._inexact_reason(row, reply, is_redacted=bool(redacted), is_whole=numbers.prompt_ids is not None)
        if redacted or self._reader.gap is not None:
            numbers = _NONE  # its token ids would spell the secret out, or are not those of the text
        message = {**reply.message, "role": "assistant"}
        stored = self._redactor.message(canonical(message))
        return FinishedCompletion(
            id=row.id,
            status=status,
            finished_at=self._source.finished_at or time.time(),
            reply=stored,
            thread=extend_thread(row.thread, message, self._redactor.message, stored),
            text=reply.text if is_clean else self._redactor.text(reply.text),
            finish_reason=reply.finish_reason and self._redactor.text(reply.finish_reason),
            usage=reply.usage and self._redactor.walked(reply.usage),
            prompt_token_ids=numbers.prompt_ids,
            token_ids=numbers.ids,
            logprobs=numbers.logprobs,
            unconstrained_logprobs=numbers.unconstrained,
            pieces=numbers.pieces,
            logprobs_of=self._source.logprobs_of if numbers.logprobs is not None else None,
            exact=reason is None,
            inexact_reason=reason,
            error=error,
            translated=self._source.translated,
            untrainable=self._untrainable(message, is_secret=bool(secrets)),
            redacted=redacted,
            items=() if self._source.translated else reply.items,
        )

    def _sound(self, reply: Reply) -> tuple[Reply, _Numbers]:
        """The reply without what the store cannot take, and its numbers."""
        reply = replace(reply, message=reply_message(reply.message))
        orjson.dumps((reply.text, reply.finish_reason, reply.usage))  # what the store takes; else TypeError
        if not isinstance(reply.finish_reason, str | None) or not isinstance(reply.usage, dict | None):
            self._reader.drop("the backend's finish reason or usage is none")
            reply = replace(reply, finish_reason=None, usage=None)
        try:
            return reply, _packed(reply)
        except (TypeError, ValueError, OverflowError):
            self._reader.drop("the backend sent token ids or log-probs that are none")
            return reply, _NONE

    def _inexact_reason(self, row: NewCompletion, reply: Reply, *, is_redacted: bool, is_whole: bool) -> str | None:
        """Why the reply cannot be compared token by token; None where it can. `is_whole`: the ids of its prompt came,
        so it was not cut. Where it has pictures, their tokens tell a run so."""
        cut = None if row.untrainable or row.images or is_whole else cut_reason(row.prompt, reply.usage)
        if row.choice == 0 and (line := self._health.cut.note(cut)) is not None:
            log.warning("a prompt was cut", completion=row.id, reason=cut)
            self._events.emit("problem", message=line)
        if cut is not None:
            doubt: str | None = f"{CUT}{cut}"
        else:
            doubt = self._lacking(reply) or self._source.guessed or self._other_logprobs(row.sampling)
        reason = self._broken() or (INEXACT if is_redacted else doubt)
        if reason is not None and self._reader.unknown is not None:
            return f"{reason}; {self._redactor.text(self._reader.unknown)}"
        return reason

    def _lacking(self, reply: Reply) -> str | None:
        lacking = reply.inexact_reason()
        if lacking is None or self._source.withheld is None:
            return lacking
        return f"{lacking}, and refuses to: {self.message(self._source.withheld)!r:.200}"

    def _other_logprobs(self, sampling: Mapping[str, float]) -> str | None:
        logprobs_of = self._source.logprobs_of
        if logprobs_of is None or (logprobs_of == "model" and changes_nothing(sampling)):
            return None
        return f"the backend's log-probs are of the {logprobs_of} alone"

    def _broken(self) -> str | None:
        broken = self._reader.gap or self._reader.broken
        return None if broken is None else self._redactor.text(broken)

    def _untrainable(self, message: Mapping[str, object], *, is_secret: bool) -> str | None:
        if is_secret:
            return UNTRAINABLE
        return UNREAD if self._reader.gap is not None else first_non_text([message])


class _Numbers(NamedTuple):
    """Numbers of a reply as the store packs them: four bytes each, where a list of Python's has forty."""

    prompt_ids: array[int] | None
    ids: array[int] | None
    logprobs: array[float] | None
    unconstrained: array[float] | None
    pieces: list[bytes] | None


_NONE: Final = _Numbers(None, None, None, None, None)


def _packed(reply: Reply) -> _Numbers:
    """Raises TypeError, ValueError and OverflowError for what are not numbers."""
    prompt_ids, ids, logprobs = reply.prompt_token_ids, reply.token_ids, reply.logprobs
    if prompt_ids is ids is logprobs is None:
        return _NONE
    unconstrained = None if logprobs is None else reply.unconstrained_logprobs
    for numbers in (logprobs, unconstrained):
        if numbers and not (all(map(isfinite, numbers)) and max(numbers) <= ROUNDING):
            raise ValueError("a log-prob that is not finite, or above 0")
    if bool in {*map(type, prompt_ids or ()), *map(type, ids or ())}:
        raise TypeError("a token id that is not a number")
    return _Numbers(
        None if prompt_ids is None else array(IDS, prompt_ids),
        None if ids is None else array(IDS, ids),
        None if logprobs is None else array(LOGPROBS, logprobs),
        None if unconstrained is None else array(LOGPROBS, unconstrained),
        reply.pieces if logprobs is not None else None,
    )
