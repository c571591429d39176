"""Data: taking it away, forgetting it, and how long it is kept.

Owns the view and its confirmation: what would go is shown before it goes. Not here: forgetting itself (forgetting).
"""

from __future__ import annotations

from aiohttp import web

from config.settings import Settings
from proxy.errors import BadRequest
from proxy.forgetting import TARGETS, Asked, Forgetter, target
from proxy.pages.view import VISITOR, View, html
from proxy.security import require_admin
from store.store import Store


class DataPage:
    def __init__(self, view: View, store: Store, forgetter: Forgetter, settings: Settings) -> None:
        self._view = view
        self._store = store
        self._forgetter = forgetter
        self._settings = settings

    async def page(self, request: web.Request) -> web.Response:
        chosen = next(((kind, request.query[kind]) for kind in TARGETS if request.query.get(kind)), ("session", ""))
        return self._view.page(
            request,
            "data.html",
            counts=await self._store.counts(),
            retention=self._settings.store.retention_days,
            home=self._settings.home,
            kind=chosen[0],
            name=chosen[1],
            log=[line for line in await self._store.audit_log(limit=200) if line["act"] == "forget"][:10],
        )

    async def forget(self, request: web.Request) -> web.Response:
        """First what would go; said again with `sure`, it goes."""
        require_admin(request)
        form = await request.post()
        kind, name = target({str(form.get("kind") or ""): str(form.get("name") or "").strip()})
        if form.get("sure"):
            if form["sure"] != "yes":
                raise BadRequest("Nothing was forgotten.")
            asked = Asked(kind, name, retrain=form.get("retrain") == "yes", purge=form.get("purge") == "yes")
            gone = await self._forgetter.forget(asked, request[VISITOR].name)
        else:
            gone = await self._forgetter.look(kind, name)
        return html(
            self._view.render(
                request,
                "forget.html",
                found=gone.found,
                copies=gone.copies,
                purged=gone.purged,
                rebuild=gone.rebuild,
                kind=kind,
                name=name,
                gone=bool(form.get("sure")),
            )
        )
