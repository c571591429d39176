"""Which answer was on a person's screen: the one right above a command, or the last one.

A conversation that is sent back names its answer by its thread. Where a client has rewritten it, the answer is looked
for by its words, among what was said to the same key and person lately. What decides is how far the conversations go
together above it. Owns when that is certain enough. Where it is not, nothing is chosen: the answer to a command says
what is known. An answer that is under way or was broken off counts as far as it was shown. Not here: whose answers may
be looked at (reach), how alike two conversations are (same_text), what is done to the answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from proxy.access.keys import Scope
from proxy.conversation.conversations import as_chat, canonical, thread, without_commands
from proxy.conversation.first_words import first_words, quote_of
from proxy.conversation.inserted_messages import without_fillers
from proxy.conversation.redaction import Redactor
from proxy.conversation.same_calls import calls_in
from proxy.conversation.same_text import (
    COUNTED_LENGTH,
    LONGEST,
    Forms,
    MessageText,
    Similarity,
    TextOverlap,
    asked_alike,
    letters_of,
    overlap,
    partial_similarity,
    similarity,
    spoken_texts,
    text_in,
    whole_turn,
)
from proxy.conversation.underway import AnswersInProgress
from proxy.conversation.user_text import silent
from proxy.core.agent_wrappers import Agent
from proxy.core.errors import Conflict
from proxy.core.offload import in_thread
from store.captured import tree
from store.captured.tree import SYSTEM_ROLES
from store.records import Candidate, Completion, RecentCompletion, Requester, ReturnedConversation
from store.store import Store

RECENT_ANSWERS: Final = 200  # answers of a key and a person that are looked through for the words of one
CLOSE: Final = 40  # of them, whose whole conversations are compared
TURNS: Final = 50  # main turns that are looked through for one that is under way, or was broken off
TELLING: Final = 20  # letters and digits by which an answer is known, where little else speaks for it
TELLING_TOGETHER: Final = 40  # the same, of it and of several messages above it
UNMISTAKABLE: Final = 200  # the same, where what is above it speaks against it
MAX_CANDIDATES: Final = 5  # candidates in one answer

NONE_SENT: Final = (
    "your client sent no answer with this command, so I cannot tell which one you mean, and nothing was rated. "
    "`rlproxy good` rates the newest one; on the page you can rate any."
)
NONE_ABOVE: Final = (
    "what your client sent has no answer right above this command, so I cannot tell which one you mean, and nothing "
    "was rated. `rlproxy good` rates the newest one; on the page you can rate any."
)
UNKNOWN: Final = (
    "I have not captured the answer above this command, so nothing was rated. If it did come through rlproxy, rate it "
    "on the page."
)
REFERENCE: Final = (
    "the answer above this command came as a reference to an id that I do not know, so nothing was rated. `rlproxy "
    "good` rates the newest one; on the page you can rate any."
)
OURS: Final = "that is rlproxy's own answer to a command, and no model's, so nothing was rated."
NOT_BEGUN: Final = (
    "the newest answer is not finished, and nothing of it has come yet, so nothing was rated. Say it again when you "
    "see the answer; on the page you can rate any other one."
)
CUT_SHORT: Final = (
    "the newest answer was broken off before it said anything, so nothing was rated. On the page you can rate any "
    "other one."
)
ANOTHER: Final = (
    "another answer of this session is not finished yet, so I cannot tell which one you mean, and nothing was rated. "
    "Say it again when it is there."
)


class CannotTell(Conflict):
    """Which answer is meant is not certain; nothing was chosen."""


class Ambiguous(CannotTell):
    """Several completions may be meant."""


class Place(NamedTuple):
    """Where somebody types a command: whose answers may be meant, and what came with it."""

    scope: Scope
    session: str | None
    model: str
    agent: Agent | None


class Fit(NamedTuple):
    """The evidence for one candidate."""

    candidate: RecentCompletion
    session: int  # 2: the same, 1: not known, 0: another
    run: TextOverlap
    alike: Similarity
    has_question: bool  # there are words above it
    against: bool  # something above it was answered in another conversation
    setting: int  # 2 for the same system texts, and 1 for the same model


class AnswerOnScreen:
    def __init__(self, store: Store, redactor: Redactor, underway: AnswersInProgress) -> None:
        self._store = store
        self._redactor = redactor
        self.underway = underway

    async def answer_above(self, messages: list[dict[str, Any]], place: Place) -> RecentCompletion:
        """The answer right above a command, which these messages are in front of. Raises CannotTell."""
        await self.underway.begin_all(place.scope.own_requesters())
        history = await in_thread(_history_above, messages, place.agent)
        if not any(message.get("role") not in SYSTEM_ROLES for message in history):
            raise CannotTell(NONE_SENT)
        if history[-1].get("role") != "assistant":
            return await self._unanswered(history, place)
        if _is_reference(history[-1]):
            raise CannotTell(REFERENCE)
        return await self._newest_below(await self._reply(history, place, place.scope.own_requesters()), place)

    async def rendered(
        self, messages: Sequence[dict[str, Any]], place: Place, requesters: Sequence[Requester]
    ) -> RecentCompletion:
        """The answer that ends these messages as a client has them on its screen, however old it is, among the answers
        of `askers`. Where the place has a session, an answer of another session is none. Raises CannotTell."""
        indices = without_commands(messages, place.agent)
        if not indices or indices[-1] != len(messages) - 1:
            raise CannotTell(OURS)
        answer = await self._reply([messages[i] for i in indices], place, requesters, within=place.session)
        if place.session is not None and answer.session not in (None, place.session):
            raise CannotTell(UNKNOWN)
        return answer

    async def may_have_said(
        self, reply: Mapping[str, Any], requesters: Sequence[Requester], session: str | None
    ) -> bool:
        """Tell whether `rendered` may find this reply by its words, without the conversation above it."""
        for within in dict.fromkeys((session, None)):
            _, close, _ = await self._close_to(reply, requesters, within, Forms(), after_tool=True)
            if close:
                return True
        return False

    async def last(self, requesters: Sequence[Requester], session: str | None) -> RecentCompletion | None:
        """The main turn that these asked last, as far as it was shown. Raises CannotTell."""
        await self.underway.begin_all(requesters)
        return await self.settled(await self._store.answers.newest_of(requesters, session=session))

    async def settled(self, newest: RecentCompletion | None) -> RecentCompletion | None:
        """This answer, with as much of it as has come. Raises CannotTell where that is nothing."""
        if newest is None:
            return None
        newest = await self.so_far(newest)
        if newest.has_content or newest.status in ("done", "error"):
            return newest
        raise CannotTell(NOT_BEGUN if newest.status == "pending" else CUT_SHORT)

    async def so_far(self, answer: RecentCompletion) -> RecentCompletion:
        """This answer with the words that have come of it by now."""
        if answer.status != "pending":
            return answer
        if text := self.underway.text(answer.id):
            return replace(answer, text=await in_thread(self._redactor.text, text))
        return await self._store.answers.get(answer.id) or answer  # it may have ended in this moment

    # The answer above

    async def _reply(
        self, history: list[dict[str, Any]], place: Place, requesters: Sequence[Requester], *, within: str | None = None
    ) -> RecentCompletion:
        """`within`: the session whose answers are looked through first, also those that are not of late."""
        sent, messages = await in_thread(self._sent_back, history, place)  # it may have pictures in it
        completions = [] if sent is None else await self._store.completions.find_reply(sent, requesters)
        if len(completions) > 1:
            raise Ambiguous(_choice_text(completions))
        if completions:
            answer = await self._store.answers.get(completions[0].id)
            answer = await self._or_better(messages, sent, requesters, place, answer) if answer else None
        else:
            answer = await self._by_words(messages, sent, requesters, place, within) if within else None
            answer = answer or await self._by_words(messages, sent, requesters, place)
        if answer is None:
            raise CannotTell(UNKNOWN)
        return answer

    def _sent_back(
        self, history: list[dict[str, Any]], place: Place
    ) -> tuple[ReturnedConversation | None, list[dict[str, Any]]]:
        """The conversation by its names, and its messages as they are stored."""
        name = thread(history, self._redactor.message)
        stored = [self._redactor.message(canonical(message)) for message in history]
        talk, _ = tree.tree_part(stored)
        system = tuple(tree.message_hash(None, stored[i].role, stored[i].body) for i in tree.places(stored))
        sent = (
            None
            if name is None
            else ReturnedConversation(name, tree.chain(talk)[-1], system, place.model, place.session)
        )
        return sent, [as_chat(message) for message in stored]

    async def _by_words(
        self,
        history: list[dict[str, Any]],
        sent: ReturnedConversation | None,
        requesters: Sequence[Requester],
        place: Place,
        within: str | None = None,
    ) -> RecentCompletion | None:
        """The client has rewritten the conversation. Raises Ambiguous."""
        fits, letters, is_cut = await self._compared(history, sent, requesters, place, within)
        best = _best([fit for fit in fits if _is_enough(fit, letters)])
        if len(best) > 1 or (best and is_cut):
            raise Ambiguous(_choice_text(_candidates(best)))
        return best[0] if best else None

    async def _or_better(
        self,
        history: list[dict[str, Any]],
        sent: ReturnedConversation | None,
        requesters: Sequence[Requester],
        place: Place,
        answer: RecentCompletion,
    ) -> RecentCompletion:
        """`answer`, whose whole conversation is what was sent. Or one of whose conversation that may be the end, if its
        session or its system texts speak for it. Raises Ambiguous."""
        fits, _, _ = await self._compared(history, sent, requesters, place)
        mine = next((fit for fit in fits if fit.candidate.id == answer.id), None)
        if mine is None:
            return answer
        better = [
            fit for fit in fits
            if fit.run.whole and fit.alike >= Similarity.SPACES
            and (fit.session, fit.setting) > (mine.session, mine.setting)
        ]  # fmt: skip
        best = _best([mine, *better])
        if len(best) > 1:
            raise Ambiguous(_choice_text(_candidates(best)))
        return best[0]

    async def _compared(
        self,
        history: list[dict[str, Any]],
        sent: ReturnedConversation | None,
        requesters: Sequence[Requester],
        place: Place,
        within: str | None = None,
    ) -> tuple[list[Fit], int, bool]:
        """Those lately that say the same; how many letters the answer has; and whether there are more of them."""
        *earlier_messages, reply = history
        forms = Forms()
        after_tool = bool(earlier_messages) and earlier_messages[-1].get("role") == "tool"
        text, close, rows = await self._close_to(reply, requesters, within, forms, after_tool=after_tool)
        if place.session is not None and len(close) > CLOSE:
            close = [(answer, how) for answer, how in close if answer.session == place.session] or close
        if not close:
            return [], 0, False
        whole = await self._store.completions.many([answer.id for answer, _ in close[:CLOSE]])
        fits = await in_thread(_fits, earlier_messages, close, whole, sent, place, forms, rows)
        letters = len(letters_of((text or str(reply["tool_calls"]))[:COUNTED_LENGTH]))
        return fits, letters, len(close) > CLOSE

    async def _close_to(
        self,
        reply: Mapping[str, Any],
        requesters: Sequence[Requester],
        within: str | None,
        forms: Forms,
        *,
        after_tool: bool,
    ) -> tuple[str, list[tuple[RecentCompletion, Similarity]], list[RecentCompletion]]:
        """The text of a reply, the answers lately that say the same, and all answers lately."""
        text = text_in(reply)
        if not text and not reply.get("tool_calls"):
            return text, [], []
        longest = min(len(text) + len(text) // 2 + 1000, LONGEST)
        rows = await self._store.answers.answers_to(requesters, limit=RECENT_ANSWERS, longest=longest, session=within)
        rows = [await self.so_far(row) for row in rows]
        return text, await in_thread(_close, reply, text, rows, forms, after_tool=after_tool), rows

    async def _newest_below(self, answer: RecentCompletion, place: Place) -> RecentCompletion:
        """`answer`, unless an answer came below it that the client has not sent: it is under way, or was broken off.
        Raises CannotTell."""
        for newer in await self._store.answers.main_turns_of(place.scope.own_requesters(), limit=TURNS):
            same = newer.conversation == answer.conversation
            is_beside = place.session is not None and newer.session == place.session
            if not (_begins_after(newer, answer) and (same or is_beside)):
                continue
            if newer.status == "pending" and (newer := await self.so_far(newer)).status == "pending":
                if same and newer.has_content:
                    return newer
                raise CannotTell(NOT_BEGUN if same else ANOTHER)
            if same and newer.status == "partial" and newer.has_content:
                raise Ambiguous(_choice_text(_candidates([newer, answer])))
            if same:
                break
        return answer

    async def _unanswered(self, history: list[dict[str, Any]], place: Place) -> RecentCompletion:
        """The person's own message is the last one: its answer is under way, or its client keeps none that was broken
        off. Raises CannotTell."""
        forms = Forms()
        _, messages = await in_thread(self._sent_back, history, place)
        turns = await self._store.answers.main_turns_of(place.scope.own_requesters(), limit=TURNS)
        turns = await in_thread(_turns_of_question, messages[-1], turns, forms)
        whole = await self._store.completions.many([turn.id for turn in turns])
        close = [(turn, Similarity.EXACT) for turn in turns]
        fits = await in_thread(_fits, messages, close, whole, None, place, forms)
        enough = [fit for fit in fits if fit.run.messages and (fit.run.whole or fit.session == 2)]
        answers = [await self.so_far(answer) for answer in _best(enough, newest_only=False)]
        visible = [answer for answer in answers if answer.has_content]
        if len(visible) == 1:
            return visible[0]
        if visible:
            raise Ambiguous(_choice_text(_candidates(visible)))
        if not answers:
            raise CannotTell(NONE_ABOVE)
        raise CannotTell(NOT_BEGUN if any(answer.status == "pending" for answer in answers) else CUT_SHORT)


def _history_above(messages: Sequence[dict[str, Any]], agent: Agent | None) -> list[dict[str, Any]]:
    """Down to the newest message that may have been on the screen."""
    history = [messages[i] for i in without_commands(messages, agent)]
    while history and (history[-1].get("role") in (*SYSTEM_ROLES, "tool") or silent(history[-1])):
        history.pop()
    return [dict(message) for message in without_fillers(history, agent)]


def _begins_after(newer: RecentCompletion, answer: RecentCompletion) -> bool:
    """Tell if one was asked once the other had ended."""
    return newer.seq > answer.seq and answer.finished_at is not None and newer.created_at >= answer.finished_at


def _is_reference(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return any(isinstance(part, Mapping) and part.get("type") == "item_reference" for part in parts)


def _turns_of_question(
    question: Mapping[str, Any], turns: Iterable[RecentCompletion], forms: Forms
) -> list[RecentCompletion]:
    """Those that may have been asked this."""
    text = text_in(question)
    return [turn for turn in turns if asked_alike(text, turn.asked, forms)][:CLOSE]


def _close(
    reply: Mapping[str, Any], text: str, rows: Iterable[RecentCompletion], forms: Forms, *, after_tool: bool
) -> list[tuple[RecentCompletion, Similarity]]:
    """Those that say the same. `after_tool`: a tool's result is right above it."""
    matches: list[tuple[RecentCompletion, Similarity]] = []
    calls = [] if text else calls_in(reply)  # once: they may be megabytes
    for row in rows:
        if text:
            is_partial = row.status not in ("done", "error")
            compare = partial_similarity if is_partial else whole_turn if after_tool else similarity
            how = compare(text, text_in({"role": "assistant", "content": row.text}), forms)
        else:
            same = calls and row.calls is not None and calls == calls_in(as_chat(row.calls))
            how = Similarity.EXACT if same else Similarity.NOT
        if how is not Similarity.NOT:
            matches.append((row, how))
    return matches


