"""`/rl …` typed in the chat: good, bad, 1 to 5, fix, undo, status, help, and an admin's acts.

Owns the language of commands and their answers. It rates the reply right before the command in that very conversation,
found by its thread; after a bare prompt the last one of that session or person. Where several may be meant it rates
none, and says which there are. Which message is a command is `spoken`'s, how an answer looks on the wire the dialect's.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from proxy.conversations import Speaker, canonical, thread, without_commands
from proxy.errors import BadRequest, Conflict, ProxyError
from proxy.feedback import MAX_TEXT, OWNER, Feedback, judged
from proxy.reach import Reach
from proxy.redaction import Redactor
from proxy.spoken import command_of, silent
from proxy.wrappers import Agent
from store import tree
from store.records import Candidate, NewRating, Rating, SentBack
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
- `/rl train`, `pause`, `resume`, `rollback`, `reset`: for an admin, with nothing after them"""

SHOWN: Final = 5  # candidates, or names, in one answer
NAMED: Final = 200  # characters of a name in it
QUOTED: Final = 60  # characters of what a candidate said
UNDO: Final = "`/rl undo` takes it back."
_RATINGS: Final = ("good", "bad", "1", "2", "3", "4", "5", "👍", "👎")
_NAME: Final = re.compile(r"/rl(?=\s|$)")


class Command(NamedTuple):
    verb: str  # empty for a bare `/rl`
    rest: str

    @property
    def rates(self) -> bool:
        return self.verb in (*_RATINGS, "fix")


class Asks(NamedTuple):
    """Somebody who types a command in the chat."""

    reach: Reach
    who: Speaker
    model: str
    unlisted: tuple[str, ...] = ()  # whom the request names and `server.chat_admins` does not
    agent: Agent | None = None  # that sent the request, where that is known

    @property
    def role(self) -> str:
        role = self.reach.who.role
        return "rate" if role == "admin" and self.unlisted else role


class Ambiguous(Conflict):
    """Several completions may be meant."""


class About(NamedTuple):
    """The completion that a command is about, and by whose name it rates."""

    completion_id: str
    rater: str


FindAbout = Callable[[], Awaitable[About | None]]


def parse(text: str) -> Command:
    """`/rl bad too long` → ("bad", "too long")."""
    said = _NAME.sub("", text.strip(), count=1).strip()
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

    async def answer(self, messages: list[dict[str, Any]], asks: Asks, *, alone: bool = False) -> str:
        """What to say to the command that ends `messages`. Errors are answers too: a person reads them.

        `alone`: a bare prompt, which never has an answer above it.
        """

        async def about() -> About | None:
            found = await (self._last(asks) if alone else self._above(messages[:-1], asks))
            return None if found is None else About(found, asks.reach.who.bound or asks.who.user or OWNER)

        command = parse(command_of(messages[-1], asks.agent) or "")
        try:
            return f"rlproxy: {await self.do(command, about, role=asks.role, unlisted=asks.unlisted)}"
        except ProxyError as error:
            return f"rlproxy: {error.message}"

    async def do(
        self,
        command: Command,
        about: FindAbout,
        *,
        role: str,
        source: str = "chat",
        event_id: str | None = None,
        unlisted: Sequence[str] = (),
    ) -> str:
        """Do it and say so. `about` is asked for what a command is about where it is about something. Raises
        ProxyError."""
        if command.verb == "status":
            return await self._status()
        if command.verb in ("", "help"):
            return HELP
        act = self._acts.get(command.verb)
        if act is not None and role != "admin":
            return _for_admins(command.verb, unlisted)
        if command.rest and (act is not None or command.verb == "undo"):  # whoever wrote them may not be the person
            return (
                f"`/rl {command.verb}` takes no words after it, so nothing was done. Type `/rl {command.verb}` alone."
            )
        if act is not None:
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

    async def _above(self, before: list[dict[str, Any]], asks: Asks) -> str | None:
        """The completion that wrote the last answer before the command: results of its tools may lie between, and
        what an agent adds. Raises Ambiguous."""
        history = [before[i] for i in without_commands(before, asks.agent)]
        while history and (history[-1].get("role") in (*ASIDE, "tool") or silent(history[-1])):
            history.pop()
        if not history or history[-1].get("role") != "assistant":
            return None
        sent = await asyncio.to_thread(self._sent_back, history, asks)  # it may have pictures in it
        found = [] if sent is None else await self._store.find_reply(sent, asks.reach.own())
        if len(found) > 1:
            raise Ambiguous(_which(found))
        return found[0].id if found else None

    def _sent_back(self, history: list[dict[str, Any]], asks: Asks) -> SentBack | None:
        name = thread(history, self._redactor.message)
        if name is None:
            return None
        kept = [self._redactor.message(canonical(message)) for message in history]
        said, _ = tree.said(kept)
        system = tuple(tree.message_hash(None, kept[at].role, kept[at].body) for at in tree.places(kept))
        return SentBack(name, tree.chain(said)[-1], system, asks.model, asks.who.session)

    async def _last(self, asks: Asks) -> str | None:
        """The last main turn of this session or person; another's is not what they saw."""
        return await self._store.last_of(asks.reach.own(), session=asks.who.session)

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


def _for_admins(verb: str, unlisted: Sequence[str]) -> str:
    if not unlisted:
        return f"`/rl {verb}` needs an admin key (on a chat platform a place among its `admins`), so nothing was done."
    names = ", ".join(_quoted(name) for name in unlisted[:SHOWN])
    return (
        f"`/rl {verb}` needs an admin, and this request names {names}, so nothing was done. If that is you, put this "
        f"into rlproxy.toml (with those whom it lists already) and start again: `server.chat_admins = [{names}]`."
    )


def _quoted(name: str) -> str:
    """As TOML has it; half a character of a header cannot be said again."""
    return json.dumps(name[:NAMED].encode("utf-8", "replace").decode(), ensure_ascii=False)


def _which(found: Sequence[Candidate]) -> str:
    lines = [
        f"- `{one.id}`, {time.strftime('%d %b %H:%M', time.localtime(one.created_at))}: “{_first_words(one.text)}”"
        for one in found[:SHOWN]
    ]
    more = f"\n- and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return (
        "this conversation reads like several that were captured, so nothing was rated. Rate the one you mean with "
        "`rlproxy good --id ID` (or `bad`), or on the page:\n" + "\n".join(lines) + more
    )


def _first_words(text: str) -> str:
    said = " ".join(text.split())
    return said if len(said) <= QUOTED else f"{said[:QUOTED]}…"


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
