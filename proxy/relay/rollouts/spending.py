"""The tokens and the seconds that sampling has cost today, also those that the store has not taken.

Owns the local day, and how many tokens an answer cost. What a full disk refused is owed, and is stored before anything
else is sampled. Else a day with a full disk would have no bounds. Not here: the bounds (sampler).
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from store.learning.rollouts import Spent
from store.records import FinishedCompletion, NewCompletion
from store.store import Store

MOST_TOKENS: Final = 10**8  # of a prompt, or of an answer: a server that counts more counts something else
BYTES_A_TOKEN: Final = 4


class Spending:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._owed = Spent(today())

    async def settled(self) -> Spent:
        """Store what is owed; the cost of this day. Raises StoreError."""
        owed = self._owed
        if owed.tokens or owed.seconds:
            await self._store.rollouts.add_spent(owed)
            self._owed = Spent(today(), self._owed.tokens - owed.tokens, self._owed.seconds - owed.seconds)
        return await self._store.rollouts.spent(today())

    async def so_far(self) -> Spent:
        """The cost of this day with what is owed. Stores nothing."""
        stored = await self._store.rollouts.spent(today())
        return Spent(stored.day, stored.tokens + self._owed.tokens, stored.seconds + self._owed.seconds)

    def owe(self, tokens: int = 0, seconds: float = 0.0) -> None:
        """Count a cost that the next `settled` stores."""
        self._owed = Spent(today(), self._owed.tokens + tokens, self._owed.seconds + seconds)


def today() -> str:
    """The local day, as 2026-11-29."""
    return f"{datetime.now():%Y-%m-%d}"


def tokens_of(new: NewCompletion, end: FinishedCompletion) -> int:
    """Tokens of prompt and answer, by the server's own count, else by its ids, else about."""
    usage = end.usage or {}
    counts = [usage.get("prompt_tokens"), usage.get("completion_tokens")]
    if any(counts) and all(type(count) is int and 0 <= count < MOST_TOKENS for count in counts):
        return sum(counts)  # type: ignore[arg-type]  # they are
    ids = len(end.prompt_token_ids or ()) + len(end.token_ids or ())
    return ids or prompt_tokens(new) + len(end.text) // BYTES_A_TOKEN


def prompt_tokens(new: NewCompletion) -> int:
    """About how many tokens its prompt has, with its tools."""
    return 1 + (sum(len(message.body) for message in new.prompt) + len(new.request)) // BYTES_A_TOKEN
