"""Results from the messages of a conversation, worked out once: each turn costs its new messages only.

An agent sends the whole history again with every turn. Owns what each message adds to what is above it: how it is
stored, and the names of the conversation up to there. Not here: how much of it is remembered (bounded_cache), and the
tree (store). What a canonical message, a thread or a secret is belongs to conversations and redaction.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from proxy.conversation import turns
from proxy.conversation.as_sent import Form, form_of, forms_of, thought_in
from proxy.conversation.conversations import canonical, extend_thread
from proxy.conversation.modalities import more_than_text
from proxy.conversation.redaction import Redactor
from proxy.core.bounded_cache import Running, common
from proxy.core.json_edit import dumps
from proxy.core.offload import length
from store.captured.tree import ASIDE, message_hash, without, woven
from store.records import Message

Said = dict[str, Any]  # a message in chat form
S = TypeVar("S")

LEAST: Final = 4096  # bytes of a request: less is worked out sooner than it is looked up


class _Turn(NamedTuple, Generic[S]):
    """The newest request of a conversation."""

    messages: list[Said]
    states: list[S]
    odd: list[int]  # messages with more than texts in them: 1, 1.0 and true are equal, and are not the same


class KnownHistory(NamedTuple, Generic[S]):
    """Knowledge of the first messages of a request."""

    states: list[S]
    odd: list[int]
    turn: _Turn[S] | None  # that had them


class HistoryFold(Generic[S]):
    """A state after each message, from the state above it and the message. May be used from any thread."""

    def __init__(self, step: Callable[[S | None, Said], S]) -> None:
        self._step = step
        self._turns: Running[_Turn[S]] = Running()

    def known(self, messages: list[Said], size: int = LEAST) -> KnownHistory[S]:
        """The states after as many of the first messages as came in this order before. `size`: bytes of the request."""
        most, best = 0, None
        for turn in self._turns if messages and size >= LEAST else ():
            if turn.messages[0] != messages[0]:  # nearly every other conversation
                continue
            same = _same(turn, messages)
            if same > most:
                most, best = same, turn
                if same == len(turn.messages):
                    break
        if best is None:
            return KnownHistory([], [], None)
        return KnownHistory(best.states[:most], [at for at in best.odd if at < most], best)

    def rest(self, known: KnownHistory[S], messages: list[Said], size: int) -> list[S]:
        """The state after each message. `size`: bytes of the request; `known`: what `known` said, is used up."""
        states, odd, before = known
        went_on = before is not None and len(states) >= len(before.messages) - 1
        for at in range(len(states), len(messages)):
            message = messages[at]
            states.append(self._step(states[-1] if states else None, message))
            if not all(type(value) is str for value in message.values()):
                odd.append(at)
        if messages and size >= LEAST:
            self._turns.remember(_Turn(messages, states, odd), size, before if went_on else None)
        return states

    def clear(self) -> None:
        self._turns.clear()


def _same(turn: _Turn[Any], messages: list[Said]) -> int:
    """How many of the first messages are the same."""
    seen = turn.messages
    same = common(min(len(seen), len(messages)), lambda start, end: seen[start:end] == messages[start:end])
    doubtful = (at for at in turn.odd if at < same and seen[at] is not messages[at])
    return next((at for at in doubtful if dumps(seen[at]) != dumps(messages[at])), same)


class Fact(NamedTuple):
    """Knowledge of a message and of all above it."""

    message: Message  # as it is stored
    node: bytes  # its name in the store's tree
    thread: bytes | None
    above: bytes | None  # the thread up to the newest reply
    secrets: frozenset[str]  # the kinds that were taken out
    untrainable: str | None  # the first thing that is no text
    used_tools: bool
    form: Form | None  # how the message itself was written


class ToldHistory(NamedTuple):
    """Knowledge of all the messages of a request."""

    prompt: tuple[Message, ...]
    nodes: tuple[bytes, ...]  # of each of them
    asides: tuple[int, ...]  # which of them are system texts
    thread: bytes | None
    above: bytes | None
    secrets: frozenset[str]
    untrainable: str | None
    turns: turns.KnownTurn
    forms: dict[str, Form] | None  # how all of them were written; None where secrets were taken out


class History:
    def __init__(self, redactor: Redactor) -> None:
        # System texts are not part of the conversation: agents change them from turn to turn.
        self._said = HistoryFold(partial(_fact, redactor))
        self._aside = HistoryFold(partial(_aside_fact, redactor))

    def telling(self, messages: list[Said], size: int) -> Telling:
        return Telling(self._said, self._aside, messages, size)

    def clear(self) -> None:
        self._said.clear()
        self._aside.clear()


class Telling:
    """One request's messages: what is known of them, and the way to know the rest."""

    def __init__(
        self,
        said: HistoryFold[Fact],
        aside: HistoryFold[Fact],
        messages: list[Said],
        size: int,
    ) -> None:
        self._size = size
        self._places = tuple([at for at, message in enumerate(messages) if message.get("role") in ASIDE])
        self._apart = [messages[at] for at in self._places]
        together = list(without(messages, self._places))
        self._parts = [(fold, fold.known(part, size), part) for fold, part in ((said, together), (aside, self._apart))]
        new = (message for _, known, part in self._parts for message in part[len(known.states) :])
        self.fresh = sum(map(_length, new))  # characters, about: what `told` still has to read

    def told(self) -> ToldHistory:
        """Once."""
        said, aside = (fold.rest(known, part, self._size) for fold, known, part in self._parts)
        facts = woven(said, zip(self._places, aside, strict=True))
        last, apart = said[-1] if said else None, aside[-1] if aside else None
        ends = [fact for fact in (apart, last) if fact is not None]
        secrets = frozenset[str]().union(*(fact.secrets for fact in ends))
        newest = next((at for at in range(len(facts) - 1, -1, -1) if facts[at].message.role == "user"), -1)
        return ToldHistory(
            prompt=tuple([fact.message for fact in facts]),
            nodes=tuple([fact.node for fact in facts]),
            asides=self._places,
            thread=last.thread if last else None,
            above=last.above if last else None,
            secrets=secrets,
            untrainable=next((fact.untrainable for fact in ends if fact.untrainable), None),
            turns=turns.KnownTurn(self._apart, bool(last and last.used_tools)),
            forms=None if secrets else forms_of([fact.form for fact in facts], newest),
        )


