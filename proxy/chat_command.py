"""`/rl …` typed in the chat: good, bad, 1 to 5, fix, undo, status, help, and an admin's acts.

Owns the language of commands and their answers. It rates the reply right before the command in that very conversation,
found by its thread; after a bare prompt the last one of that session or person. Which message is a command is
`spoken`'s, how an answer looks on the wire the dialect's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from proxy.conversations import Speaker, thread, without_commands
from proxy.errors import BadRequest, ProxyError
from proxy.feedback import MAX_TEXT, OWNER, Feedback, judged
from proxy.redaction import Redactor
from proxy.spoken import command_of, silent
from store.records import NewRating, Rating
from store.store import Store
from store.tree import ASIDE

# A list, so that it reads the same in a terminal and where the agent takes answers for Markdown.
HELP: Final = """\
you can rate the answer above this line:

- `/rl good`, `/rl bad`: each with a reason after it, if you like
- `/rl 1` to `/rl 5`: stars, five is best, likewise
- `/rl fix: TEXT`: bad, and TEXT would have been right
- `/rl undo`: takes your rating of it back
- `/rl status`: what answers, what is collected, what training waits for
- `/rl train`, `pause`, `resume`, `rollback`, `reset`: for an admin"""

UNDO: Final = "`/rl undo` takes it back."
_RATINGS: Final = ("good", "bad", "1", "2", "3", "4", "5", "👍", "👎")


class Command(NamedTuple):
    verb: str  # empty for a bare `/rl`
    rest: str

    @property
    def rates(self) -> bool:
        return self.verb in (*_RATINGS, "fix")


class About(NamedTuple):
    """The completion that a command is about, and by whose name it rates."""

    completion_id: str
    rater: str


FindAbout = Callable[[], Awaitable[About | None]]


def parse(text: str) -> Command:
    """`/rl bad too long` → ("bad", "too long")."""
    said = text.strip().removeprefix("/rl").strip()
    if len(said) > 1 and said[0] == said[-1] == '"':  # `opencode run --command rl "bad too long"` quotes it again
        said = said[1:-1].strip()
    words = said.split(None, 1)
    return (
        Command(words[0].lower().rstrip(":,"), words[1].strip() if len(words) > 1 else "") if words else Command("", "")
    )


class ChatCommands:
    def __init__(
        self,
        store: Store,
        feedback: Feedback,
        status: Callable[[], Awaitable[str]],
        acts: Mapping[str, Callable[[], Awaitable[str]]],
        redactor: Redactor,
    ) -> None:
        """`acts` are an admin's, by their words; each says what it did."""
        self._store = store
        self._feedback = feedback
        self._status = status
        self._acts = acts
        self._redactor = redactor

    async def answer(
        self, messages: list[dict[str, Any]], who: Speaker, *, role: str, rater: str | None = None, alone: bool = False
    ) -> str:
        """What to say to the command that ends `messages`. Errors are answers too: a person reads them.

        `rater` is whom the key speaks for, if for one. `alone`: a bare prompt, which never has an answer above it.
        """

        async def about() -> About | None:
            found = await (self._last(who) if alone else self._above(messages[:-1], who))
            return None if found is None else About(found, rater or who.user or OWNER)

        try:
            return f"rlproxy: {await self.do(parse(command_of(messages[-1]) or ''), about, role=role)}"
        except ProxyError as error:
            return f"rlproxy: {error.message}"

    async def do(
        self, command: Command, about: FindAbout, *, role: str, source: str = "chat", event_id: str | None = None
    ) -> str:
        """Do it and say so. `about` is asked for what a command is about where it is about something. Raises
        ProxyError."""
        if command.verb == "status":
            return await self._status()
        if command.verb in ("", "help"):
            return HELP
        if (act := self._acts.get(command.verb)) is not None:
            if role != "admin":
                return (
                    f"`/rl {command.verb}` needs an admin key, and where the chat names who speaks a place among its "
                    "admins, so nothing was done."
                )
            return await act()
        if not command.rates and command.verb != "undo":
            return f"I do not know `/rl {command.verb[:40]}`, so nothing was done; {HELP}"
        if role == "use":
            return "your key may ask models and not rate (its role is use), so nothing was rated."
        found = await about()
        if found is None:
            return "I have not captured the answer above this command, so nothing was rated."
        if command.verb == "undo":
            return await self._undo(found)
        return await self._rate(found, command, source, event_id)

    async def _above(self, before: list[dict[str, Any]], who: Speaker) -> str | None:
        """The completion that wrote the last answer before the command: results of its tools may lie between, and
        what an agent adds."""
        history = [before[i] for i in without_commands(before)]
        while history and (history[-1].get("role") in (*ASIDE, "tool") or silent(history[-1])):
            history.pop()
        if not history or history[-1].get("role") != "assistant":
            return None
        name = await asyncio.to_thread(thread, history, self._redactor.message)  # it may have pictures in it
        return None if name is None else await self._store.find_reply(name, session=who.session, user=who.user)

    async def _last(self, who: Speaker) -> str | None:
        """The last main turn of this session or person; another person's is not what they saw."""
        found = await self._store.last(session=who.session, user=who.user)
        completion = None if found is None else await self._store.completion(found)
        return completion.new.id if completion is not None and completion.new.user == who.user else None

    async def _rate(self, about: About, command: Command, source: str, event_id: str | None) -> str:
        if len(command.rest) > MAX_TEXT:
            raise BadRequest(f"What you wrote after the word is over {MAX_TEXT} characters, so nothing was rated.")
        if command.verb == "fix":
            return await self._fix(about, command.rest, source, event_id)
        comment = command.rest or None
        value, scale = judged(command.verb)
        new = NewRating(*about, value, comment=comment, source=source, source_event_id=event_id, scale=scale)
        rating = await self._feedback.rate(new)
        why = f", because “{comment}”" if comment else ""
        return f"rated {_word(rating)}{why}{_replaced(rating, new)}. {UNDO}"

    async def _fix(self, about: About, text: str, source: str, event_id: str | None) -> str:
        if not text:
            return "write the better answer after it, as in `/rl fix: TEXT`. Nothing was rated."
        new = NewRating(*about, -1.0, correction=text, source=source, source_event_id=event_id)
        rating = await self._feedback.rate(new)
        return f"rated bad, with your text as what would have been right{_replaced(rating, new)}. {UNDO}"

    async def _undo(self, about: About) -> str:
        rating = await self._store.live_rating(*about)
        if rating is None:
            return "you have not rated the answer above, so there is nothing to undo."
        await self._feedback.retract(rating.id)
        return f"your rating of the answer above ({_word(rating)}) is taken back."


def _replaced(rating: Rating, new: NewRating) -> str:
    if rating.duplicate:
        return ", as before"
    if not rating.replaced:
        return ""
    kept = [word for word in ("comment", "correction") if getattr(rating, word) and not getattr(new, word)]
    stay = f"; its {' and '.join(kept)} stay{'s' if len(kept) == 1 else ''}" if kept else ""
    return f" (your earlier rating of it is replaced{stay})"


def _word(rating: Rating) -> str:
    if rating.scale == "stars":
        return f"{round(rating.value * 2 + 3)} of 5"
    return {1.0: "good", -1.0: "bad"}.get(rating.value, f"{rating.value:g}")
