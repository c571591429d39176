"""The store as the rest of rlproxy sees it: one object, awaited.

Owns nothing but the parts: what each call does is in the module of its noun (completions, ratings, learning,
runs, ledger, export). What a call writes is on disk when it returns; what it reads includes every write
awaited before.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from store import driver, schema
from store.captured import completions, export, imports, inbox, items, recent_answers, stats, tree
from store.errors import StoreError
from store.learning import keys, meta, opinion, ratings, reactions, runs, samples, unlearning
from store.learning.episode_groups import EpisodeGroupStore
from store.learning.episodes import EpisodeStore
from store.lock import Lock
from store.reader import Reader
from store.records import (
    Adapter,
    Asker,
    Candidate,
    Completion,
    Day,
    FinishedCompletion,
    Forgetting,
    Fresh,
    GoesOn,
    Inbox,
    Key,
    Lately,
    Link,
    Listed,
    Message,
    Moments,
    NewCompletion,
    NewRating,
    NewReaction,
    Pointer,
    Rating,
    Reacted,
    Rebuild,
    Run,
    Sample,
    SentBack,
    Target,
    Turn,
    Verdicts,
    Vote,
    Wanted,
)
from store.safety import backup, backup_scan, conversion, integrity, run_keys, tombstones, torn_log
from store.safety import forget as forgetting
from store.safety.db_key import Secret
from store.safety.integrity import Integrity
from store.safety.page_gaps import Gaps
from store.writer import Writer

COUNTS = """SELECT
(SELECT count(*) FROM completions c WHERE c.status = 'pending') AS pending,
(SELECT count(*) FROM completions c WHERE c.status = 'done') AS done,
(SELECT count(*) FROM completions c WHERE c.status = 'partial') AS partial,
(SELECT count(*) FROM completions c WHERE c.status = 'error') AS error,
(SELECT count(*) FROM ratings r WHERE r.live = 1 AND r.value > 0) AS good,
(SELECT count(*) FROM ratings r WHERE r.live = 1 AND r.value < 0) AS bad,
(SELECT count(*) FROM completions c WHERE c.status = 'done' AND c.created_at >= ?) AS captured_today"""


class Store:
    def __init__(
        self, home: Path, lock: Lock, integrity: Integrity, writer: Writer, reader: Reader, secret: Secret | None
    ) -> None:
        self._home = home
        self.encrypted = secret is not None
        self.integrity = integrity
        self._secret = secret  # as it was given: each copy has a salt of its own
        self._lock = lock
        self._writer = writer
        self._reader = reader
        self.episodes = EpisodeStore(reader, writer)
        self.episode_groups = EpisodeGroupStore(reader, writer)
        self._gaps = Gaps(home / schema.NAME)
        self._overwriting = asyncio.Lock()
        self._closed = False
        self._checked, self._damaged = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def changed() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever waited
                loop.call_soon_threadsafe(self._look_at_integrity)

        integrity.listen(changed)

    @classmethod
    async def open(cls, home: Path, secret: Secret | None = None, tell: schema.Tell = lambda said: None) -> Store:
        """Take the home folder, bring its database up to date and end what was left pending.

        After a stop that was not clean the file is checked: one that is small at once, another while it is used.
        With `db_key` the database is encrypted; `tell` is told, in another thread, of what may take long. Raises
        StoreError: also where there is a key and the database is in the clear, or the other way round.
        """
        lock, integrity, connection, salted = await asyncio.to_thread(_take, home, secret, tell)
        writer = Writer(connection, integrity)
        try:
            reader = await Reader.open(home / schema.NAME, salted, integrity)
            return cls(home, lock, integrity, writer, reader, secret)
        except BaseException:
            await writer.stop()
            integrity.close()
            lock.release()
            raise

    async def close(self) -> None:
        """Write what is queued, then let go of the folder."""
        if self._closed:
            return
        self._closed = True
        if self.integrity.state == "sound":
            with contextlib.suppress(StoreError):  # no space for the flag: the next start checks the file
                await self._writer.submit(lambda db: meta.set_meta(db, schema.CLEAN, True))
            self.integrity.close()
            await self._reader.close()
            await self._writer.stop()
        else:  # the last one to close may only read, so that the log stays where it is
            await self._writer.stop()
            await self._reader.close()
            self.integrity.close()
        self._gaps.close()
        self._lock.release()

    def close_at_once(self, within_s: float) -> bool:
        """What is queued is written, nothing else is done; for a process that ends now. Blocks, at most so long; False
        where the disk was slower."""
        return self._writer.end_at_once(within_s)

    @property
    def commits(self) -> int:
        """Transactions committed since the store was opened."""
        return self._writer.commits

    async def room(self) -> None:
        """Returns once the disk has caught up enough for more to be asked of it."""
        await self._writer.room()

    @property
    def waiting(self) -> int:
        """Writes that the disk has not taken yet."""
        return self._writer.waiting

    # The file itself

    async def checked(self) -> bool:
        """Returns once the file is known to be sound, or to be damaged: then False."""
        await self._checked.wait()
        return self.integrity.state == "sound"

    async def damage(self) -> str:
        """Returns once damage was found, with the sentence that says it."""
        await self._damaged.wait()
        return str(self.integrity.refusal)

    def _look_at_integrity(self) -> None:
        if self.integrity.state == "checking":
            return
        self._checked.set()
        if self.integrity.state == "damaged":
            self._damaged.set()
        else:
            self.integrity.close()
            self._writer.wake()  # what the log has goes into the file now

    # Completions

    def begin(self, rows: Sequence[NewCompletion]) -> asyncio.Future[None]:
        """Queue new completions at once. Nobody need await this: a failure comes again from `finish`."""
        future = self._writer.submit(lambda db: completions.begin(db, rows))
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future

    async def finish(self, rows: Sequence[FinishedCompletion]) -> None:
        await self._writer.submit(lambda db: completions.finish(db, rows))

    async def record(self, new: Sequence[NewCompletion], finished: Sequence[FinishedCompletion]) -> None:
        """Begin and finish in one operation."""

        def both(db: sqlite3.Connection) -> None:
            completions.begin(db, new)
            completions.finish(db, finished)

        await self._writer.submit(both)

    async def completion(self, id: str) -> Completion | None:
        return await completions.one(self._reader, id)

    async def completions(
        self,
        *,
        limit: int = 50,
        before_seq: int | None = None,
        session: str | None = None,
        unrated: bool = False,
        version: int | None = None,
        turn: Turn | None = None,
    ) -> list[Completion]:
        """Newest first, in brief: without prompts, replies as messages, requests and tokens. `completion` has them."""
        return await completions.page(
            self._reader,
            limit=limit,
            before_seq=before_seq,
            session=session,
            unrated=unrated,
            version=version,
            turn=turn,
        )

    async def messages(self, hash: bytes) -> tuple[Message, ...]:
        """What was said up to this message, root first, without system texts; empty if it is not known."""
        return await tree.conversation(self._reader, hash)

    async def find_reply(self, sent: SentBack, askers: Sequence[Asker]) -> list[Candidate]:
        """The completion that gave this reply, of one of these askers; several where that is not certain."""
        return await completions.find_reply(self._reader, sent, askers)

    async def newest(self, *, session: str | None = None, user: str | None = None) -> Lately | None:
        """The newest main turn, whatever has become of it."""
        return await recent_answers.newest(self._reader, session=session, user=user)

    async def newest_of(self, askers: Sequence[Asker], *, session: str | None = None) -> Lately | None:
        """The newest main turn of these, whatever has become of it."""
        return await recent_answers.newest_of(self._reader, askers, session)

    async def lately(self, id: str) -> Lately | None:
        """One completion in brief."""
        return (await recent_answers.these(self._reader, [id])).get(id)

    async def all_lately(self, ids: Sequence[str]) -> dict[str, Lately]:
        """Several, those that are there, by their ids."""
        return await recent_answers.these(self._reader, ids)

    async def said_to(
        self, askers: Sequence[Asker], *, limit: int, longest: int, session: str | None = None
    ) -> list[Lately]:
        """What these were answered lately, in a session if given; newest first, texts up to a character beyond
        `longest`."""
        return await recent_answers.of(self._reader, askers, limit, longest, session)

    async def askers_in(self, session: str) -> list[Asker]:
        """All who asked in this session."""
        return await recent_answers.askers(self._reader, session)

    async def main_turns_of(self, askers: Sequence[Asker], *, limit: int) -> list[Lately]:
        """The newest main turns of these, newest first, in brief."""
        return await recent_answers.brief(self._reader, askers, limit)

    async def completions_by_id(self, ids: Sequence[str]) -> list[Completion]:
        """Whole, with their prompts; in the order of `ids`, those that are there."""
        found = await completions.load(self._reader, ids)
        return [found[id] for id in ids if id in found]

    async def places_of_items(self, ids: Sequence[str], keys: Collection[str] | None = None) -> list[items.Place]:
        """Which completions have items that their backend gave these ids, the newest first; of these keys, if given."""
        return await items.places(self._reader, ids, keys)

    async def replies(self, ids: Sequence[str]) -> dict[str, Message]:
        """What these completions answered, those that did."""
        return await items.replies(self._reader, ids)

    async def goes_on_from(self, thread: bytes, askers: Sequence[Asker], longest: int) -> list[GoesOn]:
        """The newest few replies of this thread to these: what a request that repeats one goes on from. Of their first
        system texts the beginnings, so long."""
        return await recent_answers.goes_on_from(self._reader, thread, askers, longest)

    async def pass_over(self, ids: Sequence[str], rule: str) -> None:
        """These were no answers that anybody saw: side turns, by that rule."""
        await self._writer.submit(lambda db: completions.pass_over(db, ids, rule))

    async def unrated(self, *, version: int, limit: int) -> list[Completion]:
        """The newest exact main turns of a version that nobody has rated."""
        return await completions.exact_unrated(self._reader, version, limit)

    async def newest_turns(self, limit: int, *, foreign: bool) -> list[Completion]:
        return await completions.newest_turns(self._reader, limit, foreign=foreign)

    async def expire(self, before: float) -> int:
        """Delete what is older and was never rated; how many completions went."""
        total = 0
        while gone := await self._writer.submit(lambda db: completions.expire(db, before)):
            total += gone
        return total

    async def would_expire(self, before: float) -> int:
        """How many that would be."""
        return await completions.expiring(self._reader, before)

    async def forget(self, ids: Sequence[str]) -> int:
        """Delete the rows of these completions, rated or not, with all that hangs on them."""
        return await self._writer.submit(lambda db: completions.forget(db, ids))

    async def forget_unrated(self, ids: Sequence[str]) -> int:
        """Delete those of these that nobody has ever rated; also such as are only queued to be stored yet."""
        return await self._writer.submit(lambda db: completions.forget_unrated(db, ids))

    def export(self, only: export.Filter | None = None) -> AsyncIterator[dict[str, Any]]:
        return export.export(self._reader, only or export.Filter())

    async def take(self, rows: Sequence[imports.Imported]) -> imports.Taken:
        """Store what of these is new: completions by their ids, ratings by theirs."""
        return await self._writer.submit(lambda db: imports.take(db, rows))

    # Lists

    async def inbox(self, wanted: Wanted) -> Inbox:
        """A page of what ended, newest first, without prompts. A search takes in the newest first that it lacks yet."""
        if wanted.search:
            await self.index_words()
        return await inbox.page(self._reader, wanted)

    async def listed(self, id: str) -> Listed | None:
        return await inbox.one(self._reader, id)

    async def siblings(self, prompt_hash: bytes) -> list[Listed]:
        """The newest answers to the same prompt."""
        return await inbox.siblings(self._reader, prompt_hash)

    async def models(self) -> list[str]:
        """All that answered, by the names they were asked for."""
        return await inbox.models(self._reader)

    async def any_completion(self) -> bool:
        return await inbox.any_at_all(self._reader)

    async def index_words(self) -> int:
        """Make some more completions known to the search, the newest first; how many."""
        if not await inbox.unsearched(self._reader):
            return 0
        return await self._writer.submit(inbox.index)

    async def days(self, since: float, offset: float) -> list[Day]:
        return await stats.days(self._reader, since, offset)

    async def verdicts(self) -> list[Verdicts]:
        return await stats.verdicts(self._reader)

    # Forgetting

    async def would_forget(self, kind: Target, name: str) -> Forgetting:
        return await self._writer.submit(lambda db: forgetting.look(db, kind, name))

    async def copies_with(self, home: Path, kind: Target, name: str) -> backup_scan.Copies:
        """Copies of the database that still have it."""
        return await asyncio.to_thread(backup_scan.looked_through, home, kind, name, self._secret)

    async def forget_for_good(self, kind: Target, name: str, actor: str, *, retrain: bool = False) -> Forgetting:
        """Rows, words of the search and the database's log. Run folders are owed: `owed_to_run_folders`.

        `retrain`: the versions that learned from it are gone, too, and a `rebuild` has begun.
        """
        found = await self._writer.submit(lambda db: forgetting.forget(db, kind, name, actor, retrain=retrain))
        if found.completions:
            first = True
            while await self._writer.submit(lambda db, first=first: inbox.purge(db, first)):  # type: ignore[misc]
                first = False
        await self._writer.empty_log()
        return found

    async def delete(self, id: str) -> bool:
        """A completion's rows; False where there are none. Run folders are owed. Raises InOpenRun."""
        return await self._writer.submit(lambda db: forgetting.delete(db, id))

    async def owed_to_run_folders(self) -> dict[str, list[str]]:
        """Completions and ratings that were forgotten and may still be in files of runs."""
        return dict(await self.get_meta(forgetting.OWED, forgetting.NOTHING))

    async def left_run_folders(self, owed: dict[str, list[str]]) -> bool:
        """These are out of the run folders, too; False where the database's log could not be emptied just now.

        From now on no backup that is restored brings them back.
        """
        gone = [*owed["completions"], *owed["ratings"]]
        await asyncio.to_thread(tombstones.note_forgotten, self._home, gone)
        await self._writer.submit(lambda db: forgetting.paid(db, owed))
        return await self._writer.empty_log()

    async def overwrite_gaps(self) -> bool:
        """Copies that SQLite has left of what was forgotten, once that has gone; whether there was anything to do.

        Raises NotOverwritten where it cannot be done now. It is owed until it is done, also after a kill.
        """
        async with self._overwriting:
            owed = await self.get_meta(forgetting.GAPS)
            if owed is None or self.encrypted:
                return False
            await self._writer.overwrite(self._gaps)
            await self._writer.submit(lambda db: forgetting.overwritten(db, owed))
            return True

    async def rebuild(self) -> Rebuild | None:
        """What takes the place of versions that learned from what was forgotten: the last one, under way or over."""
        return await unlearning.state(self._reader)

    async def left_to_rebuild(self, of: Rebuild, *, live: int, max_version_gap: int, foreign: bool) -> tuple[int, int]:
        """Ratings that were given back and that no run has taken since: that could train, and that are too old."""
        return await unlearning.left(self._reader, of.runs, live, max_version_gap, foreign)

    async def rebuilt(self, line: str) -> None:
        """That is over, and the old versions' files are deleted."""
        await self._writer.submit(lambda db: unlearning.end(db, line))

    # Ratings

    async def rate(self, new: NewRating) -> Rating:
        """Store a rating in place of the rater's live one; an event seen before changes nothing.

        Raises EventTaken where it says something else now."""
        ratings.valid(new)
        return await self._writer.submit(lambda db: ratings.rate(db, new))

    async def retract(self, rating_id: str) -> Rating:
        return await self._writer.submit(lambda db: ratings.retract(db, rating_id))

    async def rating(self, rating_id: str) -> Rating | None:
        return await ratings.one(self._reader, rating_id)

    async def rating_of_event(self, source: str, event_id: str, rater: str | None = None) -> Rating | None:
        return await ratings.of_event(self._reader, source, event_id, rater)

    async def ratings_of_events(
        self, source: str, prefix: str, *, rater: str | None = None, live: bool = False
    ) -> list[Rating]:
        """Those of a source whose events' ids begin so, newest first; with `live` those that count."""
        return await ratings.of_events(self._reader, source, prefix, rater=rater, live=live)

    async def live_rating(self, completion_id: str, rater: str) -> Rating | None:
        return await ratings.live(self._reader, completion_id, rater)

    async def last_rating(self, rater: str, *, session: str | None = None) -> Rating | None:
        return await ratings.last(self._reader, rater, session)

    async def ratings_of(self, completion_id: str) -> list[Rating]:
        """All there ever were, newest first."""
        return await ratings.history(self._reader, completion_id)

    async def votes(
        self,
        version: int,
        share: float = 1.0,
        raters: Mapping[str, float] = samples.NOBODY,
        *,
        alone: bool = False,
    ) -> list[Vote]:
        """What was thought of each rated main turn of a version, oldest first, in whole votes. `share` bounds each
        rater, also one who is alone, unless that is allowed."""
        return await opinion.votes(self._reader, version, share, raters, alone)

    async def moments(self, share: float = 1.0, raters: Mapping[str, float] = samples.NOBODY) -> Moments:
        return await opinion.moments(self._reader, share, raters)

    # Chat platforms

    async def link(self, new: Link, *, whosever: bool = False) -> None:
        """Say what a message shows, anew too; where another key has said it, `whosever` only. Raises LinkTaken."""
        await self._writer.submit(lambda db: reactions.link(db, new, whosever=whosever))

    async def linked(self, platform: str, channel: str, message_id: str) -> Link | None:
        return await reactions.linked(self._reader, platform, channel, message_id)

    async def newest_linked(self, platform: str, channel: str, person: str) -> list[reactions.Newest]:
        """What `/rl` without a message may mean there: the newest linked answer of each key, newest first."""
        return await reactions.newest_linked(self._reader, platform, channel, person)

    async def newest_in(self, session: str) -> list[reactions.Newest]:
        """Likewise of a session's answers."""
        return await reactions.newest_in(self._reader, session)

    async def whose(self, completion_id: str) -> Asker | None:
        """Whose completion this is; None where there is none of that id."""
        return await reactions.whose(self._reader, completion_id)

    async def said(self, sessions: Sequence[str], limit: int) -> list[reactions.Said]:
        """The newest answers in these sessions, without any in all; newest first."""
        return await reactions.said(self._reader, sessions, limit)

    async def react(self, new: NewReaction) -> Reacted:
        """Take a reaction; the rating that follows from it is stored, replaced or retracted with it."""
        return await self._writer.submit(lambda db: reactions.react(db, new))

    async def first_time(self, platform: str, event_id: str) -> bool:
        """Whether this event is new; from now on it is not."""
        return await self._writer.submit(lambda db: reactions.first_time(db, platform, event_id))

    # Learning

    async def fresh(
        self,
        *,
        live: int,
        max_version_gap: int,
        before_run: int | None = None,
        foreign: bool = False,
        share: float = 1.0,
        raters: Mapping[str, float] = samples.NOBODY,
    ) -> Fresh:
        """Ratings that a run could take; with `before_run` those that were there for that one. `share` bounds each
        rater, by the weights of their ratings and of `raters`."""
        return await samples.fresh(self._reader, live, max_version_gap, before_run, foreign, share, raters)

    async def untrainable(self) -> dict[str, int]:
        """Live ratings of completions that never train, by why."""
        return await samples.untrainable(self._reader)

    async def claim(
        self,
        *,
        model: str,
        live: int,
        max_version_gap: int,
        limit: int,
        held_share: float,
        folder_of: Callable[[int], str],
        version: int,
        min_total: int,
        foreign: bool = False,
        share: float = 1.0,
        raters: Mapping[str, float] = samples.NOBODY,
        above: int = 0,
        rebuilds: bool = False,
    ) -> tuple[Run, list[Sample]] | None:
        """Make a run of the `limit` newest completions with fresh ratings, and of all those; one that `rebuilds` takes
        the oldest, as those did whose place it takes. Its number is `above` those of folders that are there.

        None while another run is open, there are fewer than `min_total` ratings or the live version is gone.
        """

        def take(db: sqlite3.Connection) -> Run | None:
            if not unlearning.may_claim(db, live):
                return None
            claimed = samples.claim(
                db,
                model=model,
                live=live,
                max_version_gap=max_version_gap,
                limit=limit,
                held_share=held_share,
                folder_of=folder_of,
                version=version,
                min_total=min_total,
                foreign=foreign,
                share=share,
                raters=raters,
                above=above,
                oldest_first=rebuilds,
            )
            if claimed is not None and rebuilds:
                unlearning.claimed(db, claimed.id)
            return claimed

        run = await self._writer.submit(take)
        return None if run is None else (run, await self.run_samples(run.id))

    async def run_started(self, run_id: int) -> None:
        await self._writer.submit(lambda db: runs.started(db, run_id))

    async def run_paused(self, run_id: int) -> None:
        """Stopped half-way because it was told to: the attempt does not count."""
        await self._writer.submit(lambda db: runs.paused(db, run_id))

    async def end_run(
        self,
        run_id: int,
        status: Literal["rejected", "empty", "failed"],
        reason: str,
        result: dict[str, Any] | None,
    ) -> None:
        """The run made no adapter; its samples are fresh again."""
        await self._writer.submit(lambda db: runs.end(db, run_id, status, reason, result))

    async def publish(self, run_id: int, adapter: Adapter, result: dict[str, Any], baseline: float | None) -> None:
        await self._writer.submit(lambda db: runs.publish(db, run_id, adapter, result, baseline))

    async def runs(self, limit: int = 50) -> list[Run]:
        return await runs.recent(self._reader, limit)

    async def run(self, run_id: int) -> Run | None:
        return await runs.one(self._reader, run_id)

    async def run_folders(self) -> dict[int, str]:
        return await runs.folders(self._reader)

    async def moved(self, versions: Mapping[int, str], folders: Mapping[int, str]) -> None:
        await self._writer.submit(lambda db: runs.moved(db, versions, folders))

    async def open_runs(self) -> list[Run]:
        return await runs.still_open(self._reader)

    async def run_key(self, run_id: int) -> bytes | None:
        """What opens the files of a run, made at the first call; None where nothing is encrypted."""
        if not self.encrypted:
            return None
        known = await run_keys.known(self._reader, run_id)
        return known or await self._writer.submit(lambda db: run_keys.of(db, run_id))

    async def known_run_key(self, run_id: int) -> bytes | None:
        """The same, of a run that has one."""
        return await run_keys.known(self._reader, run_id)

    async def run_samples(self, run_id: int) -> list[Sample]:
        return await samples.samples_of(self._reader, run_id)

    async def recent_held(self, limit: int) -> list[Sample]:
        return await samples.recent_held(self._reader, limit)

    async def runs_of(self, completion_id: str) -> list[tuple[Run, str, str]]:
        """Runs that took a rating of this completion, newest first; with the split and the rating's id."""
        return await samples.runs_of(self._reader, completion_id)

    async def earlier(self, run: Run, *, max_version_gap: int, each: int) -> list[Sample]:
        """At most `each` good and `each` bad ratings that runs before this one trained on."""
        return await samples.earlier(self._reader, run.id, run.parent, max_version_gap, each)

    async def adapters(self) -> list[Adapter]:
        return await runs.adapters(self._reader)

    async def adapter(self, version: int) -> Adapter | None:
        return await runs.adapter(self._reader, version)

    async def next_version(self) -> int:
        return 1 + max((adapter.version for adapter in await self.adapters()), default=0)

    async def pointer(self) -> Pointer:
        return await runs.pointer(self._reader)

    async def point(self, live: int, reason: str, actor: str) -> Pointer:
        return await self._writer.submit(lambda db: runs.point(db, live, reason, actor))

    async def withdraw(self, version: int, reason: str, actor: str) -> None:
        await self._writer.submit(lambda db: runs.withdraw(db, version, reason, actor))

    # Keys

    async def keys(self) -> list[Key]:
        """All there ever were, oldest first."""
        return await keys.all_of(self._reader)

    async def add_key(self, key: Key, actor: str) -> None:
        """Raises NameTaken."""
        await self._writer.submit(lambda db: keys.add(db, key, actor))

    async def revoke_key(self, given: str, actor: str) -> Key:
        """By id or name. Raises UnknownKey."""
        return await self._writer.submit(lambda db: keys.revoke(db, given, actor))

    async def note_keys(self) -> None:
        """So that no older database brings back what is revoked by now, or opens what keys have closed."""
        known = await self.keys()
        revoked = [key.id for key in known if key.revoked_at is not None]
        await asyncio.to_thread(tombstones.note_keys, self._home, revoked, needed=bool(known))

    async def keys_needed(self) -> bool:
        """Whether there ever was a key in this home, in whichever database."""
        return (await asyncio.to_thread(tombstones.revoked, self._home)).needed

    async def keys_used(self, when: Mapping[str, float]) -> None:
        await self._writer.submit(lambda db: keys.used(db, when))

    # The rest

    async def get_meta(self, key: str, default: Any = None) -> Any:
        return await meta.get_meta(self._reader, key, default)

    async def set_meta(self, key: str, value: Any) -> None:
        await self._writer.submit(lambda db: meta.set_meta(db, key, value))

    async def audit(self, actor: str, act: str, detail: dict[str, Any]) -> None:
        await self._writer.submit(lambda db: meta.audit(db, actor, act, detail))

    async def audit_log(self, limit: int = 50) -> list[dict[str, Any]]:
        return await meta.audit_log(self._reader, limit)

    async def counts(self) -> dict[str, int]:
        """Completions by status, live ratings by sign, and what was captured since midnight."""
        midnight = datetime.now().replace(hour=0, minute=0, second=0, microsecond=0)
        row = await self._reader.row(COUNTS, (midnight.timestamp(),))
        assert row is not None
        return dict(row)


