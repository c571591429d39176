"""The prompts of the conversations that run now: what a version that is about to go live may read ahead.

Owns which conversations those are and the newest main turn of each, as the client sent it. In memory only: nothing of
it is stored or logged. It is gone after ten minutes, with the end of rlproxy, and when anybody has anything forgotten.
Not here: who reads them, and when (warm_up).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from proxy.conversation.history_cache import History
from proxy.conversation.incremental_json import EarlierBodies
from proxy.core.errors import BadRequest
from proxy.core.offload import LARGE
from proxy.dialects import Dialect
from proxy.dialects.base import ODD, OutgoingRequest
from store.records import Message, NewCompletion

MOST: Final = 8  # conversations
ACTIVE_S: Final = 600.0  # who has said nothing for longer does not wait for a first token now
LONGEST: Final = 512 * 1024  # bytes of one request: about 100,000 tokens
ALL: Final = 2 * LONGEST  # of all that is read ahead
TOKENS: Final = 2  # with one, llama-server is done before it looks at the next prompt, and gives it the same slot

# Of a request: how many answers, how long and in which shape. The rest may be part of what the model reads.
_OF_THE_ANSWER: Final = (
    "model", "stream", "stream_options", "n", "best_of", "max_tokens", "max_completion_tokens", "min_tokens",
    "logprobs", "top_logprobs", "store", "metadata", "user",
)  # fmt: skip


class _Turn(NamedTuple):
    noted_at: float
    dialect: Dialect
    outgoing: OutgoingRequest


class ActiveConversations:
    def __init__(self, history: History) -> None:
        self.history = history  # what follows from their messages; forgotten with them
        self.bodies = EarlierBodies()  # so are these
        self._turns: dict[tuple[str | None, str | Message], _Turn] = {}  # the newest last

    def note(self, row: NewCompletion, dialect: Dialect, outgoing: OutgoingRequest) -> None:
        """A main turn of a conversation, which is its session, or else what the person said first."""
        if row.turn != "main" or dialect.is_prompt or outgoing.size > LONGEST or outgoing.weight > LARGE:
            return  # what is read ahead is made on the loop
        said_first = next((message for message in row.prompt if message.role == "user"), None)
        if (name := row.session or said_first) is None:
            return
        key = row.user, name
        self._turns.pop(key, None)
        self._turns[key] = _Turn(time.monotonic(), dialect, outgoing)
        late = time.monotonic() - ACTIVE_S
        for old in [
            k for n, (k, turn) in enumerate(reversed(self._turns.items())) if n >= MOST or turn.noted_at < late
        ]:
            del self._turns[old]

    def prompts(self, most: int) -> list[Mapping[str, Any]]:
        """Prompts as short chat completions without a model; the newest first."""
        late, room = time.monotonic() - ACTIVE_S, ALL
        chats: list[Mapping[str, Any]] = []
        for turn in list(reversed(self._turns.values()))[:most]:
            room -= turn.outgoing.size
            if turn.noted_at < late or room < 0:
                break
            try:
                chat = turn.dialect.to_chat(turn.outgoing.body, turn.outgoing.parsed)
            except (BadRequest, *ODD):  # the backend may take what chat completions cannot say, or what nobody can
                continue
            chats.append({k: v for k, v in chat.items() if k not in _OF_THE_ANSWER} | {"max_tokens": TOKENS})
        return chats

    def clear(self) -> None:
        self._turns.clear()
        self.history.clear()
        self.bodies.clear()
