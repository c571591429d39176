"""Data: taking it away, forgetting it, and how long it is kept.

Owns the view and its confirmations: what would go is shown before it goes. Lessons are here too: they are in prompts.
Not here: forgetting itself (forgetting), what may be said of a lesson (lesson_routes), letting old things go
(retention).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aiohttp import web

from proxy.access.security import actor_of, require_admin
from proxy.core.errors import BadRequest
from proxy.web.forgetting import TARGETS, ForgetRequest, Forgetter, target
from proxy.web.lesson_routes import LessonRoutes
from proxy.web.pages.view import View, html
from proxy.web.retention import Retention, days_of
from store.store import Store


class DataPage:
    def __init__(
        self, view: View, store: Store, forgetter: Forgetter, retention: Retention, home: Path, lessons: LessonRoutes
    ) -> None:
        self._view = view
        self._store = store
        self._forgetter = forgetter
        self._retention = retention
        self._home = home
        self._lessons = lessons

    async def page(self, request: web.Request) -> web.Response:
        chosen = next(((kind, request.query[kind]) for kind in TARGETS if request.query.get(kind)), ("session", ""))
        return self._view.page(
            request,
            "data.html",
            counts=await self._store.stats.counts(),
            retention=self._retention,
            lessons=await self._store.lessons.all(),
            taught=self._lessons.enabled,
            home=self._home,
            kind=chosen[0],
            name=chosen[1],
            log=[line for line in await self._store.meta.audit_log(limit=200) if line["act"] == "forget"][:10],
        )

    async def forget(self, request: web.Request) -> web.Response:
        """First what would go; said again with `sure`, it goes."""
        require_admin(request)
        form = await request.post()
        kind, name = target({str(form.get("kind") or ""): str(form.get("name") or "").strip()})
        if form.get("sure"):
            if form["sure"] != "yes":
                raise BadRequest("Nothing was forgotten.")
            forget_request = ForgetRequest(
                kind, name, retrain=form.get("retrain") == "yes", purge=form.get("purge") == "yes"
            )
            count = await self._forgetter.forget(forget_request, actor_of(request))
        else:
            count = await self._forgetter.look(kind, name)
        return html(
            self._view.render(
                request,
                "forget.html",
                forgetting=count.forgetting,
                copies=count.copies,
                purged=count.purged,
                rebuild=count.rebuild,
                kind=kind,
                name=name,
                forgotten=bool(form.get("sure")),
            )
        )

    async def lesson(self, request: web.Request) -> web.Response:
        """Other words, or an end; the card anew."""
        require_admin(request)
        form = await request.post()
        changes: dict[str, Any] = {"active": form.get("act") != "remove"}
        if form.get("act") == "save":
            changes |= {"text": str(form.get("text") or ""), "always": form.get("always") == "yes"}
        await self._lessons.change(request.match_info["id"], changes, actor_of(request))
        lessons = await self._store.lessons.all()
        return html(self._view.render(request, "lessons.html", lessons=lessons, taught=self._lessons.enabled))

    async def retain(self, request: web.Request) -> web.Response:
        """For how long, with `back` as the settings say. First what would go at once; said with `sure`, it is so."""
        require_admin(request)
        form = await request.post()
        days = None if form.get("back") else days_of(str(form.get("days") or ""))
        kept_days = self._retention.of_settings if days is None else days
        if sure := form.get("sure") == "yes":
            await self._retention.choose(days, actor_of(request))
        going = 0 if sure else await self._retention.would_go(kept_days)
        return html(
            self._view.render(request, "retain.html", days=kept_days, back=days is None, going=going, sure=sure)
        )
