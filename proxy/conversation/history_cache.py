"""Results from the messages of a conversation, worked out once: each turn costs its new messages only.

An agent sends the whole history again with every turn. Owns what each message adds to what is above it: how it is
stored, and the names of the conversation up to there. Not here: how much of it is remembered (bounded_cache), and the
tree (store). What a canonical message, a thread or a secret is belongs to conversations and redaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from proxy.conversation import turns
from proxy.conversation.as_sent import Form, form_of, forms_of
from proxy.conversation.conversations import canonical, extend_thread
from proxy.conversation.modalities import decisive, first_non_text
from proxy.conversation.redaction import Redactor
from proxy.core.bounded_cache import TurnCache, common
from proxy.core.json_edit import dumps
from proxy.core.offload import length
from proxy.images.parts import count_images
from store.captured.tree import SYSTEM_ROLES, message_hash, woven
from store.records import Message

ChatMessage = dict[str, Any]  # a message in chat form
S = TypeVar("S")

_TEXT: Final = {str}
LEAST: Final = 4096  # bytes of a request: less is worked out sooner than it is looked up


class _Turn(NamedTuple, Generic[S]):
    """The newest request of a conversation."""

    messages: list[ChatMessage]
    states: list[S]
    odd: list[int]  # messages with more than texts in them: 1, 1.0 and true are equal, and are not the same


class KnownHistory(NamedTuple, Generic[S]):
    """Knowledge of the first messages of a request."""

    states: list[S]
    odd: list[int]
    turn: _Turn[S] | None  # that had them


class HistoryFold(Generic[S]):
    """A state after each message, from the state above it and the message. May be used from any thread."""

    def __init__(self, step: Callable[[S | None, ChatMessage], S]) -> None:
        self._step = step
        self._turns: TurnCache[_Turn[S]] = TurnCache()

    def recall(self, messages: list[ChatMessage], size: int = LEAST) -> KnownHistory[S]:
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
        return KnownHistory(best.states[:most], [index for index in best.odd if index < most], best)

    def extend(self, history: KnownHistory[S], messages: list[ChatMessage], size: int) -> list[S]:
        """The state after each message. `size`: bytes of the request; `history`: what `recall` returned, is used up."""
        states, odd, turn = history
        went_on = turn is not None and len(states) >= len(turn.messages) - 1
        first = len(states)
        for index in range(first, len(messages)):
            states.append(self._step(states[-1] if states else None, messages[index]))
        if messages and size >= LEAST:
            odd += [
                index for index in range(first, len(messages)) if not {*map(type, messages[index].values())} <= _TEXT
            ]
            self._turns.remember(_Turn(messages, states, odd), size, turn if went_on else None)
        return states

    def clear(self) -> None:
        self._turns.clear()


def _same(turn: _Turn[Any], messages: list[ChatMessage]) -> int:
    """How many of the first messages are the same."""
    base = turn.messages
    same = common(min(len(base), len(messages)), lambda start, end: base[start:end] == messages[start:end])
    doubtful = (index for index in turn.odd if index < same and base[index] is not messages[index])
    return next((index for index in doubtful if dumps(base[index]) != dumps(messages[index])), same)


class MessageFacts(NamedTuple):
    """Knowledge of a message and of all above it."""

    message: Message  # as it is stored
    node: bytes  # its name in the store's tree
    thread: bytes | None
    reply_thread: bytes | None  # the thread up to the newest reply
    secrets: frozenset[str]  # the kinds that were taken out
    untrainable: str | None  # the first thing that is no text
    images: int
    used_tools: bool
    form: Form | None  # how the message itself was written


NOTHING: Final = MessageFacts(
    Message("", b""), b"", None, None, frozenset(), None, 0, False, None
)  # above the first message


class HistoryFacts(NamedTuple):
    """Knowledge of all the messages of a request."""

    prompt: tuple[Message, ...]
    nodes: tuple[bytes, ...]  # of each of them
    asides: tuple[int, ...]  # which of them are system texts
    thread: bytes | None
    reply_thread: bytes | None
    secrets: frozenset[str]
    untrainable: str | None
    images: int  # in all of them
    turns: turns.KnownTurn
    forms: dict[str, Form] | None  # how all of them were written; None where secrets were taken out


class History:
    def __init__(self, redactor: Redactor) -> None:
        # System texts are not part of the conversation: agents change them from turn to turn.
        self.main = HistoryFold(partial(_fact, redactor))
        self.system = HistoryFold(partial(_aside_fact, redactor))

    def clear(self) -> None:
        self.main.clear()
        self.system.clear()


class HistoryLookup:
    """One request's messages: what is known of them, and the way to know the rest."""

    def __init__(self, history: History, messages: list[ChatMessage], size: int) -> None:
        self._history, self._size = history, size
        self._places: list[int] = []  # of system texts
        self._system_messages: list[ChatMessage] = []
        self._main_messages: list[ChatMessage] = []
        for index, message in enumerate(messages):
            if message.get("role") in SYSTEM_ROLES:
                self._places.append(index)
                self._system_messages.append(message)
            else:
                self._main_messages.append(message)
        self._main_history, self._system_history = (
            history.main.recall(self._main_messages, size),
            history.system.recall(self._system_messages, size),
        )

    @property
    def fresh(self) -> int:
        """Characters, about: what `read` still has to read."""
        new = [
            *self._main_messages[len(self._main_history.states) :],
            *self._system_messages[len(self._system_history.states) :],
        ]
        return sum(map(_length, new))

    def read(self) -> HistoryFacts:
        """Once."""
        main_facts = self._history.main.extend(self._main_history, self._main_messages, self._size)
        aside_facts = self._history.system.extend(self._system_history, self._system_messages, self._size)
        facts = woven(main_facts, zip(self._places, aside_facts, strict=True)) if aside_facts else main_facts
        prompt, nodes, *_, forms = zip(*facts, strict=True) if facts else ((), (), ())
        last = main_facts[-1] if main_facts else NOTHING
        last_aside = aside_facts[-1] if aside_facts else NOTHING
        secrets = last_aside.secrets | last.secrets
        return HistoryFacts(
            prompt=prompt,
            nodes=nodes,
            asides=tuple(self._places),
            thread=last.thread,
            reply_thread=last.reply_thread,
            secrets=secrets,
            untrainable=decisive(last_aside.untrainable, last.untrainable),
            images=last_aside.images + last.images,
            turns=turns.KnownTurn(self._system_messages, last.used_tools),
            forms=None if secrets else forms_of(forms, _newest(prompt)) if any(forms) else {},
        )


