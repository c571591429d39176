"""`/rl …` typed in the chat: good, bad, 1 to 5, fix, undo, status, help, and an admin's acts.

Owns the language of commands and their answers. Which answer one is about is `answer_on_screen`'s, which message is a
command `user_text`'s, how an answer looks on the wire the dialect's.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from proxy.access.keys import Scope
from proxy.conversation.answer_on_screen import AnswerOnScreen, CannotTell, Place
from proxy.conversation.first_words import first_words, quote_of
from proxy.conversation.user_text import PREFIX, command_of
from proxy.core.agent_wrappers import Agent
from proxy.core.errors import BadRequest, ProxyError
from proxy.core.version_names import versions_in_words
from proxy.dialects.identity import RequestIdentity
from proxy.feedback.bodies import MAX_TEXT
from proxy.feedback.ratings import OWNER, Feedback, parse_judgement
from proxy.feedback.unconfirmed_fixes import UnconfirmedFixes
from proxy.training.admin_acts import IN_CHAT, OF_A_LINE, AdminActs
from store.line_records import COMMON
from store.records import NewRating, Rating, RecentCompletion
from store.store import Store

# A list, so that it reads the same in a terminal and where the agent takes answers for Markdown.
HELP: Final = """\
you can rate the answer above this line:

- `/rl good`, `/rl bad`: each with a reason after it, if you like
- `/rl 1` to `/rl 5`: stars, five is best, likewise
- `/rl fix: TEXT`: bad, and TEXT would have been right; several lines of it count after `/rl fix` alone
- `/rl undo`: takes your rating of it back
- `/rl status`: what answers, what is collected, what training waits for
- `/rl train`, `pause`, `resume`, `rollback`, `reset`: for an admin, with nothing after them

where your client keeps lines with a slash for itself, write `rl:good`, `rl:bad too long`, and so on"""

MAX_NAMES: Final = 5  # names in one answer
MAX_NAME_LENGTH: Final = 200  # characters of a name in it
UNDO: Final = "`/rl undo` takes it back."
SEVERAL_LINES: Final = (
    "a reason is one line here, and this is several, so nothing was rated: somebody else may have written the others. "
    "Type it again in one line. If all of it is for the model, put a word of yours in front of it."
)
CONFIRM: Final = (
    "nothing is rated yet. Type `/rl fix` alone to say that your text, from “{first}” to “{last}”, would have been "
    "right in place of {answer}. If all of it is for the model, put a word of yours in front of it."
)
_RATINGS: Final = ("good", "bad", "1", "2", "3", "4", "5", "👍", "👎")


class Command(NamedTuple):
    verb: str  # empty for a bare `/rl`
    words: str
    several_lines: bool = False  # all of it: whoever wrote the later ones may not be the person

    @property
    def rates(self) -> bool:
        return self.verb in (*_RATINGS, "fix")


class CommandContext(NamedTuple):
    """Somebody who types a command in the chat."""

    scope: Scope
    identity: RequestIdentity
    model: str
    unlisted: tuple[str, ...] = ()  # whom the request names and `server.chat_admins` does not
    agent: Agent | None = None  # that sent the request, where that is known
    line: str = COMMON

    @property
    def role(self) -> str:
        role = self.scope.principal.role
        return "rate" if role == "admin" and self.unlisted else role


class RatingTarget(NamedTuple):
    """The completion that a command is about, and by whose name it rates."""

    answer: RecentCompletion
    rater: str

    @property
    def key(self) -> tuple[str, str]:
        return self.answer.id, self.rater

    @property
    def words(self) -> str:
        """By which a person sees which answer it is."""
        return f"It begins: {quote_of(self.answer)}."


FindTarget = Callable[[], Awaitable[RatingTarget]]


class StatusTexts(Protocol):
    """Lines on the proxy's state, for a chat."""

    def text(self, *, with_text: bool, line: str = COMMON) -> Awaitable[str]: ...

    def after_rating(self, answer: RecentCompletion) -> Awaitable[str]:
        """How far the next run of the answer's line is; or that this answer never trains."""


