"""A list of models, and one of them, as Anthropic's API has them.

Owns these shapes and the pages. What such a server does not tell, as who may use a model, is left out.
Source: the types of Anthropic's own SDK, 2.14.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from proxy.core.errors import BadRequest

ANTHROPIC: Final = "anthropic-version"  # the header by which its clients are known
PAGE: Final = 20  # models where the client names no number
LONGEST: Final = 1000
_WINDOWS: Final = ("max_model_len", "context_length", "max_context_length", "n_ctx", "n_ctx_train")


def anthropic_model(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of OpenAI's list. A moment that nobody tells is the epoch, as Anthropic says it."""
    created = entry.get("created")
    moment = datetime.fromtimestamp(created if isinstance(created, int) and 0 < created < 1 << 32 else 0, UTC)
    name = str(entry.get("id"))
    model = {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": moment.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
    }
    window = context_window(entry)
    return model if window is None else {**model, "max_input_tokens": window}


def anthropic_page(entries: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """So many models after one, or before one. Raises BadRequest."""
    models = [anthropic_model(entry) for entry in entries]
    limit = query.get("limit", str(PAGE))
    if not limit.isdecimal() or len(limit) > 4 or not 1 <= int(limit) <= LONGEST:
        raise BadRequest(f"`limit` must be a number from 1 to {LONGEST}.", param="limit")
    size = int(limit)
    if "before_id" in query:
        models = models[: _position(models, query, "before_id")]
        page = models[-size:]
    else:
        models = models[_position(models, query, "after_id") + 1 :] if "after_id" in query else models
        page = models[:size]
    has_more = len(models) > size
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return {"data": page, "has_more": has_more, "first_id": first, "last_id": last}


def context_window(entry: Mapping[str, Any]) -> int | None:
    """How many tokens the model takes, where the server tells."""
    meta = entry.get("meta")
    members = {**(meta if isinstance(meta, Mapping) else {}), **entry}
    return next((members[name] for name in _WINDOWS if type(members.get(name)) is int), None)


def _position(models: Sequence[Mapping[str, Any]], query: Mapping[str, str], param: str) -> int:
    """Raises BadRequest."""
    id = query[param]
    position = next((position for position, model in enumerate(models) if model["id"] == id), None)
    if position is None:
        raise BadRequest(f"`{param}` names {id[:100]!r}, which is not in the list of models.", param=param)
    return position
