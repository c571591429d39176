"""Requests that go on from an earlier answer by its id, and earlier answers asked for by their id.

Owns how such an id is found in the store, and what the id of a local answer (`/rl good`) stands for. Not here: whose it
may be (reach), and what a request looks like once it is spelled out, which is the dialect's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from proxy.access.keys import Scope
from proxy.conversation.conversations import as_chat, canonical
from proxy.conversation.redaction import Redactor
from proxy.core.agent_wrappers import STORED
from proxy.core.errors import BadRequest, TooLarge
from proxy.core.json_edit import loads
from proxy.core.offload import off_loop
from proxy.core.wrapped_ids import unwrap_id
from proxy.dialects import Dialect, ParsedRequest, PreviousCompletion
from proxy.relay.context import new_id
from store.captured.items import RESPONSE, ItemPlace
from store.records import Completion
from store.store import Store

# A local answer is no completion: its id is that of the answer before it, or START, then one of its own.
START: Final = "start"
_OURS: Final = ".rl-"
MOST_NAMED: Final = 1000  # answers that one request may name by their items, and items that are looked up

# Has memory for so many bytes of stored answers before they are read. Raises TooLarge, TooMany, Overloaded.
Holds = Callable[[int], None]


class PreviousResponses:
    def __init__(self, store: Store, redactor: Redactor) -> None:
        self._store = store
        self._redactor = redactor

    async def spell_out(
        self, dialect: Dialect, body: Any, previous: str | None, scope: Scope, hold: Holds
    ) -> dict[str, bytes]:
        """The members of the request to change, so that it repeats what it named; what is not ours stays named.
        Raises BadRequest where it names more answers than one request may, and what `hold` raises."""
        names = dialect.names(body)
        answer_ids = [id for name in names for id in _ids(name)]
        size = await self._store.sizes.replies(answer_ids, scope.keys) if names else 0
        if previous is not None:
            size += await self._store.sizes.whole(_ids(previous), scope.keys)
        hold(size)
        answers = await self._answers(names, scope)
        if previous is not None and (answer := await self.find(previous, scope)) is not None:
            answers[previous] = answer
        elif previous is not None and await self.is_anothers(previous, scope):
            raise BadRequest(f"Previous response with id '{previous}' not found.", param="previous_response_id")
        return await off_loop(size, dialect.spell_out, body, answers) if answers else {}

    async def _answers(self, names: Sequence[str], scope: Scope) -> dict[str, PreviousCompletion]:
        """The answers that items stand for, without their prompts, by the names that the items have for them."""
        if not names:
            return {}
        ids = {name: _ids(name) for name in names}
        completion_ids = dict.fromkeys(id for pair in ids.values() for id in pair)
        answers = await self._store.items.answers(list(completion_ids), MOST_NAMED, scope.keys)
        if len(answers) > MOST_NAMED:
            raise BadRequest(
                f"The request names more than {MOST_NAMED:,} earlier answers by their items' ids; nothing was passed "
                "on. Send the items themselves.",
                param="input",
            )
        completions = {
            answer.completion_id: PreviousCompletion(
                answer.completion_id,
                [],
                None if answer.reply is None else with_text_arguments(as_chat(answer.reply)),
                loads(answer.request) if answer.request else {},
            )
            for answer in answers
            if scope.covers(answer.requester)
        }
        pairs = (
            (name, next((completions[id] for id in pair if id in completions), None)) for name, pair in ids.items()
        )
        return {name: answer for name, answer in pairs if answer is not None}

    async def referred(
        self, dialect: Dialect, body: Any, scope: Scope, session: str | None, hold: Holds
    ) -> dict[str, dict[str, Any]]:
        """The items that the request names by the ids of its backend, which has them too. They are for what is captured
        and compared, and not for the request. One whose id several answers may have had stays a reference, and all do
        where they are too large together."""
        item_ids = dialect.refers_to(body)[:MOST_NAMED]
        places: dict[str, list[ItemPlace]] = {}
        for row in await self._store.items.places(item_ids, scope.keys) if item_ids else ():
            if scope.covers(row.requester):
                places.setdefault(row.id, []).append(row)
        sure = [place for candidates in places.values() if (place := _only(candidates, session)) is not None]
        completion_ids = list({place.completion_id for place in sure})
        try:
            hold(await self._store.sizes.replies(completion_ids, None) if sure else 0)
        except TooLarge:
            return {}
        replies = await self._store.items.replies(completion_ids) if sure else {}
        items: dict[str, dict[str, Any]] = {}
        for place in sure:
            reply = replies.get(place.completion_id)
            if reply is not None:
                items[place.id] = dialect.item(
                    place.id, with_text_arguments(as_chat(reply)), place.kind, place.position
                )
        return items

    async def find(self, id: str, scope: Scope) -> PreviousCompletion | None:
        """None where it is not known, or another's."""
        id, *root = _ids(id)
        if START in root:
            return PreviousCompletion(id, [], None, {})
        completion = await self.completion(id, scope) or (await self.completion(root[0], scope) if root else None)
        if completion is None:
            return None
        end = completion.end
        reply = None if end is None or end.reply is None else with_text_arguments(as_chat(end.reply))
        request = loads(completion.new.request) if completion.new.request else {}
        messages = [with_text_arguments(as_chat(m)) for m in completion.new.prompt]
        return PreviousCompletion(completion.new.id, [_stored(m) for m in messages], reply, request)

    async def is_anothers(self, id: str, scope: Scope) -> bool:
        """Tell whether a backend has given this id to a response in the background, and only to other keys' ones."""
        places = [place for place in await self._store.items.places([id]) if place.kind == RESPONSE]
        return bool(places) and not any(scope.covers(place.requester) for place in places)

    async def as_answered(self, parsed: ParsedRequest, scope: Scope) -> list[dict[str, Any]]:
        """The messages of a command; where it follows a named answer, with those that this was the answer to.

        Instructions are not carried over from one request to the next, so the two can differ.
        """
        answer = None if parsed.previous is None else await self.find(parsed.previous, scope)
        if answer is None or answer.reply is None or len(parsed.messages) < 2:
            return parsed.messages
        if self._redactor.message(canonical(parsed.messages[-2])) != canonical(answer.reply):
            return parsed.messages
        return [*answer.messages, answer.reply, parsed.messages[-1]]

    async def completion(self, id: str, scope: Scope) -> Completion | None:
        completion = await self._store.completions.get(unwrap_id(id))
        return completion if completion is not None and scope.covers(completion.new) else None

    @staticmethod
    def local_id(dialect: Dialect, parsed: ParsedRequest) -> str:
        """The id of a local answer; a next request may go on from it where it stands for all that was said.

        `asked` is the request as it came, before anything was spelled out.
        """
        is_single = sum(message.get("role") != "system" for message in parsed.messages) == 1
        if not (dialect.goes_on and is_single):
            return new_id()
        root = START if parsed.previous is None else parsed.previous.partition(_OURS)[0]
        return f"{root}.{new_id()}"


