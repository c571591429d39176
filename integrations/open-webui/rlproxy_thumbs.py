"""
title: rlproxy thumbs
description: 👍 and 👎 under each answer rate it in rlproxy.
version: 0.1.0
required_open_webui_version: 0.12.4
license: MIT
"""

from __future__ import annotations

from typing import Any

import aiohttp
from pydantic import BaseModel, Field


def _icon(path: str) -> str:
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 24 24' fill='none' stroke='gray' stroke-width='2'>{path}"
    )
    return "data:image/svg+xml;utf8," + (svg + "</svg>").replace("#", "%23")


_HAND = "M7 10v11H3V10h4zm0 0 5-8c2 0 3 1 3 3l-1 4h6c1 0 2 1 2 2l-2 8c0 1-1 2-2 2H7"


class Action:
    actions = [  # noqa: RUF012 - Open WebUI reads it as it is
        {"id": "good", "name": "Good (rlproxy)", "icon_url": _icon(f"<path d='{_HAND}'/>")},
        {
            "id": "bad",
            "name": "Bad (rlproxy)",
            "icon_url": _icon(f"<path transform='rotate(180 12 12)' d='{_HAND}'/>"),
        },
    ]

    class Valves(BaseModel):
        url: str = Field("http://127.0.0.1:8484", description="Where rlproxy is; in a container the host's name.")
        api_key: str = Field("", description="server.api_key of rlproxy, if it has one.")

    def __init__(self) -> None:
        self.valves = self.Valves()

    async def action(self, body: dict[str, Any], __user__: dict[str, Any], __id__: str, __event_emitter__: Any) -> None:
        """Raises nothing: what went wrong is shown to the person."""
        try:
            said, kind = await self._rate(body, __user__, __id__), "success"
        except (aiohttp.ClientError, LookupError, TimeoutError) as error:
            said, kind = f"Not rated: {error}", "error"
        await __event_emitter__({"type": "notification", "data": {"type": kind, "content": said}})

    async def _rate(self, body: dict[str, Any], user: dict[str, Any], rating: str) -> str:
        headers = {"authorization": f"Bearer {self.valves.api_key}"} if self.valves.api_key else {}
        timeout = aiohttp.ClientTimeout(total=15)
        async with aiohttp.ClientSession(self.valves.url, headers=headers, timeout=timeout) as http:
            given = {
                "completion_id": await self._completion(http, body), "rating": rating,
                "rater": user["email"], "source": "open-webui",
            }  # fmt: skip
            async with http.post("/v1/feedback", json=given) as response:
                answer = await response.json()
                if response.status not in (200, 201):
                    raise LookupError(answer["error"]["message"])
        return f"Rated {rating}."

    async def _completion(self, http: aiohttp.ClientSession, body: dict[str, Any]) -> str:
        """The answer of this chat that reads as the message does. Raises LookupError."""
        message = next(one for one in body["messages"] if one["id"] == body["id"])
        wanted = _letters(message["content"])
        async with http.get("/rl/completions", params={"session": body["chat_id"], "limit": "200"}) as response:
            answer = await response.json()
            if response.status != 200:
                raise LookupError(answer["error"]["message"])
        for row in answer["data"]:  # newest first
            if row["turn"] == "main" and _letters(row["text"]) == wanted:
                return str(row["id"])
        raise LookupError(
            "rlproxy knows no such answer in this chat; was Open WebUI started with ENABLE_FORWARD_USER_INFO_HEADERS?"
        )


def _letters(text: str) -> str:
    """Open WebUI puts reasoning into the message, and tidies the rest: only letters and digits count."""
    for begin, end in (('<details type="reasoning"', "</details>"), ("<think>", "</think>")):
        text = _without(text, begin, end)
    return "".join(c for c in text.casefold() if c.isalnum())


def _without(text: str, begin: str, end: str) -> str:
    """Without what is between these, and them; one pass, whatever the model wrote."""
    kept, at = [], 0
    while (start := text.find(begin, at)) >= 0 and (stop := text.find(end, start)) >= 0:
        kept.append(text[at:start])
        at = stop + len(end)
    return "".join(kept) + text[at:]
