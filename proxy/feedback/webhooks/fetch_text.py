"""The text of a message on a platform, asked for at its API with a bot token.

Owns two GETs, Slack's and Discord's. Telegram and WhatsApp have none: there, whoever posts a message links it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiohttp
import structlog

from proxy.core.errors import BackendBroke
from proxy.core.json_edit import loads
from proxy.core.upstream import body_of
from proxy.feedback.webhooks.base import PlatformEvent, text_at, value_at

log = structlog.get_logger()

TIMEOUT: Final = aiohttp.ClientTimeout(total=1.0)  # Slack wants its answer in three seconds, all in all
MOST_BYTES: Final = 1 << 20  # of an answer with one message
TextOf = Callable[[PlatformEvent], Awaitable[str | None]]


def slack(http: aiohttp.ClientSession, api: str, token: str) -> TextOf:
    """`conversations.history`; for a message in a thread, which is not in it, `conversations.replies`."""

    async def text_of(event: PlatformEvent) -> str | None:
        query = {"channel": event.channel, "latest": event.message_id or "", "inclusive": "true", "limit": "1"}
        for method, extra in (("history", {}), ("replies", {"ts": event.message_id or ""})):
            url = f"{api}/conversations.{method}"
            body = await _get(http, url, {**query, **extra}, {"authorization": f"Bearer {token}"})
            if isinstance(body, dict) and body.get("ok") is not True:
                log.warning("Slack did not give a message", method=method, error=body.get("error"))
            messages = value_at(body, "messages")
            for message in messages if isinstance(messages, list) else []:
                if value_at(message, "ts") == event.message_id:
                    return text_at(message, "text")
        return None

    return text_of


def discord(http: aiohttp.ClientSession, api: str, token: str) -> TextOf:
    async def text_of(event: PlatformEvent) -> str | None:
        if not (event.channel.isdecimal() and (event.message_id or "").isdecimal()):
            return None  # they become part of a path
        url = f"{api}/channels/{event.channel}/messages/{event.message_id}"
        return text_at(await _get(http, url, {}, {"authorization": f"Bot {token}"}), "content")

    return text_of


async def _get(http: aiohttp.ClientSession, url: str, query: dict[str, str], headers: dict[str, str]) -> Any:
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
