"""Dispatch of an event: which completion, who may, and the rating that follows.

Owns the rule of who may rate: the person the reply was for, and those whom the settings name. Everybody else's events
are counted and dropped. Not here: proof of who speaks (the platforms), what `/rl` means (`chat_command`).
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from typing import Final

import structlog

from config.webhooks import PlatformSection, WebhooksSection
from proxy.conversation.answer_on_screen import AnswerOnScreen
from proxy.core.errors import Conflict, Forbidden, NotFound, ProxyError
from proxy.core.metrics import Metrics
from proxy.feedback.chat_command import ChatCommands, Command, RatingTarget, parse
from proxy.feedback.ratings import Feedback
from proxy.feedback.webhooks.base import IN_MATRIX, EventDone, PlatformEvent
from proxy.feedback.webhooks.emoji import Meaning
from proxy.feedback.webhooks.resolve import MessageResolver, ResolvedMessage
from store.errors import LinkTaken, StoreError, UnknownCompletion
from store.records import Link, NewReaction, RecentCompletion
from store.store import Store

log = structlog.get_logger()

KEPT_S: Final = 600.0  # what a command was answered, for a platform that sends it again
MOST: Final = 256

_LINES: Final = {
    "rated": "the reaction is stored as a rating",
    "retracted": "the rating is taken back",
    "same": "it was rated so already",
    "nothing": "no rating hung on that reaction",
    "late": "something newer is known of that reaction",
    "duplicate": "this event was taken before",
}


class Unmatched(NotFound):
    pass


class AmbiguousMessage(Conflict):
    pass


class Stranger(Forbidden):
    pass


_RESULTS: Final[dict[type[Exception], str]] = {
    Unmatched: "unmatched", AmbiguousMessage: "ambiguous", Stranger: "stranger"
}  # fmt: skip


class Dispatch:
    def __init__(
        self,
        settings: WebhooksSection,
        store: Store,
        feedback: Feedback,
        commands: ChatCommands,
        metrics: Metrics,
        screen: AnswerOnScreen,
    ) -> None:
        self._settings = settings
        self._store = store
        self._feedback = feedback
        self._commands = commands
        self._metrics = metrics
        self._meaning = Meaning(settings)
        self._answered: dict[tuple[str, str], tuple[float, EventDone]] = {}  # commands that are done once, and when
        self.finder = MessageResolver(store, screen)

    async def take(self, route: str, event: PlatformEvent) -> EventDone:
        """Raises StorageFailed: then the platform should send it again."""
        section: PlatformSection = getattr(self._settings, route)
        if event.platform == "openclaw" and self._settings.matrix.is_on and event.channel.startswith(IN_MATRIX):
            self._metrics.webhooks.labels(route, "ignored").inc()
            return EventDone(event, "ignored", 200, "")  # the homeserver tells of it, and is answered
        by_kind = {"command": self._command, "answer": self._answer_shown, "clearing": self._cleared}
        take = by_kind.get(event.kind, self._reaction)
        try:
            outcome = await (
                self._undone(event) if event.kind == "retraction" and event.undoes else take(section, event)
            )
        except (ProxyError, StoreError):
            self._metrics.webhooks.labels(route, "not_stored").inc()
            raise
        self._metrics.webhooks.labels(route, outcome.result).inc()
        log.info(
            "webhook",
            route=route,
            what=event.kind,
            result=outcome.result,
            line=None if event.kind == "command" else outcome.line,
        )
        return outcome

    # Reactions

    async def _reaction(self, section: PlatformSection, event: PlatformEvent) -> EventDone:
        meaning = self._meaning.of(event.text)
        if meaning is None and event.slot:
            return EventDone(
                event, "ignored", 200, "that reaction has no meaning here; webhooks.good, bad and stars set it"
            )
        try:
            target = await self._target(section, event)
            reacted = await self._feedback.react(
                NewReaction(
                    completion_id=target.answer.id,
                    rater=target.rater,
                    platform=event.platform,
                    event_id=event.event_id,
                    message=f"{event.channel} {event.message_id}",
                    emoji=event.slot,
                    value=meaning[0] if meaning and event.kind == "reaction" else None,
                    timestamp=event.happened_at,
                    scale=meaning[1] if meaning else "thumb",
                )
            )
        except ProxyError as error:
            return _refused(event, error)
        rating = None if reacted.rating is None else reacted.rating.id
        is_quoted = reacted.result in ("rated", "retracted", "same")
        line = f"{_LINES[reacted.result]}. {target.words}" if is_quoted else _LINES[reacted.result]
        return EventDone(event, reacted.result, 201 if reacted.result == "rated" else 200, line, rating)

    async def _undone(self, event: PlatformEvent) -> EventDone:
        """The platform let somebody take an event back: what hangs on that goes, a reaction's or a command's rating."""
        try:
            if (reaction := await self._store.reactions.of_event(event.platform, event.undoes)) is not None:
                if reaction.message.rpartition(" ")[0] != event.channel:  # whoever may redact there may not here
                    return EventDone(event, "ignored", 200, _LINES["nothing"])
                time_of_both = max(event.happened_at, reaction.timestamp)  # two clocks may have made them
                reacted = await self._feedback.react(
                    replace(reaction, event_id=event.event_id, value=None, timestamp=time_of_both)
                )
                rating = None if reacted.rating is None else reacted.rating.id
                return EventDone(event, reacted.result, 200, _LINES[reacted.result], rating)
            command = f"{event.channel} {event.undoes}"  # one in another room has another id
            for rated in await self._store.ratings.of_events(event.platform, command, live=True):
                if f"{rated.source_event_id} ".startswith(f"{command} "):
                    await self._feedback.retract(rated.id)
                    return EventDone(event, "retracted", 200, _LINES["retracted"], rated.id)
        except ProxyError as error:
            return _refused(event, error)
        return EventDone(event, "ignored", 200, _LINES["nothing"])

    async def _cleared(self, _: PlatformSection, event: PlatformEvent) -> EventDone:
        """Everybody's reactions on a message are gone, those of a slot or all: as if each person had removed theirs."""
        results = []
        for reaction in await self._store.reactions.of_message(event.platform, f"{event.channel} {event.message_id}"):
            if event.slot not in ("", reaction.emoji, reaction.emoji.partition(" ")[0]):
                continue
            removal = replace(
                reaction,
                event_id=f"{event.event_id} {reaction.rater} {reaction.emoji}",
                value=None,
                timestamp=max(event.happened_at, reaction.timestamp),
            )
            try:
                results.append((await self._feedback.react(removal)).result)
            except ProxyError as error:
                return _refused(event, error)
        result = "retracted" if "retracted" in results else "ignored"
        return EventDone(event, result, 200, _LINES["retracted" if result == "retracted" else "nothing"])

    async def _answer_shown(self, _: PlatformSection, event: PlatformEvent) -> EventDone:
        """A message says by itself which completion it shows."""
        assert event.message_id is not None and event.completion_id is not None
        resolved = await self.finder.find(event)
        if resolved.completion_id is None:
            return EventDone(event, "unmatched", 404, f"Nothing was linked: {resolved.reason}.")
        new = Link(event.platform, event.channel, event.message_id, resolved.completion_id, event.person or None)
        try:
            is_first = await self._store.reactions.link(new)
        except (LinkTaken, UnknownCompletion) as error:  # linked by a key already, or forgotten meanwhile
            return EventDone(event, "ignored", 200, str(error))
        line = "the message is linked to its answer"
        return EventDone(event, "linked", 201 if is_first else 200, line)

    # Commands

    async def _command(self, section: PlatformSection, event: PlatformEvent) -> EventDone:
        if event.undoes:  # an edit: it speaks of what the first text was about
            rated = await self._store.ratings.of_event(event.platform, event.undoes)
            if rated is None:
                return EventDone(event, "ignored", 200, "what was edited there rated nothing")
            event = replace(event, completion_id=rated.completion_id)
        command = parse(event.text)
        try:
            # What rates is stored once by its event; the rest must not be done twice.
            return await (self._do if command.rates else self._once)(section, event, command)
        except ProxyError as error:
            return _refused(event, error)

    async def _once(self, section: PlatformSection, event: PlatformEvent, command: Command) -> EventDone:
        """Sent again, as what took too long is, it is answered as it was. Raises Stranger, StoreError."""
        key = (event.platform, event.event_id)
        if key in self._answered:
            return self._answered[key][1]
        self._may(section, event, command)
        if not await self._store.reactions.first_time(*key):
            return EventDone(event, "duplicate", 200, _LINES["duplicate"])
        try:
            outcome = await self._do(section, event, command)
        except (ProxyError, StoreError) as error:  # its next try will not be done, so this one has to say why
            status = error.status if isinstance(error, ProxyError) and error.status < 500 else 200
            outcome = EventDone(event, _result(error), status, f"rlproxy: {error}")
        now = time.monotonic()
        recent = {k: entry for k, entry in list(self._answered.items())[1 - MOST :] if now - entry[0] < KEPT_S}
        self._answered = recent | {key: (now, outcome)}
        return outcome

    async def _do(self, section: PlatformSection, event: PlatformEvent, command: Command) -> EventDone:
        """Raises ProxyError."""
        line = await self._commands.do(
            command,
            lambda: self._target(section, event),
            role="admin" if _is_in(section.admins, event) else "rate",
            actor=f"{event.names[-1]} ({event.platform})",
            source=event.platform,
            event_id=event.event_id,
        )
        return EventDone(event, "command", 200, f"rlproxy: {line}")

    def _may(self, section: PlatformSection, event: PlatformEvent, command: Command) -> None:
        """Raises Stranger. To undo is for those who could rate; that is seen once the completion is known."""
        if command.verb in ("", "help", "undo") or _is_in((*section.raters, *section.admins), event):
            return
        raise Stranger(
            f"`/rl {command.verb}` is for people named in the settings of rlproxy, you as {event.names[-1]}; nothing "
            "was done."
        )

    # Which, and who

    async def _target(self, section: PlatformSection, event: PlatformEvent) -> RatingTarget:
        """The completion, and whose rating this is. Raises Unmatched, Ambiguous, Stranger."""
        if event.message_id is None and event.completion_id is None:  # sent again, it means what was newest then
            previous = await self._store.ratings.of_event(event.platform, event.event_id)
            if previous is not None:
                return RatingTarget(await self._answer(previous.completion_id), previous.rater)
        resolved = await self.finder.find(event)
        if resolved.completion_id is None:
            kind = AmbiguousMessage if resolved.ambiguous else Unmatched
            raise kind(f"Nothing was rated: {resolved.reason}.", param="message_id")
        rater = await self._rater(section, event, resolved, resolved.completion_id)
        if rater is None:
            raise Stranger(
                "Nothing was rated: the reply was for somebody else, and you are not named in the settings (as "
                f"{event.names[-1]})."
            )
        return RatingTarget(await self._answer(resolved.completion_id), rater)

    async def _answer(self, id: str) -> RecentCompletion:
        """Raises Unmatched."""
        if (answer := await self._store.answers.get(id)) is None:
            raise Unmatched(f"Nothing was rated: there is no completion {id}.", param="completion_id")
        return answer

    async def _rater(
        self, section: PlatformSection, event: PlatformEvent, resolved: ResolvedMessage, completion_id: str
    ) -> str | None:
        """The name to rate by, always one of this person's; None for who may not. A link says whom a reply was for,
        not that they are the user for whom it was asked."""
        requester = await self._store.reactions.requester_of(completion_id)
        user = None if requester is None else requester.user
        rater = next((section.raters[name] for name in event.names if name in section.raters), None)
        if user is not None and user in (*event.names, rater):
            return user
        if resolved.person is not None and resolved.person == event.person:
            return rater or event.names[-1]
        return rater


def _is_in(names: Collection[str], event: PlatformEvent) -> bool:
    return any(name in names for name in event.names)


def _refused(event: PlatformEvent, error: ProxyError) -> EventDone:
    """Raises what is not an answer: a disk that did not take it."""
    if error.status >= 500:
        raise error
    return EventDone(event, _result(error), error.status, f"rlproxy: {error.message}")


def _result(error: Exception) -> str:
    return _RESULTS.get(type(error), "refused")
