"""A model that the backend does not have, said with what it has instead.

Owns that sentence, and that it is said only of a model that is really not in the backend's list. Whatever else it
answers with 404 is its own word. Not here: how an error looks in a format (dialects).
"""

from __future__ import annotations

from typing import Final

from proxy.backends.base import Backend
from proxy.core.errors import ProxyError, UnknownModel

MOST_NAMES: Final = 6


async def unknown_model(backend: Backend, url: str, model: str, message: str) -> UnknownModel | None:
    """None where the backend has it, or tells no list. `message` is its own answer."""
    try:
        names = [str(model["id"]) for model in await backend.models() if not model.get("parent")]
    except (ProxyError, KeyError, TypeError, AttributeError):
        return None
    if not model or not names or {model, f"{model}:latest"} & set(names):
        return None
    get = f"load it there (`ollama pull {model}`), or " if backend.kind == "ollama" else ""
    has = ", ".join(names[:MOST_NAMES]) + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")
    return UnknownModel(
        f"The backend at {url} has no model {model!r}: {get}ask for one that it has ({has}; GET /v1/models "
        f"lists them). It says: {message}",
        param="model",
    )