def parse(text: str) -> Command:
    """`/rl bad too long` → ("bad", "too long")."""
    line = PREFIX.sub("", text.strip(), count=1).strip()
    if len(line) > 1 and line[0] == line[-1] == '"':  # `opencode run --command rl "bad too long"` quotes it again
        line = line[1:-1].strip()
    if not line:
        return Command("", "")
    verb, words = (*line.split(None, 1), "")[:2]
    return Command(verb.lower().rstrip(":,"), words.strip(), len(text.strip().splitlines()) > 1)


class ChatCommands:
    def __init__(
        self,
        store: Store,
        feedback: Feedback,
        status: StatusTexts,
        acts: AdminActs,
        screen: AnswerOnScreen,
        unconfirmed: UnconfirmedFixes,
    ) -> None:
        self._store = store
        self._feedback = feedback
        self._status = status
        self._acts = acts
        self._screen = screen
        self._unconfirmed = unconfirmed

    async def answer(self, messages: list[dict[str, Any]], context: CommandContext, *, is_bare: bool = False) -> str:
        """Answer the command that ends `messages`. Errors are answers too: a person reads them.

        `is_bare`: a bare prompt, which never has an answer above it.
        """

        async def find_target() -> RatingTarget:
            place = Place(context.scope, context.identity.session, context.model, context.agent)
            answer = await (self._last(place) if is_bare else self._screen.answer_above(messages[:-1], place))
            return RatingTarget(answer, context.scope.principal.bound or context.identity.user or OWNER)

        command = parse(command_of(messages[-1], context.agent) or "")
        try:
            actor = context.scope.principal.name or context.identity.user or OWNER
            text = await self.do(
                command, find_target, role=context.role, actor=f"{actor} (chat)", unlisted=context.unlisted,
                line=context.line,
            )  # fmt: skip
            return f"rlproxy: {text}"
        except ProxyError as error:
            return f"rlproxy: {error.message}"

    async def do(
        self,
        command: Command,
        find_target: FindTarget,
        *,
        role: str,
        actor: str,
        source: str = "chat",
        event_id: str | None = None,
        unlisted: Sequence[str] = (),
        line: str = COMMON,
    ) -> str:
        """Do it and say so. `actor`: for the audit log; `line`: of the conversation. `find_target` is asked for what a
        command is about where it is about something. Raises ProxyError."""
        if command.verb == "status":
            # Texts stay on this machine: none goes to a chat platform, nor to who may not read others' answers.
            return await self._status.text(with_text=source == "chat" and role != "use", line=line)
        if command.verb in ("", "help"):
            return HELP
        act = command.verb in IN_CHAT
        if act and role != "admin":
            return _for_admins(command.verb, unlisted)
        if command.words and (act or command.verb == "undo"):  # whoever wrote them may not be the person
            return (
                f"`/rl {command.verb}` takes no words after it, so nothing was done. Type `/rl {command.verb}` alone."
            )
        if act:
            return (await self._acts.do(command.verb, actor, line=line if command.verb in OF_A_LINE else None)).text
        if not command.rates and command.verb != "undo":
            return f"I do not know `/rl {command.verb[:40]}`, so nothing was done; {HELP}"
        if role == "use":
            return "your key may ask models and not rate (its role is use), so nothing was rated."
        target = await find_target()
        if command.verb == "undo":
            return await self._undo(target)
        return await self._rate(target, command, source, event_id)

    async def _last(self, place: Place) -> RecentCompletion:
        """The last main turn of this session or person; another's is not what they saw. Raises CannotTell."""
        if (answer := await self._screen.last(place.scope.own_requesters(), place.session)) is None:
            raise CannotTell("nothing of yours was answered yet, so nothing was rated.")
        return answer

    async def _rate(self, target: RatingTarget, command: Command, source: str, event_id: str | None) -> str:
        if len(command.words) > MAX_TEXT:
            raise BadRequest(f"What you wrote after the word is over {MAX_TEXT} characters, so nothing was rated.")
        if command.verb == "fix":
            text = command.words or self._unconfirmed.of(target.key)
            if text is None:
                return "write the better answer after it, as in `/rl fix: TEXT`. Nothing was rated."
            if command.several_lines:
                return self._ask_for(target, text)
            return await self._fix(target, text, source, event_id)
        if command.several_lines:
            return SEVERAL_LINES
        comment = command.words or None
        value, scale = parse_judgement(command.verb)
        new = NewRating(*target.key, value, comment=comment, source=source, source_event_id=event_id, scale=scale)
        rating = await self._feedback.rate(new)
        reason = f", because “{comment}”" if comment else ""
        return f"rated {_word(rating)}{reason}{_replaced(rating, new)}. {await self._end(target)}"

    async def _end(self, target: RatingTarget) -> str:
        """Which answer it was, how to undo, and what it adds to."""
        return f"{target.words} {UNDO} {_sentence(await self._status.after_rating(target.answer))}"

    def _ask_for(self, target: RatingTarget, text: str) -> str:
        self._unconfirmed.keep(target.key, text)
        lines = text.splitlines()
        first, last, answer = first_words(lines[0]), first_words(lines[-1]), quote_of(target.answer)
        return CONFIRM.format(first=first, last=last, answer=answer)

    async def _fix(self, target: RatingTarget, text: str, source: str, event_id: str | None) -> str:
        new = NewRating(*target.key, -1.0, correction=text, source=source, source_event_id=event_id)
        rating = await self._feedback.rate(new)
        replacement = _replaced(rating, new)
        return f"rated bad, with your text as what would have been right{replacement}. {await self._end(target)}"

    async def _undo(self, target: RatingTarget) -> str:
        rating = await self._store.ratings.live(*target.key)
        if rating is None:
            return "you have not rated the answer above, so there is nothing to undo."
        await self._feedback.retract(rating.id)
        progress = _sentence(await self._status.after_rating(target.answer))
        trained = versions_in_words(await self._store.ratings.versions_of(rating.id))
        stays = f" {trained} learned from it, and stays so; `/rl rollback` goes back a version." if trained else ""
        return f"your rating of the answer above ({_word(rating)}) is taken back. {target.words}{stays} {progress}"


