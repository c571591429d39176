"""Stylesheets, scripts and the icon: read once, sent from memory, and asked for by what is in them.

Owns `/static/`. An address with the mark of the file's content may be kept for ever: a page that was open before paints
without asking. The page of an update has another mark in it. Not here: what the files do.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final, NamedTuple

from aiohttp import web

FOLDER: Final = Path(__file__).parent / "static"
_KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_IMMUTABLE: Final = "public, max-age=31536000, immutable"


class Asset(NamedTuple):
    body: bytes
    kind: str
    mark: str


class Assets:
    def __init__(self) -> None:
        self._assets = {file.name: _read(file) for file in FOLDER.iterdir() if file.suffix in _KINDS}

    def address(self, name: str) -> str:
        """For templates."""
        return f"/static/{name}?v={self._assets[name].mark}"

    async def get(self, request: web.Request) -> web.StreamResponse:
        asset = self._assets.get(request.match_info["name"])
        if asset is None:
            raise web.HTTPNotFound
        cache_control = _IMMUTABLE if request.query.get("v") == asset.mark else "no-cache"
        headers = {"cache-control": cache_control, "x-content-type-options": "nosniff"}
        return web.Response(body=asset.body, content_type=asset.kind, charset="utf-8", headers=headers)


def _read(file: Path) -> Asset:
    body = file.read_bytes()
    return Asset(body, _KINDS[file.suffix], hashlib.sha256(body).hexdigest()[:12])