def _fits(
    messages: Sequence[Mapping[str, Any]],
    close: Sequence[tuple[RecentCompletion, Similarity]],
    whole: Sequence[Completion],
    sent: ReturnedConversation | None,
    place: Place,
    forms: Forms,
    rows: Iterable[RecentCompletion] = (),
) -> list[Fit]:
    """`rows`: all that was answered lately, whatever it says."""
    texts = spoken_texts(without_fillers(messages, place.agent))
    completions = {answer.new.id: answer for answer in whole}
    answers = _answers(texts, forms)
    elsewhere = answers & {forms.letters(row.text) for row in rows} if answers else set()
    fits = []
    for answer, how in close:
        completion = completions.get(answer.id)
        if completion is None:  # it went in this moment
            continue
        prompt = completion.new.prompt
        if how is Similarity.END and not (prompt and prompt[-1].role == "tool"):
            continue
        session = 1 if None in (place.session, answer.session) else 2 if place.session == answer.session else 0
        system = tuple(tree.message_hash(None, prompt[index].role, prompt[index].body) for index in tree.places(prompt))
        setting = 2 * (sent is not None and system == sent.system) + (answer.model == place.model)
        prompt_messages = without_fillers([as_chat(message) for message in prompt], place.agent)
        theirs = spoken_texts(prompt_messages)
        run = overlap(texts, theirs, forms)
        against = not run.whole and not elsewhere <= _answers(theirs, forms)
        fits.append(Fit(answer, session, run, how, bool(texts), against, setting))
    return fits


