"""What tests of signals share: all signals of a proxy, once everything that was captured has been looked at."""

from __future__ import annotations

from config.sections import Redaction
from proxy.conversation.answer_on_screen import AnswerOnScreen
from proxy.conversation.redaction import Redactor
from proxy.conversation.underway import AnswersInProgress
from proxy.signals.follower import Follower
from scripts.harness.in_process import Proxy
from store.records import Signal
from store.store import Store


async def looked_at(store: Store) -> list[Signal]:
    """Oldest first."""
    follower = Follower(store, AnswerOnScreen(store, Redactor(Redaction()), AnswersInProgress()))
    while await follower.step():
        pass
    found: list[Signal] = []
    for completion in await store.completions.page(limit=1000):
        found += await store.signals.of(completion.new.id)
    return sorted(found, key=lambda signal: signal.seq)


async def signals(proxy: Proxy) -> list[Signal]:
    return await looked_at(proxy.store)
