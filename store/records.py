"""Rows of the store, as plain records. Nobody changes one: where something differs, it is another (`replace`).

The two that each answer makes are not frozen, as that costs 4 µs an answer. Owns the words of the schema in Python. Not
here: SQL (schema, store), meaning (proxy).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from store.line_records import COMMON

Turn = Literal["main", "side"]
Status = Literal["pending", "done", "partial", "error"]
Scale = Literal["thumb", "stars", "unit"]
Target = Literal["completion", "session", "user", "rater"]  # what a person can have forgotten
Role = Literal["use", "rate", "admin"]  # of a key, the least first: each may do what those before it may
SignalKind = Literal["message", "tool", "regenerated", "edited", "aborted", "copied", "own"]
SignalState = Literal["waiting", "labelled", "dropped"]  # dropped: nobody will label it
RunStatus = Literal["claimed", "running", "done", "rejected", "empty", "failed", "cancelled"]

BASE = 0  # the version number of the base model, no adapter


@dataclass(frozen=True, slots=True)
class Message:
    """One message as the tree knows it: `body` is canonical JSON, so equal messages are equal bytes."""

    role: str
    body: bytes


@dataclass(slots=True)
class NewCompletion:
    """Data known when a request is sent to the backend. One row a choice; choice 0 has the response id."""

    id: str
    request_id: str
    choice: int
    created_at: float  # Unix seconds
    dialect: str
    backend: str
    model: str  # as the client asked
    served_model: str  # as the backend was asked
    version: int | None  # adapter version; 0 base; None a model that is not ours to train
    session: str | None
    user: str | None
    turn: Turn
    turn_rule: str  # the rule that decided main or side
    streamed: bool
    prompt: tuple[Message, ...]
    request: bytes  # the request body without its messages, JSON
    sampling: dict[str, float] = field(default_factory=dict)  # temperature, top_p, top_k, … as in force
    nodes: tuple[bytes, ...] | None = None  # the names of its messages in the tree, where they are known; not stored
    asides: tuple[int, ...] | None = None  # where its system texts are, if that is known; not stored
    thread: bytes | None = None  # the loose name of the prompt; not stored, the reply's grows from it
    above: bytes | None = None  # the same up to the newest reply in the prompt: what it goes on from
    untrainable: str | None = None  # why it never trains, in one word: the tree has not all that the model saw
    asked: str = ""  # what the person said last, for lists and the search
    images: int = 0  # pictures in its prompt, those that are only named by an address among them
    typed: str | None = None  # all that the person typed in the newest message; None where that is not certain
    tool_errors: tuple[str, ...] = ()  # calls whose results the client marked as errors, in the newest turn
    redacted: tuple[str, ...] = ()  # what was replaced before this was stored: "prompt:api_key", …
    key: str | None = None  # that asked, by its id or its word; None: stored before this was, or imported
    lessons: tuple[PromptLesson, ...] = ()  # that were in its prompt, or left out to compare
    experiment: ExperimentTurn | None = None  # its conversation was drawn for one
    forms: dict[str, list[Any]] | None = (
        None  # how its messages were written (proxy.conversation.as_sent); None: not known
    )
    line: str = COMMON  # whose version answers it, and learns from its ratings


@dataclass(slots=True)
class FinishedCompletion:
    """Data known when the answer ended. `exact` is false where ids or log-probs are not one for one."""

    id: str
    status: Status
    finished_at: float
    reply: Message | None = None
    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    prompt_token_ids: Sequence[int] | None = None
    token_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None  # nats, of what `logprobs_of` says
    # Of a reply by a schema or with a forced call: of the same tokens, had nothing been ruled out; nats.
    unconstrained_logprobs: Sequence[float] | None = None
    pieces: Sequence[bytes] | None = None  # the bytes behind each log-prob, where the server gives no ids
    logprobs_of: str | None = None  # `model`: before sampling; `temperature`: before top-p and top-k; None: as sampled
    exact: bool = False
    inexact_reason: str | None = None
    error: str | None = None
    thread: bytes | None = None  # the loose name of the conversation with this reply; None: the strict one
    translated: bool = False  # asked for as chat completions, said again in the client's dialect
    untrainable: str | None = None  # as above, where only the reply tells
    redacted: tuple[str, ...] = ()  # of the whole completion, prompt and reply
    items: tuple[Item, ...] = ()  # as its backend named them; read by their ids only


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion as stored: both halves above, and its live ratings. `store.completions.page` has it in brief."""

    seq: int
    new: NewCompletion
    end: FinishedCompletion | None  # None while pending
    status: Status
    prompt_hash: bytes | None
    reply_hash: bytes | None
    ratings: tuple[Rating, ...] = ()


class Item(NamedTuple):
    """A piece of an answer under the id that its backend gave it: a message, a call, reasoning."""

    id: str
    kind: str