def _sentence(line: str) -> str:
    return f"{line[:1].upper()}{line[1:]}."


def _for_admins(verb: str, unlisted: Sequence[str]) -> str:
    if not unlisted:
        return f"`/rl {verb}` needs an admin key (on a chat platform a place among its `admins`), so nothing was done."
    names = ", ".join(_quoted(name) for name in unlisted[:MAX_NAMES])
    return (
        f"`/rl {verb}` needs an admin, and this request names {names}, so nothing was done. If that is you, put this "
        f"into rlproxy.toml (with those whom it lists already) and start again: `server.chat_admins = [{names}]`."
    )


def _quoted(name: str) -> str:
    """Write it as TOML; half a character of a header cannot be said again."""
    return json.dumps(name[:MAX_NAME_LENGTH].encode("utf-8", "replace").decode(), ensure_ascii=False)


def _replaced(rating: Rating, new: NewRating) -> str:
    if rating.duplicate:
        return ", as before"
    if not rating.replaced:
        return ""
    retained = [word for word in ("comment", "correction") if getattr(rating, word) and not getattr(new, word)]
    stay = f"; its {' and '.join(retained)} stay{'s' if len(retained) == 1 else ''}" if retained else ""
    return f" (your earlier rating of it is replaced{stay})"


def _word(rating: Rating) -> str:
    if rating.scale == "stars":
        return f"{round(rating.value * 2 + 3)} of 5"
    return {1.0: "good", -1.0: "bad"}.get(rating.value, f"{rating.value:g}")
