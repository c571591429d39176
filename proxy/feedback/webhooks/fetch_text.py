"""One GET at a platform's API, for the text of a message.

Owns its bounds, and that the log says what went wrong. Each platform's module has the address and the member
(`text_source`). Telegram and WhatsApp have none: there, whoever posts a message links it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiohttp
import structlog

from proxy.core.errors import BackendBroke
from proxy.core.json_edit import loads
from proxy.core.upstream import body_of
from proxy.feedback.webhooks.base import PlatformEvent

log = structlog.get_logger()

TIMEOUT: Final = aiohttp.ClientTimeout(total=1.0)  # Slack wants its answer in three seconds, all in all
MOST_BYTES: Final = 1 << 20  # of an answer with one message
TextOf = Callable[[PlatformEvent], Awaitable[str | None]]


async def get_json(http: aiohttp.ClientSession, url: str, query: dict[str, str], headers: dict[str, str]) -> Any:
    """The JSON there; None where there is no good answer, which the log says."""
    headers |= {"accept-encoding": "identity"}  # this session leaves what it gets packed
    try:
        async with http.get(url, params=query, headers=headers, timeout=TIMEOUT) as response:
            if response.status == 200:
                return loads(await body_of(response, MOST_BYTES))
            log.warning("a message was not given", url=url, status=response.status)
    except (aiohttp.ClientError, TimeoutError, ValueError, BackendBroke) as error:
        log.warning("a message was not given", url=url, error=repr(error))
    return None
