"""Which completion an event is about.

By the completion that its sender names, or by a link, which whoever posted the message left. Else by the text of the
message; for a command that names no message, by the newest answer in that channel. Owns the short wait for a link or a
completion that is still on its way. A person can be quicker than the bot that posts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from proxy.access.keys import OWNERS
from proxy.conversation.answer_on_screen import AnswerOnScreen
from proxy.core.offload import off_loop
from proxy.core.wrapped_ids import unwrap_id
from proxy.feedback.webhooks.base import PlatformEvent
from proxy.feedback.webhooks.fetch_text import TextOf
from proxy.feedback.webhooks.text_match import TextMatch, match
from store.learning.reactions import NewestAnswer, SeenAnswer
from store.records import Link
from store.store import Store

WAIT_S: Final = 1.0  # for what is on its way; a platform waits for us all the while
LOOK_S: Final = 0.05
IN_SESSION, ANYWHERE = 50, 200  # recent answers that a text is compared with
BESIDE_S: Final = 7 * 86400.0  # within which two keys that answer in one channel are there together
SEVERAL_KEYS: Final = "several keys have asked for that answer or in this channel, and nothing says whose is meant"


class ResolvedMessage(NamedTuple):
    completion_id: str | None
    person: str | None = None  # whom the message was for, by their id on the platform, where a link says so
    reason: str = ""  # where there is none
    ambiguous: bool = False  # there are several


class MessageResolver:
    def __init__(self, store: Store, screen: AnswerOnScreen) -> None:
        self._store = store
        self._screen = screen
        self.texts: Mapping[str, TextOf] = {}  # by platform, once there is a session to ask with

    async def find(self, event: PlatformEvent) -> ResolvedMessage:
        if event.completion_id is not None:
            return await self._by_id(unwrap_id(event.completion_id), _wait_s(event))
        if event.message_id is None:
            return await self._newest(event)
        return await self._by_message(event, event.message_id)

    async def _by_id(self, id: str, wait_s: float) -> ResolvedMessage:
        until = asyncio.get_running_loop().time() + wait_s
        while await self._store.reactions.requester_of(id) is None:
            if asyncio.get_running_loop().time() >= until:
                return ResolvedMessage(None, reason=f"there is no completion {id}")
            await asyncio.sleep(LOOK_S)
        return ResolvedMessage(id)

    async def _by_message(self, event: PlatformEvent, message_id: str) -> ResolvedMessage:
        """The completion that this message shows."""
        until = asyncio.get_running_loop().time() + _wait_s(event)
        link = await self._store.reactions.linked(event.platform, event.channel, message_id)
        if link is not None:
            return _by(link)
        resolved = await self._by_text(event)
        while resolved.completion_id is None:
            if (link := await self._store.reactions.linked(event.platform, event.channel, message_id)) is not None:
                return _by(link)
            if asyncio.get_running_loop().time() >= until:
                break
            await asyncio.sleep(LOOK_S)
        return resolved

    async def _by_text(self, event: PlatformEvent) -> ResolvedMessage:
        text, ask = event.message_text, self.texts.get(event.platform)
        if text is None and ask is not None:
            text = await ask(event)
        if text is None:
            return ResolvedMessage(
                None, reason="nobody has linked that message to an answer, and its text is not known"
            )
        in_channel, anywhere = (
            await self._store.reactions.newest_answers(_sessions(event), IN_SESSION),
            await self._store.reactions.newest_answers([], ANYWHERE),
        )
        choice = await off_loop(
            sum(len(answer.text) for answer in (*in_channel, *anywhere)), _matched, text, in_channel, anywhere
        )
        return ResolvedMessage(choice.completion_id, None, choice.reason, choice.ambiguous)

    async def _newest(self, event: PlatformEvent) -> ResolvedMessage:
        """Raises CannotTell where nothing of the newest one came."""
        if linked := await self._store.reactions.newest_linked(event.platform, event.channel, event.person):
            return _of_one_key(linked)
        for session in _sessions(event):
            if newest := await self._store.reactions.newest_in(session):
                return await self._settled(_of_one_key(newest))
        return ResolvedMessage(None, reason="no answer in this channel is known here")

    async def _settled(self, resolved: ResolvedMessage) -> ResolvedMessage:
        if resolved.completion_id is not None:
            await self._screen.settled(await self._store.answers.get(resolved.completion_id))
        return resolved


def _matched(text: str, in_channel: Sequence[SeenAnswer], anywhere: Sequence[SeenAnswer]) -> TextMatch:
    """Choose among those here, where there are any; unless another key has had an answer with that text, wherever."""
    choice = match(text, in_channel or anywhere)
    key = next((answer.key for answer in in_channel if answer.completion_id == choice.completion_id), None)
    if not in_channel or choice.completion_id is None or key == OWNERS:
        return choice
    rival = match(text, [answer for answer in anywhere if answer.key != key])
    return TextMatch(None, SEVERAL_KEYS, True) if rival.completion_id is not None or rival.ambiguous else choice


def _of_one_key(newest: Sequence[NewestAnswer]) -> ResolvedMessage:
    """The newest, unless it may be meant to be taken for another's. Anybody with a key may call a session as a channel
    is called, or link a message of it. The owner's own is nobody's trap."""
    first, *older = newest
    since = first.created_at - BESIDE_S
    if first.key != OWNERS and any(_is_rival(answer, since) for answer in older):
        return ResolvedMessage(None, reason=SEVERAL_KEYS, ambiguous=True)
    return ResolvedMessage(first.completion_id, first.person)


def _is_rival(answer: NewestAnswer, since: float) -> bool:
    """Rows without a key are from before keys were kept."""
    return answer.key is not None and answer.holds and answer.created_at >= since


def _sessions(event: PlatformEvent) -> list[str]:
    """Names that an agent may have given its conversation in that channel."""
    sessions = [event.session] if event.session else []
    return [*sessions, event.channel, f"{event.platform}:{event.channel}"] if event.channel else sessions


def _wait_s(event: PlatformEvent) -> float:
    """Seconds to wait for what is on its way: once for all events that came together."""
    if event.received_at is None:
        return WAIT_S
    return min(max(event.received_at + WAIT_S - time.time(), 0.0), WAIT_S)


def _by(link: Link) -> ResolvedMessage:
    return ResolvedMessage(link.completion_id, link.person)