def _length(message: Said) -> int:
    content = message.get("content")
    return len(content) if type(content) is str and "tool_calls" not in message else length(message)


def _fact(redactor: Redactor, above: Fact | None, message: Said) -> Fact:
    found: set[str] = set()
    kept, form = redactor.message(canonical(message), found), form_of(message)
    if (thought := thought_in(form)) is not None:
        redactor.value(thought, found)  # the token ids have the reasoning too
    parent, name = (above.node, above.thread) if above else (None, None)
    node = message_hash(parent, kept.role, kept.body)
    thread = extend_thread(name, message, redactor.message, kept, node if name == parent else None)
    return Fact(
        kept,
        node,
        thread,
        thread if message.get("role") == "assistant" else above.above if above else None,
        _more(above, found),
        (above and above.untrainable) or more_than_text([message]),
        bool((above and above.used_tools) or message.get("role") == "tool" or message.get("tool_calls")),
        form,
    )


def _aside_fact(redactor: Redactor, above: Fact | None, message: Said) -> Fact:
    found: set[str] = set()
    kept, form = redactor.message(canonical(message), found), form_of(message)
    untrainable = (above and above.untrainable) or more_than_text([message])
    node = message_hash(None, kept.role, kept.body)
    return Fact(kept, node, None, None, _more(above, found), untrainable, False, form)


def _more(above: Fact | None, found: set[str]) -> frozenset[str]:
    before = above.secrets if above else frozenset()
    return before | found if found else before