def _ids(name: str) -> list[str]:
    """The ids that a name may have in the store: its own, then that of the answer before a local one."""
    id = unwrap_id(name)
    root = id.partition(_OURS)[0]
    return [id] if root == id else [id, root]


def _only(places: list[ItemPlace], session: str | None) -> ItemPlace | None:
    """The one that is meant: some servers count their items from one after each start."""
    if len(places) > 1 and session is not None:
        places = [place for place in places if place.session == session]
    return places[0] if len(places) == 1 else None


def marked(messages: list[dict[str, Any]], originals: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages of a request that is spelled out, with a mark on those of a person that it did not send. Its own,
    `originals`, are the last ones. No stored one was a command, also where it reads like one now that its parts are
    joined.
    """
    new = sum(message.get("role") == "user" for message in originals)
    places = [index for index, message in enumerate(messages) if message.get("role") == "user"]
    old = set(places[: len(places) - new])
    return [_stored(message) if index in old else message for index, message in enumerate(messages)]


def unmarked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write items as backends take them."""
    return [{k: v for k, v in message.items() if k != STORED} for message in messages]


def _stored(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, STORED: "yes"}


def with_text_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """The tree keeps the arguments of tool calls as values; on the wire they are text."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_with_text(call) for call in calls]}


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments or {}).decode()
    return {**call, "function": {**function, "arguments": text}}
