"""Which completion an event is about.

By the completion that its sender names; by a link, which whoever posted the message left; by the text of the message;
for a command that names no message, by the newest answer in that channel. Owns the short wait for a link or a
completion that is still on its way: a person can be quicker than the bot that posts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from proxy.large import off_loop
from proxy.webhooks.base import Event
from proxy.webhooks.matching import match
from proxy.webhooks.texts import TextOf
from store.records import Link
from store.store import Store

WAIT_S: Final = 1.0  # for what is on its way; a platform waits for us all the while
LOOK_S: Final = 0.05
IN_SESSION, ANYWHERE = 50, 200  # recent answers that a text is compared with


class Found(NamedTuple):
    completion_id: str | None
    person: str | None = None  # whom the message was for, by their id on the platform, where a link says so
    why: str = ""  # where there is none
    ambiguous: bool = False  # there are several


class Finder:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.texts: Mapping[str, TextOf] = {}  # by platform, once there is a session to ask with

    async def find(self, event: Event) -> Found:
        if event.completion_id is not None:
            return await self._named(event.completion_id)
        if event.message_id is None:
            return await self._newest(event)
        return await self._shown(event, event.message_id)

    async def _named(self, id: str) -> Found:
        until = asyncio.get_running_loop().time() + WAIT_S
        while await self._store.whose(id) is None:
            if asyncio.get_running_loop().time() >= until:
                return Found(None, why=f"there is no completion {id}")
            await asyncio.sleep(LOOK_S)
        return Found(id)

    async def _shown(self, event: Event, message_id: str) -> Found:
        """The completion that this message shows."""
        until = asyncio.get_running_loop().time() + WAIT_S
        link = await self._store.linked(event.platform, event.channel, message_id)
        if link is not None:
            return _by(link)
        found = await self._by_text(event)
        while found.completion_id is None:
            if (link := await self._store.linked(event.platform, event.channel, message_id)) is not None:
                return _by(link)
            if asyncio.get_running_loop().time() >= until:
                break
            await asyncio.sleep(LOOK_S)
        return found

    async def _by_text(self, event: Event) -> Found:
        text, ask = event.said, self.texts.get(event.platform)
        if text is None and ask is not None:
            text = await ask(event)
        if text is None:
            return Found(None, why="nobody has linked that message to an answer, and its text is not known")
        recent = await self._store.said(_sessions(event), IN_SESSION) or await self._store.said([], ANYWHERE)
        found = await off_loop(sum(len(one.text) for one in recent), match, text, recent)
        return Found(found.completion_id, None, found.why, found.ambiguous)

    async def _newest(self, event: Event) -> Found:
        if (link := await self._store.newest_link(event.platform, event.channel, event.person)) is not None:
            return _by(link)
        for session in _sessions(event):
            if (id := await self._store.last(session=session)) is not None:
                return Found(id)
        return Found(None, why="no answer in this channel is known here")


def _sessions(event: Event) -> list[str]:
    """What an agent may have called its conversation in that channel."""
    named = [event.session] if event.session else []
    return [*named, event.channel, f"{event.platform}:{event.channel}"] if event.channel else named


def _by(link: Link) -> Found:
    return Found(link.completion_id, link.person)
