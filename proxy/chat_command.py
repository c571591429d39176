"""`/rl …` typed in the chat: good, bad, 1 to 5, undo, status, help.

Owns the language of commands and their answers. It rates the reply right before the command in that very
conversation, found by the message tree; how an answer looks on the wire is the dialect's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from proxy.conversations import Speaker, canonical, text_of, without_commands
from proxy.errors import ProxyError
from proxy.feedback import MAX_TEXT, OWNER, Feedback, judged
from store.records import NewRating
from store.store import Store
from store.tree import chain

HELP: Final = """\
rate the answer above with
  /rl good [why]    /rl bad [why]    /rl 1 … /rl 5 [why]
  /rl undo          takes your rating of it back
  /rl status        what is live, what is collected, what training waits for"""

_RATINGS: Final = ("good", "bad", "1", "2", "3", "4", "5", "👍", "👎")


class Command(NamedTuple):
    verb: str  # empty for a bare `/rl`
    rest: str


def parse(text: str) -> Command:
    """`/rl bad too long` → ("bad", "too long")."""
    words = text.strip().removeprefix("/rl").split(None, 1)
    return (
        Command(words[0].lower().rstrip(":,"), words[1].strip() if len(words) > 1 else "") if words else Command("", "")
    )


class ChatCommands:
    def __init__(self, store: Store, feedback: Feedback, status: Callable[[], Awaitable[str]]) -> None:
        self._store = store
        self._feedback = feedback
        self._status = status

    async def answer(self, messages: list[dict[str, Any]], who: Speaker, *, role: str) -> str:
        """What to say to the command that ends `messages`. Errors are answers too: a person reads them."""
        command = parse(text_of(messages[-1]) or "")
        try:
            return f"rlproxy: {await self._do(command, messages[:-1], who)}"
        except ProxyError as error:
            return f"rlproxy: {error.message}"

    async def _do(self, command: Command, before: list[dict[str, Any]], who: Speaker) -> str:
        if command.verb == "status":
            return await self._status()
        if command.verb in ("", "help"):
            return HELP
        if command.verb not in (*_RATINGS, "undo"):
            return f"I do not know `/rl {command.verb}`. You can\n{HELP}"
        completion_id = await self._above(before, who)
        if completion_id is None:
            return "I have not captured the answer above this command, so nothing was rated."
        rater = who.user or OWNER
        if command.verb == "undo":
            return await self._undo(completion_id, rater)
        return await self._rate(completion_id, rater, command)

    async def _above(self, before: list[dict[str, Any]], who: Speaker) -> str | None:
        """The completion that wrote the last message before the command."""
        history = [before[i] for i in without_commands(before)]
        if not history or history[-1].get("role") != "assistant":
            return None
        reply = chain([canonical(m) for m in history])[-1]
        return await self._store.find_reply(reply, session=who.session, user=who.user)

    async def _rate(self, completion_id: str, rater: str, command: Command) -> str:
        comment = command.rest[:MAX_TEXT] or None
        value, scale = judged(command.verb)
        new = NewRating(completion_id, rater, value, comment=comment, source="chat", scale=scale)
        rating = await self._feedback.rate(new)
        word = {1.0: "good", -1.0: "bad"}.get(value, f"{command.verb} of 5")
        done = f"rated {word}" + (", replacing your earlier rating" if rating.replaced else "")
        return done + (f", because “{comment}”." if comment else ".") + " /rl undo takes it back."

    async def _undo(self, completion_id: str, rater: str) -> str:
        rating = await self._store.live_rating(completion_id, rater)
        if rating is None:
            return "you have not rated the answer above, so there is nothing to undo."
        await self._feedback.retract(rating.id)
        return "your rating of the answer above is taken back."