def _newest(prompt: Sequence[Message]) -> int:
    """Where a person's last message is."""
    return next((start for start in range(len(prompt) - 1, -1, -1) if prompt[start].role == "user"), -1)


def _length(message: ChatMessage) -> int:
    content = message.get("content")
    return len(content) if type(content) is str and "tool_calls" not in message else length(message)


def _fact(redactor: Redactor, parent_state: MessageFacts | None, message: ChatMessage) -> MessageFacts:
    kinds: set[str] = set()
    stored, form = redactor.message(canonical(message), kinds), form_of(message)
    if form is not None and (thought := form[-1]) is not None:
        redactor.value(thought, kinds)  # the token ids have the reasoning too
    base, role = parent_state or NOTHING, message.get("role")
    parent = parent_state.node if parent_state is not None else None
    node = message_hash(parent, stored.role, stored.body)
    thread = extend_thread(base.thread, message, redactor.message, stored, node if base.thread == parent else None)
    return MessageFacts(
        stored,
        node,
        thread,
        thread if role == "assistant" else base.reply_thread,
        base.secrets | kinds if kinds else base.secrets,
        *_media(base, message),
        base.used_tools or role == "tool" or bool(message.get("tool_calls")),
        form,
    )


def _aside_fact(redactor: Redactor, parent_state: MessageFacts | None, message: ChatMessage) -> MessageFacts:
    kinds: set[str] = set()
    stored, form, base = redactor.message(canonical(message), kinds), form_of(message), parent_state or NOTHING
    node = message_hash(None, stored.role, stored.body)
    secrets = base.secrets | kinds if kinds else base.secrets
    return MessageFacts(stored, node, None, None, secrets, *_media(base, message), False, form)


def _media(base: MessageFacts, message: ChatMessage) -> tuple[str | None, int]:
    """The first thing that is not text, and how many pictures there are up to here."""
    if type(message.get("content")) is str:
        return base.untrainable, base.images
    return decisive(base.untrainable, first_non_text([message])), base.images + count_images(message)
