"""The inbox: the newest completions as conversations, live, to be rated with a key or a tap each.

Owns the list with its filters and search, one completion's row, and the acts on it. A conversation stands where its
newest turn is, with the earlier ones folded under it; a search, and one conversation alone, show each turn. A page goes
on from the `seq` of its last row. Not here: what a rating is (ratings), what happens meanwhile (`/rl/events`, to which
the page listens).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import web

from config.sections import Criterion
from proxy.conversation.first_words import quote_text
from proxy.core.errors import BadRequest, Conflict, NotFound
from proxy.feedback.bodies import MAX_TEXT
from proxy.feedback.ratings import Feedback, parse_judgement
from proxy.signals.judging import JudgingLoop
from proxy.signals.rules import of_kind
from proxy.web.pages.filters import own_rating, sentence, verdict
from proxy.web.pages.notices import urgent
from proxy.web.pages.pictures import Pictures
from proxy.web.pages.rubric import graded
from proxy.web.pages.view import VISITOR, View, html
from proxy.web.status import StatusReport
from store.captured.inbox import COUNTED_TURNS, Inbox
from store.records import BASE, CompletionQuery, CompletionSummary, NewRating, NewSignal, Rating, Scale, Turn
from store.store import Store

PAGE: Final = 30
SOURCE: Final = "page"
TO_ASK: Final = "informative"  # the order in which a rating says most
FILTERS: Final = ("q", "unrated", "side", "model", "version", "session", "conversation", "order")
FORMS: Final = ("comment", "correct", "grade")


class InboxPage:
    def __init__(
        self,
        view: View,
        store: Store,
        feedback: Feedback,
        status: StatusReport,
        judging: JudgingLoop,
        pictures: Pictures,
        criteria: Sequence[Criterion],
    ) -> None:
        self._view = view
        self._store = store
        self._feedback = feedback
        self._status = status
        self._judging = judging
        self._pictures = pictures
        self._criteria = criteria

    async def page(self, request: web.Request) -> web.Response:
        if not await self._store.inbox.any():
            return self._view.page(request, "first.html")
        versions = [BASE, *(a.version for a in await self._store.versions.all())]
        return self._view.page(
            request,
            "inbox.html",
            **await self._list(request),
            models=await self._store.inbox.models(),
            versions=sorted(versions, reverse=True),
            notices=urgent(self._status.prompts()),
            question=await self._question(),
        )

    async def _question(self) -> CompletionSummary | None:
        """An answer that a judge has labelled, drawn at random: is it good?"""
        id = await self._judging.question()
        return None if id is None else await self._store.inbox.get(id)

    async def postpone_question(self, request: web.Request) -> web.Response:
        """Somebody would rather not say."""
        await self._judging.answered()
        return web.Response(text="")

    async def record_copy(self, request: web.Request) -> web.Response:
        """A person copied the answer, or a part of it: a signal, and no rating."""
        row = await self._find_row(request)
        signal_rule = of_kind("copied")
        assert signal_rule is not None
        await self._store.signals.add(
            NewSignal(row.id, "copied", label=signal_rule.name, value=signal_rule.value, why=signal_rule.reason)
        )
        return web.Response(status=204)

    async def rows(self, request: web.Request) -> web.Response:
        """Rows alone: older ones, or the newest for a page that is open."""
        return self._view.page(request, "rows.html", **await self._list(request))

    async def _list(self, request: web.Request) -> dict[str, Any]:
        completion_query = parse_query(request)
        ask = request.query.get("order") == TO_ASK
        rows = await self._store.guesses.to_ask(PAGE) if ask else []
        inbox_page = Inbox(rows, {}, None) if rows else await self._store.inbox.page(completion_query)
        query = {key: request.query.get(key, "") for key in FILTERS}
        chosen_filters = {key: value for key, value in query.items() if value}
        return {
            "rows": inbox_page.rows,
            "taught": await self._store.lessons.in_prompts([row.id for row in inbox_page.rows]),
            "pictures": await self._pictures.of_rows(inbox_page.rows),
            "others": inbox_page.hidden_turns,
            "counted": COUNTED_TURNS,
            "folded": completion_query.newest_of_each and not rows,
            "asks": bool(rows),
            "no_critic": ask and not rows,
            "me": request[VISITOR].name,
            "query": query,
            "filtered": bool(chosen_filters),
            "filters": urlencode(chosen_filters),
            "older": urlencode({**chosen_filters, "before": inbox_page.before_seq}) if inbox_page.before_seq else None,
            "continued": completion_query.before_seq is not None,
        }

    # One completion

    async def row(self, request: web.Request) -> web.Response:
        row = await self._find_row(request)
        taught = await self._store.lessons.in_prompts([row.id])
        pictures = await self._pictures.of_rows([row])
        me = request[VISITOR].name
        return html(self._view.render(request, "row.html", row=row, taught=taught, pictures=pictures, me=me))

    async def form(self, request: web.Request) -> web.Response:
        """Where a person writes why, or what would have been right."""
        kind = request.match_info["form"]
        if kind not in FORMS or (kind == "grade" and not self._criteria):
            raise NotFound(f"There is no form {kind}.")
        row = await self._find_row(request)
        whole = await self._store.completions.get(row.id)
        text = whole.end.text if whole and whole.end else ""
        return self._view.page(request, f"{kind}.html", row=row, mine=self._own_rating(request, row), text=text)

    async def rate(self, request: web.Request) -> web.Response:
        """Answers with the row as it is then."""
        row, form = await self._find_row(request), await request.post()
        current = self._own_rating(request, row)
        # What is not in the form stays; what was emptied is taken away.
        comment, correction = (_text(form[key]) or "" if key in form else None for key in ("comment", "correction"))
        scale: Scale
        if (grades := graded(form, self._criteria)) is not None:
            value, scale = grades.value, "unit"
            comment = "\n".join(filter(None, (comment, grades.comment)))
        elif (judgement := _text(form.get("rating"))) is not None:
            value, scale = parse_judgement(judgement)
        elif correction:
            value, scale = -1.0, "thumb"
        elif current is not None:
            value, scale = current.value, current.scale
        else:
            raise BadRequest("Say whether it was good or bad.", param="rating")
        visitor = request[VISITOR]
        rating = await self._feedback.rate(
            NewRating(
                row.id, visitor.name, value, comment=comment, correction=correction, source=SOURCE, scale=scale,
                key=visitor.key,
            )
        )  # fmt: skip
        return await self._answer(request, row, f"Rated {verdict(rating)}.")

    async def undo(self, request: web.Request) -> web.Response:
        row = await self._find_row(request)
        if (mine := self._own_rating(request, row)) is None:
            raise Conflict("You have not rated this, so there is nothing to undo.")
        await self._feedback.retract(mine.id)
        return await self._answer(request, row, "Your rating is taken back.")

    async def _answer(self, request: web.Request, row: CompletionSummary, act: str) -> web.Response:
        """The row, with what was done, to which answer, and what it adds to."""
        answer = await self._store.answers.get(row.id)
        progress = "" if answer is None else sentence(await self._status.after_rating(answer))
        line = f"{act} The answer begins: {quote_text(row.text, row.calls)}. {progress}"
        return _with_notice(await self.row(request), line)

    async def count(self, request: web.Request) -> web.Response:
        """How far the next run is, for the top of every page."""
        return web.Response(text=await self._status.countdown(self._view.line(request)))

    async def _find_row(self, request: web.Request) -> CompletionSummary:
        row = await self._store.inbox.get(request.match_info["id"])
        if row is None:
            raise NotFound("This completion is not here any more.", param="id")
        if row.status == "pending":
            words = await self._feedback.quote(row.id)
            raise Conflict(
                f"This answer is not finished: {words}. Nothing was changed. It can be rated here when it has ended, "
                f"and before by `rlproxy good --id {row.id}` or `rlproxy bad`."
            )
        return row

    def _own_rating(self, request: web.Request, row: CompletionSummary) -> Rating | None:
        return own_rating(row.ratings, request[VISITOR].name)


def _with_notice(response: web.Response, line: str) -> web.Response:
    """With a line that the page shows and says; a header takes ASCII alone."""
    response.headers["HX-Trigger-After-Settle"] = json.dumps({"told": line})
    return response


def parse_query(request: web.Request) -> CompletionQuery:
    """The filters of the address. Raises BadRequest."""
    query = request.query
    turn: Turn | None = None if query.get("side") else "main"
    version = _number(query.get("version"), "version")
    conversation = _number(query.get("conversation"), "conversation")
    search = (query.get("q") or "").strip()[:200] or None
    return CompletionQuery(
        limit=PAGE,
        before_seq=_number(query.get("before"), "before"),
        search=search,
        unrated=bool(query.get("unrated")),
        model=query.get("model") or None,
        version=version,
        session=query.get("session") or None,
        turn=turn,
        conversation=conversation,
        newest_of_each=search is None and conversation is None,
    )


def _number(text: str | None, name: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise BadRequest(f"`{name}` must be a number.", param=name)
    return int(text)


def _text(value: Any) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise BadRequest(f"What you wrote is over {MAX_TEXT} characters; nothing was rated.")
    return value.replace("\r\n", "\n").strip() or None