class ExperimentTurn(NamedTuple):
    """A turn of a conversation that an experiment drew."""

    experiment: int
    conversation: bytes  # a salted hash
    is_candidate: bool


class Requester(NamedTuple):
    """A key and the user that its request named. None means nobody's: no key and no user."""

    key: str | None
    user: str | None


class ReturnedConversation(NamedTuple):
    """A conversation up to a reply, as a client sends it back, and what came with it."""

    thread: bytes  # its loose name
    path: bytes  # its strict one, which differs where the client has changed anything
    system: tuple[bytes, ...]  # the names of its system texts, in order
    model: str
    session: str | None


class Candidate(NamedTuple):
    """A completion that may have given such a reply."""

    id: str
    created_at: float
    text: str  # its beginning


@dataclass(frozen=True, slots=True)
class RecentCompletion:
    """A completion as far as it takes to know whether it is the answer that somebody means."""

    seq: int
    id: str
    created_at: float
    status: Status
    finished_at: float | None
    session: str | None
    model: str
    thread: bytes | None
    conversation: int  # the seq of its first turn
    asked: str
    requester: Requester
    text: str  # all of it, or its beginning, as the call says
    calls: Message | None = None  # the reply itself, where it is nothing but tool calls
    line: str = COMMON
    untrainable: str | None = None

    @property
    def has_content(self) -> bool:
        """Tell whether anything of it came."""
        return bool(self.text.strip()) or self.calls is not None


class RepeatedReply(NamedTuple):
    """A reply that a request repeats."""

    turn: Turn
    rule: str
    system: tuple[str, ...]  # the bodies of its system texts
    id: str = ""
    finished_at: float | None = None


@dataclass(frozen=True, slots=True)
class CompletionQuery:
    """Which completions a list shows: those that ended, newest first, below `before_seq`."""

    limit: int = 30
    before_seq: int | None = None
    search: str | None = None
    unrated: bool = False
    model: str | None = None
    version: int | None = None
    session: str | None = None
    turn: Turn | None = None
    conversation: int | None = None
    newest_of_each: bool = False  # of each conversation only the newest turn that the filters let through


@dataclass(frozen=True, slots=True)
class CompletionSummary:
    """A completion as lists show it: no prompt, no token ids, the beginning of its text."""

    seq: int
    id: str
    created_at: float
    status: Status
    model: str
    version: int | None
    session: str | None
    user: str | None
    turn: Turn
    dialect: str
    asked: str
    text: str
    length: int  # characters of the whole text
    finish_reason: str | None
    error: str | None
    untrainable: str | None
    images: int  # in its prompt
    choice: int
    prompt_hash: bytes | None
    conversation: int  # the seq of its first turn
    calls: Message | None  # the reply itself, where it has tool calls
    ratings: tuple[Rating, ...]


@dataclass(frozen=True, slots=True)
class NewSignal:
    """An event after a completion."""

    completion_id: str
    kind: SignalKind
    said: str = ""
    next_id: str | None = None  # the request in which it was seen
    label: str | None = None  # of a rule; None: a judge is to be asked
    value: float = 0.0
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Signal:
    seq: int
    completion_id: str
    kind: SignalKind
    next_id: str | None
    said: str
    created_at: float
    state: SignalState
    label: str | None
    value: float  # in [-1, 1]; 0 says nothing
    judge: str | None
    config: str | None
    hint: str | None
    why: str | None
    labelled_at: float | None
    tokens: int
    rating_id: str | None


@dataclass(frozen=True, slots=True)
class SharedJudgement:
    """A turn, or a pair, that people and a judge have both looked at."""

    completion_id: str
    person: float
    judge: float


# The texts of a rating: each is redacted, counted, exported, and stays as it was where a new rating leaves it out.
RATING_TEXTS: Final = ("comment", "correction")


@dataclass(frozen=True, slots=True)
class NewRating:
    """One judgement to be stored. `value` is in [-1, 1]; `weight` > 0 multiplies its advantage. Words that are None
    stay as they were in the rater's rating before; empty ones are taken away."""

    completion_id: str
    rater: str
    value: float
    comment: str | None = None
    correction: str | None = None
    weight: float = 1.0
    source: str = "http"
    source_event_id: str | None = None  # (source, source_event_id, rater) is stored once
    scale: Scale = "unit"  # what the value was given as
    human: bool = True  # False: a program's reward or a judge's label, which only training counts
    key: str | None = None  # that rates, where the completion may be another key's
    line: str | None = None  # of a key that rates answers of one line alone


