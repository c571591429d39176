"""Compare: two answers to one prompt, which is better? One pick is two ratings.

Owns asking for the two answers and the pick. They are asked for as any client would, through rlproxy's own front door,
so that they are captured like all others. They go by the visitor's own role, key and name, and as side turns, which are
never commands. A message of the store that reads like one was none when it came. Which answer is whose is hidden until
the pick. Not here: what a rating is (ratings).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
import orjson
from aiohttp import web

from proxy.access.keys import Keys
from proxy.conversation.conversations import as_chat
from proxy.conversation.user_text import PREFIX
from proxy.core.errors import BackendBroke, BackendRefused, BadRequest, NotFound, Unsupported
from proxy.core.redirects import refuse_all
from proxy.core.version_names import label
from proxy.dialects import chat_tools
from proxy.feedback.bodies import MAX_TEXT
from proxy.feedback.ratings import OWNER, Feedback
from proxy.relay.previous_response import with_text_arguments
from proxy.versions.live_version import LiveVersion
from proxy.web.pages.view import VISITOR, View
from store.records import BASE, CompletionSummary, NewCompletion, NewRating
from store.store import Store

SOURCE: Final = "compare"
SESSION: Final = "compare"
SIDE_TURN: Final = {"x-rl-turn": "side", "x-rl-session": SESSION}
PAGE_SESSION: Final = "page"  # of questions that were asked on the page
MAX_TOKENS: Final = 512
TIMEOUT: Final = aiohttp.ClientTimeout(total=600)


class ComparePage:
    def __init__(self, view: View, store: Store, live_version: LiveVersion, feedback: Feedback, keys: Keys) -> None:
        self._view = view
        self._store = store
        self._live_version = live_version
        self._feedback = feedback
        self._keys = keys

    async def page(self, request: web.Request) -> web.Response:
        """Two answers to judge, or a form to ask for them."""
        query = request.query
        pair = [await self._answer(query[side]) for side in ("a", "b")] if "a" in query and "b" in query else []
        about = await self._answer(query["about"]) if query.get("about") else None
        siblings = await self._store.inbox.siblings(about.prompt_hash) if about and about.prompt_hash else []
        return self._view.page(
            request,
            "compare.html",
            pair=pair,
            about=about,
            siblings=[row for row in siblings if about and row.id != about.id],
            picked=_find_pick(pair, request[VISITOR].name),
            choices=[BASE, *(a.version for a in await self._store.versions.all() if not a.is_deleted)],
            left=_version(query.get("left"), self._live_version.live_of(line := self._view.line(request))),
            right=_version(query.get("right"), self._live_version.pointer_of(line).previous),
            prompt=query.get("prompt", ""),
        )

    async def ask(self, request: web.Request) -> web.Response:
        """Ask both at once, then show them."""
        form = await request.post()
        left_version, right_version = (
            _version(form.get("left"), self._live_version.live),
            _version(form.get("right"), self._live_version.live),
        )
        if about := str(form.get("about") or ""):
            completion = await self._store.completions.get(about)
            if completion is None:
                raise NotFound("This completion is not here any more.", param="about")
            model = completion.new.model if self._live_version.foreign else self._pin(left_version)
            ids = [about, await self._ask_model(request, model, SIDE_TURN, **_parameters_of(completion.new))]
        elif self._live_version.foreign:
            raise Unsupported("The model that answers is not ours, so there are no versions of it; nothing was asked.")
        else:
            messages = [{"role": "user", "content": _prompt(form)}]
            requests = (
                self._ask_model(request, self._pin(version), SIDE_TURN, messages=messages)
                for version in (left_version, right_version)
            )
            ids = list(await asyncio.gather(*requests))
        random.shuffle(ids)  # who looks at the left one first must not know which it is
        raise web.HTTPSeeOther("/compare?" + urlencode({"a": ids[0], "b": ids[1]}))

    async def ask_live(self, request: web.Request) -> web.Response:
        """One answer of the live version, as a main turn: it stands first in the inbox then."""
        prompt = _prompt(await request.post())
        if PREFIX.match(prompt):
            raise BadRequest("That is a command of chats, so nothing was asked: rate with the buttons.", param="prompt")
        headers = {"x-rl-turn": "main", "x-rl-session": PAGE_SESSION}
        messages = [{"role": "user", "content": prompt}]
        await self._ask_model(request, self._live_version.model, headers, messages=messages)
        raise web.HTTPSeeOther("/")

    async def pick(self, request: web.Request) -> web.Response:
        form = await request.post()
        better, worse = str(form.get("better") or ""), str(form.get("worse") or "")
        better_answer, worse_answer = await self._answer(better), await self._answer(worse)
        if (
            better_answer.id == worse_answer.id
            or better_answer.prompt_hash is None
            or better_answer.prompt_hash != worse_answer.prompt_hash
        ):
            raise BadRequest("These are not two answers to one prompt; nothing was rated.")
        for answer, value in ((better_answer, 1.0), (worse_answer, -1.0)):
            visitor = request[VISITOR]
            new = NewRating(answer.id, visitor.name, value, source=SOURCE, scale="thumb", key=visitor.key)
            await self._feedback.rate(new)
        order = {"a": str(form.get("a") or better), "b": str(form.get("b") or worse)}
        raise web.HTTPSeeOther("/compare?" + urlencode(order))

    async def _answer(self, id: str) -> CompletionSummary:
        answer = await self._store.inbox.get(id)
        if answer is None or answer.status == "pending":
            raise NotFound("This completion is not here any more.", param="id")
        return answer

    def _pin(self, version: int) -> str:
        return f"{self._live_version.model}@{label(version)}"

    async def _ask_model(self, request: web.Request, model: str, turn: Mapping[str, str], **parameters: Any) -> str:
        """One answer of that model; its id. `turn`: headers that say which. Raises BackendRefused with the status it
        got, BackendBroke."""
        with self._keys.temporary_key(request[VISITOR].principal) as key:
            return await self._ask_with_key({**turn, "authorization": f"Bearer {key}"}, request, model, parameters)

    async def _ask_with_key(
        self, headers: dict[str, str], request: web.Request, model: str, parameters: dict[str, Any]
    ) -> str:
        body: dict[str, Any] = {"model": model, **parameters, "max_tokens": MAX_TOKENS}
        if request[VISITOR].name != OWNER:
            body["user"] = request[VISITOR].name
        assert request.transport is not None
        host, port = request.transport.get_extra_info("sockname")[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1/chat/completions"
        async with aiohttp.ClientSession(timeout=TIMEOUT, middlewares=(refuse_all,)) as http:
            try:
                async with http.post(url, data=orjson.dumps(body), headers=headers) as response:
                    if response.status == 200:
                        return response.headers["x-rl-completion-id"]
                    answer = await response.json()
                    raise BackendRefused(response.status, f"{model} did not answer: {answer['error']['message']}")
            except (TimeoutError, aiohttp.ClientError, ValueError, KeyError) as error:
                raise BackendBroke(f"{model} did not answer ({error or type(error).__name__}).") from error


def _prompt(form: Mapping[str, Any]) -> str:
    """Raises BadRequest where there is none, or too long a one."""
    prompt = str(form.get("prompt") or "").strip()
    if not prompt or len(prompt) > MAX_TEXT:
        raise BadRequest(f"Write a prompt of at most {MAX_TEXT} characters.", param="prompt")
    return prompt


def _parameters_of(new: NewCompletion) -> dict[str, Any]:
    """The earlier request as chat completions take it: with its tools, as the calls in its history are of these."""
    messages = [with_text_arguments(as_chat(message)) for message in new.prompt]
    tools = chat_tools(new.dialect, new.request)
    return {"messages": messages, **({"tools": tools} if tools else {})}


def _version(field: Any, default: int) -> int:
    text = str(field or "")
    return int(text) if text.isdecimal() and len(text) < 10 else default


def _find_pick(pair: list[CompletionSummary], me: str) -> str | None:
    """The better one of the two, where this person said so."""
    own_values = {row.id: r.value for row in pair for r in row.ratings if r.rater == me}
    if len(own_values) < 2 or len(set(own_values.values())) < 2:
        return None
    return max(own_values, key=lambda id: own_values[id])
