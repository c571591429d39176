"""How long what nobody rated is kept: the days of the settings, or those that an admin set on the page.

Owns that choice, which lives in the store and wins over the settings until it is taken back. Its task lets old things
go: completions, calibration in run folders, copies that the store made of itself. Nothing goes while the database's
integrity is in doubt. Not here: which completions go (store.captured.completions).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from config.settings import Row, Settings
from proxy.checks import answers
from proxy.core.errors import BadRequest
from proxy.training import run_folder
from proxy.web.expiry_clock import Calendar
from store.copies import backup
from store.errors import StoreError
from store.file import driver, meta, schema
from store.store import Store

log = structlog.get_logger()

KEY: Final = "store.retention_days"  # the setting
META: Final = "retention_days"  # what is kept in the store instead
EVERY_S: Final = 600.0
DAY_S: Final = 86400
LONGEST: Final = 36500.0


class ChosenRetention(NamedTuple):
    """The days that a person set."""

    days: float
    by: str
    at: float


class Retention:
    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._home = settings.home
        self._changed = asyncio.Event()
        self.of_settings = settings.store.retention_days
        self.chosen: ChosenRetention | None = None
        self._calendar = Calendar(self.of_settings * DAY_S)

    @property
    def days(self) -> float:
        return self.chosen.days if self.chosen else self.of_settings

    async def start(self) -> None:
        stored = await self._store.meta.get(META)
        self.chosen = _chosen(stored)

    async def would_go(self, days: float) -> int:
        """How many completions would go at once."""
        return await self._store.completions.expiring(time.time() - days * DAY_S)

    async def choose(self, days: float | None, by: str) -> None:
        """From now on these days; None: those of the settings again."""
        previous_days = self.days
        chosen = None if days is None else ChosenRetention(days, by, time.time())
        now = self.of_settings if days is None else days
        detail = {"days": now, "before": previous_days, "from": "settings" if days is None else "page"}
        await asyncio.gather(  # queued together, committed together
            self._store.meta.set(META, chosen and chosen._asdict()), self._store.meta.audit(by, "retention", detail)
        )
        self.chosen = chosen
        self._changed.set()

    async def run(self) -> None:
        await self._store.checked()
        while True:
            self._changed.clear()
            try:
                if self._store.integrity.doubt is None:  # a backup may be all that is left of a damaged database
                    await self._expire()
            except StoreError as error:
                log.error("unrated completions could not be expired", error=str(error))
            try:
                async with asyncio.timeout(EVERY_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _expire(self) -> None:
        self._calendar.hold_s = self.days * DAY_S
        limit = self._calendar.now() - self.days * DAY_S
        expired_count = await self._store.completions.expire(limit)
        needed = {Path(run.folder).name for run in await self._store.runs.unfinished()}
        await asyncio.to_thread(run_folder.expire, self._home / "runs", limit, needed)
        await asyncio.to_thread(backup.expire, self._home, limit)
        await asyncio.to_thread(answers.expire, self._home, limit)
        if expired_count:
            log.info("unrated completions expired", completions=expired_count)


def days_of(text: str) -> float:
    """Raises BadRequest."""
    try:
        days = float(text)
    except ValueError:
        days = math.nan
    if not 0 < days <= LONGEST:
        raise BadRequest(f"Say for how many days: a number above 0 and at most {LONGEST:g}.", param="days")
    return days


def as_it_is(rows: Sequence[Row], home: Path) -> list[Row]:
    """The settings as rows, with the days that hold where the store has others; also while rlproxy runs."""
    file = home / schema.NAME
    if not file.exists():
        return list(rows)
    if any(row.key == "store.key_from" and row.source != "default" for row in rows):  # nobody is asked for it here
        unknown = "{}; the database is encrypted, and the page may have set another"
        return [row._replace(source=unknown.format(row.source)) if row.key == KEY else row for row in rows]
    stored = _read_stored(file)
    if stored is None:
        return list(rows)
    source = "set on the page by {}, over {}"
    return [
        row._replace(value=str(stored.days), source=source.format(stored.by, row.source)) if row.key == KEY else row
        for row in rows
    ]


def _read_stored(file: Path) -> ChosenRetention | None:
    try:
        with closing(driver.connect(file, None, read_only=True, with_names=True)) as db:
            schema.check(db, file)
            stored: Any = meta.read_meta(db, META, None)
    except driver.errors() as error:
        raise StoreError(f"{file} could not be read ({error}), so what was set on the page is not known.") from error
    return _chosen(stored)


def _chosen(stored: Any) -> ChosenRetention | None:
    return ChosenRetention(stored["days"], stored["by"], stored["at"]) if stored else None