@dataclass(frozen=True, slots=True)
class Rating:
    id: str
    completion_id: str
    rater: str
    value: float
    comment: str | None
    correction: str | None
    weight: float
    source: str
    source_event_id: str | None
    created_at: float
    live: bool
    retracted_at: float | None
    duplicate: bool = False  # True when this call found it stored already: this event, or one that says the same
    replaced: str | None = None  # the id of the rating that this one took the place of
    scale: Scale = "unit"
    human: bool = True
    counterpart: float | None = None  # the rater's value by the other scale, thumbs or stars, on the same side


@dataclass(frozen=True, slots=True)
class PromptLesson:
    """A lesson and one prompt: its words were in it, or they were left out to compare the answers."""

    rating: str
    text: str
    left_out: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A message on a chat platform shows this completion; `person` is whom it was for, by their id there. `key` made
    it."""

    platform: str
    channel: str
    message_id: str
    completion_id: str
    person: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class NewReaction:
    """A person's reaction on a message, or (`value` None) that it is gone. `emoji` "" speaks of all they have there."""

    completion_id: str
    rater: str
    platform: str
    event_id: str
    message: str
    emoji: str
    value: float | None
    timestamp: float
    scale: Scale = "thumb"


@dataclass(frozen=True, slots=True)
class ReactionResult:
    """Outcome of a reaction. late: something newer is known; same: rated so already; nothing: no rating hung on it."""

    result: Literal["rated", "retracted", "same", "nothing", "late", "duplicate"]
    rating: Rating | None = None


@dataclass(frozen=True, slots=True)
class Vote:
    """The opinion of all raters of one completion, in one word."""

    seq: int  # of the first rating of it that still stands
    good: bool


@dataclass(frozen=True, slots=True)
class Day:
    """The live ratings of one local day, which began at `starts_at`."""

    starts_at: float
    good: int
    bad: int
    rated: int


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Main turns of a version by what their raters think of them."""

    version: int
    good: int
    bad: int


@dataclass(frozen=True, slots=True)
class Forgetting:
    """Counts of deleted data, done or to come."""

    completions: tuple[str, ...]
    ratings: tuple[str, ...]
    trained: tuple[int, ...]  # versions that were trained on these ratings
    heirs: tuple[int, ...]  # versions that were built on those
    open_run: int | None  # a run under way that has taken one of them
    reactions: int = 0  # of a rater, on chat platforms, those taken back too


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Versions that learned from what was forgotten, and what is made in their place."""

    versions: tuple[int, ...] = ()
    paths: dict[int, str] = field(default_factory=dict)  # their folders, until those are deleted
    runs: tuple[int, ...] = ()  # that made them, and gave their ratings back
    clean: int = BASE  # the newest version in the live one's line that did not learn from it
    new_runs: tuple[int, ...] = ()  # runs since
    over: str | None = None  # how it ended, in a line


@dataclass(frozen=True, slots=True)
class RunSample:
    """A rating and its completion as a run claims them; a completion has one for each of its claimed ratings."""

    rating: Rating
    completion: Completion
    messages: tuple[Message, ...]  # the whole prompt, root first
    is_held: bool  # kept back for the gate, not trained on


@dataclass(frozen=True, slots=True)
class Fresh:
    """Ratings that no run has used, of completions that may be trained."""

    good: int  # value > 0
    bad: int  # value < 0
    neutral: int
    stale: int  # too many versions old: will never train
    dampened: dict[str, int] = field(default_factory=dict)  # of those, by rater, what one may not bring into a run
    from_judges: int = 0  # of judges: a run by themselves, where what people have rated is too little for one

    @property
    def total(self) -> int:
        """How many a run could take."""
        return self.good + self.bad + self.neutral - sum(self.dampened.values())

    @property
    def most(self) -> int:
        """The number of ratings of the larger one of the runs that could begin."""
        return max(self.total, self.from_judges)


@dataclass(frozen=True, slots=True)
class Run:
    id: int
    status: RunStatus
    model: str
    version: int  # the version number this run would make
    parent: int
    folder: str
    attempts: int
    created_at: float
    started_at: float | None
    ended_at: float | None
    reason: str | None
    samples: int  # completions; one may have several ratings
    held: int
    result: dict[str, Any] | None  # the trainer's result.json
    retrains: bool = False  # it replays ratings on another base
    line: str = COMMON


@dataclass(frozen=True, slots=True)
class Adapter:
    version: int
    parent: int
    run_id: int | None
    model: str
    path: str  # empty: it learned from what was forgotten and is gone
    created_at: float
    manifest: dict[str, Any]
    withdrawn: str | None = None  # why rlproxy rolled it back, until a person makes it live again
    line: str = COMMON

    @property
    def is_deleted(self) -> bool:
        return not self.path


@dataclass(frozen=True, slots=True)
class Key:
    """A key that was handed out, without its secret."""

    id: str
    name: str
    role: Role
    hash: bytes
    created_at: float
    last_used: float | None = None
    revoked_at: float | None = None
    line: str | None = None  # the one that it may use; None: every line
