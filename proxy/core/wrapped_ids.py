"""Our ids as LiteLLM hands them out: inside one of its own, which it takes apart again only on its own way to us.

Owns that format, of `ResponsesAPIRequestUtils._build_responses_api_response_id` in litellm 1.106.2. Nobody reaches more
by it: what is inside could have been sent as it is.
"""

from __future__ import annotations

import base64
import re
from typing import Final

LONGEST: Final = 2000  # characters of an id; a router's names are in it, and a gateway before a gateway wraps twice
_BEGINS: Final = "resp_"
_INSIDE: Final = re.compile(rb"litellm:custom_llm_provider:[^;]*;model_id:[^;]*;response_id:([^;]+)")


def unwrap_id(id: str) -> str:
    """The id inside; this one itself where it is not such a wrapping."""
    while id.startswith(_BEGINS) and len(id) <= LONGEST:
        try:
            inside = _INSIDE.fullmatch(base64.b64decode(id.removeprefix(_BEGINS), validate=True))
            if inside is None:
                return id
            id = inside[1].decode()
        except ValueError:
            return id
    return id
