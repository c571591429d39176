"""The speaker of a request: the session and the people that it names, by headers, path and body.

Owns the headers and members in which agents and gateways name them. What a key may do with a name is `keys`'.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from proxy.core.errors import BadRequest
from store.learning.rater_quota import OWNER

_NAME: Final = re.compile(r"[\x21-\x7e]{1,200}")
# A byte of a header that is not UTF-8 comes as half of a character, which no store takes.
_THEIRS: Final = re.compile(r"[^\x00-\x20\x7f\ud800-\udfff][^\x00-\x1f\x7f\ud800-\udfff]{0,199}")
_CLAUDE_CODE: Final = re.compile(r"user_[0-9a-f]{64}_account_[0-9a-f-]{0,36}_session_([0-9a-f-]{36})")
# Headers in which agents name their conversation: Claude Code, Codex, opencode, Open WebUI; and their user.
_SESSION_HEADERS: Final = (
    "x-claude-code-session-id", "session-id", "session_id", "x-session-id", "x-openwebui-chat-id",
)  # fmt: skip
_OF_EPISODES: Final = ("x-rl-session", "x-session-id")  # by which harnesses name one
_USER_HEADERS: Final = ("x-openwebui-user-email", "x-openwebui-user-id")
AGENT_HEADERS: Final = (*_SESSION_HEADERS, *_USER_HEADERS)


class BodyIdentity(NamedTuple):
    """Session and user as a body names them; and all that stands where a user is named, be it a name or not."""

    session: str | None
    user: str | None
    people: tuple[Any, ...] = ()


_NAMING: Final = frozenset(
    ("metadata", "client_metadata", "session_id", "user", "safety_identifier", "prompt_cache_key")
)
_UNNAMED: Final = BodyIdentity(None, None)


def body_identity(body: Mapping[str, Any], *, claude_code: bool = False) -> BodyIdentity:
    """Read the speaker from the body; for every dialect. What is not a name is passed over: it is the agent's.

    Claude Code puts its session into `metadata.user_id` (`user_…_session_<uuid>`, later a JSON object). The rest of
    that is a machine, not a person, so no user comes of it. Only in its requests, and exactly in its form. With any
    other client it may be a person's name, and whom a request names is not an admin.
    """
    if _NAMING.isdisjoint(body):  # as most
        return _UNNAMED
    metadata, client = _within(body, "metadata"), _within(body, "client_metadata")  # the latter is Codex's
    user_id = metadata.get("user_id")
    session, user = _packed(user_id) if claude_code else (None, user_id)
    session_members = (body.get("session_id"), metadata.get("session_id"), client.get("session_id"))
    sessions = (*session_members, session, metadata.get("chat_id"))
    users = (body.get("user"), user, body.get("safety_identifier"))
    return BodyIdentity(
        next((s for s in (*sessions, body.get("prompt_cache_key")) if s is not None and _is_name(s)), None),
        next((u for u in users if u is not None and _is_person(u)), None),
        tuple(u for u in users if u is not None),
    )


def _within(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = body.get(key)
    return value if isinstance(value, Mapping) else {}


def _packed(user_id: Any) -> tuple[str | None, Any]:
    """Session and user out of `metadata.user_id`."""
    if not isinstance(user_id, str):
        return None, user_id
    if user_id.startswith("{"):
        with contextlib.suppress(orjson.JSONDecodeError):
            parsed = orjson.loads(user_id)
            if isinstance(parsed.get("device_id"), str) and _is_name(session := parsed.get("session_id")):
                return session, None
    if (match := _CLAUDE_CODE.fullmatch(user_id)) is not None:
        return match[1], None
    return None, user_id


class HeadIdentity(NamedTuple):
    """The people and the session that a request's path and headers name."""

    session: str | None = None  # by rlproxy's own header, or by the path
    of_agent: str | None = None  # by a header of its agent's
    user: str | None = None  # by rlproxy's own header
    users: tuple[str, ...] = ()  # by headers of gateways
    people: tuple[str, ...] = ()  # all that stands where a user is named, be it a name or not
    may_begin_episode: bool = False  # its session is named as a harness names one, not as a person's own agent does


def head_identity(headers: Mapping[str, str], path_session: str | None = None) -> HeadIdentity:
    """Raises BadRequest where one of rlproxy's own headers holds no name."""
    gateways = [headers[name] for name in _USER_HEADERS if name in headers]
    return HeadIdentity(
        name_in(headers, "x-rl-session") or path_session,
        next((headers[name] for name in _SESSION_HEADERS if _is_name(headers.get(name))), None),
        user_in(headers),
        tuple(value for value in gateways if _is_person(value)),
        tuple(value for name, value in headers.items() if name.lower() in ("x-rl-user", *_USER_HEADERS)),
        path_session is not None or any(name in headers for name in _OF_EPISODES),
    )


class RequestIdentity(NamedTuple):
    """Tell whose request this is, and list everybody that it names, each once. A value that is there and is not a
    name names somebody too. A gateway that fills it in has a person behind it, whatever they are called."""

    session: str | None
    user: str | None
    people: tuple[str, ...] = ()


_NOBODY: Final = RequestIdentity(None, None)


def identity_of(head: HeadIdentity, body: BodyIdentity, typed: Sequence[Any] = ()) -> RequestIdentity:
    """Session and user: our headers first, then the path, then body and headers of the agent's own. Of users the
    header before the body: a gateway adds it, and passes on a body that it did not write. `typed`: whom the newest
    message names."""
    session = head.session or body.session or head.of_agent
    if not (head.people or body.people or typed):  # as most
        return _NOBODY if session is None else RequestIdentity(session, None)
    person_names = (
        *head.users,
        *(candidate for candidate in (body.user, *typed) if candidate is not None and _is_person(candidate)),
    )
    people = dict.fromkeys([*head.people, *map(str, body.people), *map(str, typed)])
    return RequestIdentity(session, head.user or next(iter(person_names), None), tuple(people))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _THEIRS.fullmatch(value) is not None


def _is_person(value: Any) -> bool:
    """Nobody is the owner because a request calls them so."""
    return _is_name(value) and value != OWNER


def name_in(headers: Mapping[str, str], header: str) -> str | None:
    """Raises BadRequest where it is there and is not a name: an empty one would else count as nobody, or the owner.
    That it does not come twice is the guard's to see."""
    value = headers.get(header)
    if value is not None and not _NAME.fullmatch(value):
        raise BadRequest(f"The header `{header}` must be 1 to 200 printable ASCII characters.", param=header)
    return value


def user_in(headers: Mapping[str, str]) -> str | None:
    """Read the speaker from rlproxy's own header. Raises BadRequest where that is not a name, or the owner's, whom no
    share bounds."""
    value = name_in(headers, "x-rl-user")
    if value == OWNER:
        raise BadRequest(
            f"`x-rl-user` may not be `{OWNER}`, which is whoever runs this rlproxy; nothing was done. The owner sends "
            "no such header, and anybody else another name.",
            param="x-rl-user",
        )
    return value