def _answers(texts: Iterable[MessageText], forms: Forms) -> set[str]:
    return {forms.letters(text.text) for text in texts if text.role == "assistant"}


def _is_enough(fit: Fit, letters: int) -> bool:
    """Tell if it is certain that this is the answer, if it is the only one. An answer that is not captured may have the
    same words: short ones need more to speak for them. `letters`: in its beginning, and digits."""
    run, has_question = fit.run, fit.has_question
    if fit.against or (fit.alike is Similarity.END and not (run.messages and run.whole)):
        return False
    if fit.session == 2:
        return run.messages > 0 or not has_question or letters >= UNMISTAKABLE
    if fit.session == 0:
        return run.messages > 0 and run.whole and letters >= TELLING
    if run.messages:
        return run.whole or letters >= TELLING or (run.messages > 1 and letters + run.letters >= TELLING_TOGETHER)
    return letters >= (UNMISTAKABLE if has_question else TELLING)


def _best(fits: Sequence[Fit], *, newest_only: bool = True) -> list[RecentCompletion]:
    """The one for which in no way less speaks than for any other; else all between which it is not certain. The same
    said to the same question of the same conversation means the newest; with `newest_only` false all of these."""
    best = [fit for fit in fits if all(_weighs(fit, rival) for rival in fits)]
    if not best:
        return [fit.candidate for fit in fits]
    best_setting = max(fit.setting for fit in best)
    best = [fit for fit in best if fit.setting == best_setting]
    if any(fit.alike >= Similarity.SPACES for fit in best):
        best = [fit for fit in best if fit.alike >= Similarity.SPACES]
    same = (
        best[0].candidate.thread is not None
        and len({(fit.candidate.thread, fit.candidate.session) for fit in best}) == 1
    )
    return [best[0].candidate] if same and newest_only else [fit.candidate for fit in best]


def _weighs(fit: Fit, rival: Fit) -> bool:
    return fit.session >= rival.session and fit.run.messages >= rival.run.messages


def _candidates(answers: Iterable[RecentCompletion]) -> list[Candidate]:
    return [Candidate(answer.id, answer.created_at, answer.text or quote_of(answer)) for answer in answers]


def _choice_text(candidates: Sequence[Candidate]) -> str:
    lines = [
        f"- `{candidate.id}`, {time.strftime('%d %b %H:%M', time.localtime(candidate.created_at))}: "
        f"“{first_words(candidate.text)}”"
        for candidate in candidates[:MAX_CANDIDATES]
    ]
    remainder = f"\n- and {len(candidates) - MAX_CANDIDATES} more" if len(candidates) > MAX_CANDIDATES else ""
    return (
        "this conversation reads like several that were captured, so nothing was rated. Rate the one you mean with "
        "`rlproxy good --id ID` (or `bad`), or on the page:\n" + "\n".join(lines) + remainder
    )