def _take(
    home: Path, secret: Secret | None, tell: schema.Tell
) -> tuple[Lock, Integrity, sqlite3.Connection, Secret | None]:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = Lock(home)
    try:
        path = home / schema.NAME
        conversion.tidy(path)
        secret = secret and driver.of_file(secret, path)  # for all connections: nobody may read the file from now on
        if driver.is_new(path):
            integrity.note_of(path).unlink(missing_ok=True)  # of one that somebody moved away
        torn_log.check(path)
        known = integrity.note_of(path).exists()
        db = schema.open_database(path, backup.before_migration, secret, tell)
        found = Integrity(path)
        try:
            if known or not schema.was_closed(db):
                db.execute("PRAGMA wal_autocheckpoint = 0")
                _check(found, path, secret, tell, at_once=known)
            schema.begin(db)
            _revoke(db, home)
        except BaseException as error:
            driver.let_go(db, path, secret)
            found.close()
            if isinstance(error, driver.errors()):
                raise schema.not_opened(path, error) from error
            raise
        conversion.wipe_journal(path)
        return lock, found, db, secret
    except BaseException:
        lock.release()
        raise


def _revoke(db: sqlite3.Connection, home: Path) -> None:
    """An older database may have taken the place of the one that knew what was revoked; and the other way round, one
    of an older rlproxy knows what was not noted yet. Raises StoreError."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        keys.revoke_all(db, tombstones.revoked(home).keys, "rlproxy")
        known = keys.known(db)
    tombstones.note_keys(home, [key.id for key in known if key.revoked_at is not None], needed=bool(known))


def _check(found: Integrity, path: Path, secret: Secret | None, tell: schema.Tell, *, at_once: bool) -> None:
    """Begin the check, and wait for it where damage was found before. Raises StoreDamaged."""
    size = path.stat().st_size
    told = f"{size / 1e9:.1f} GB of the database"
    if at_once:
        tell(f"Damage was found before the last stop: all {told} are checked first.")
    found.begin(secret)
    found.wait(None if at_once else integrity.FIRST_S if size < integrity.SMALL else 0)
    if (refusal := found.refusal) is not None:
        raise refusal
    if found.state == "checking":
        tell(f"The last stop was not a clean one: all {told} are checked now, and requests are served meanwhile.")
