"""A browser without a screen: it asks for rlproxy's pages as a person's browser does."""

from __future__ import annotations

import json
import re
from typing import Any

import aiohttp


class Visit:
    """One browser without a screen: it keeps its cookie and sends the token of the last page it saw."""

    def __init__(self, url: str) -> None:
        self.http = aiohttp.ClientSession(base_url=url, cookie_jar=aiohttp.CookieJar(unsafe=True))
        self.token = ""
        self.told = ""  # what the page says after an act

    async def get(self, path: str, status: int = 200, **more: Any) -> str:
        async with self.http.get(path, **more) as response:
            text = await response.text()
            assert response.status == status, text
            if found := re.search(r'x-rl-token": "([^"]+)"', text) or re.search(r'name="token" value="([^"]+)"', text):
                self.token = found[1]
            return text

    async def post(self, path: str, status: int = 200, **form: Any) -> str:
        headers = {"x-rl-token": self.token, "hx-request": "true"}
        async with self.http.post(path, data=form, headers=headers, allow_redirects=False) as response:
            text = await response.text()
            assert response.status == status, text
            self.told = json.loads(response.headers.get("hx-trigger-after-settle", "{}")).get("told", "")
            return response.headers.get("location") or text
