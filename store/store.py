"""The store as the rest of rlproxy sees it: one object, with one attribute for each noun.

Owns the open file: its lock, its check, its end. Each call is a method of its noun, in the module of that noun:
`await store.ratings.rate(...)` is in learning/ratings.py. What a call writes is on disk when it returns; what it reads
includes every write awaited before.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from store.captured import completions
from store.captured.completions import CompletionStore
from store.captured.images import ImageStore
from store.captured.inbox import InboxStore
from store.captured.items import ItemStore
from store.captured.recent_answers import AnswerStore
from store.captured.sizes import SizeStore
from store.captured.stats import StatStore
from store.copies import backup
from store.copies.export import TransferStore
from store.errors import MissingExtra, StoreError
from store.file import conversion, driver, integrity, schema, tombstones, torn_log
from store.file.db_key import Secret
from store.file.integrity import Integrity
from store.file.lock import Lock
from store.file.meta import MetaStore, set_meta
from store.file.reader import Reader
from store.file.writer import Writer
from store.forgetting.erasure import ErasureStore
from store.learning import keys
from store.learning.episode_groups import EpisodeGroupStore
from store.learning.episode_scores import EpisodeScoreStore
from store.learning.episodes import EpisodeStore
from store.learning.experiments import ExperimentStore
from store.learning.flags import FlagStore
from store.learning.guesses import GuessStore
from store.learning.judged_pairs import JudgedPairStore
from store.learning.keys import KeyStore
from store.learning.lessons import LessonStore
from store.learning.lines import LineStore
from store.learning.opinion import OpinionStore
from store.learning.ratings import RatingStore
from store.learning.reactions import ReactionStore
from store.learning.retraining import RetrainStore
from store.learning.rollouts import RolloutStore
from store.learning.runs import RunStore
from store.learning.samples import SampleStore
from store.learning.signals import SignalStore
from store.learning.unlearning import RebuildStore
from store.learning.versions import VersionStore

if TYPE_CHECKING:
    from store.postgres.sharing import Sharing


class Store:
    def __init__(
        self,
        home: Path,
        lock: Lock,
        integrity: Integrity,
        writer: Writer,
        reader: Reader,
        secret: Secret | None,
        sharing: Sharing | None = None,
    ) -> None:
        self.encrypted = secret is not None
        self.sharing = sharing  # with other relays, on PostgreSQL
        self.integrity = integrity
        self._lock = lock
        self._writer = writer
        self._reader = reader
        self._closed = False
        self._checked, self._damaged = asyncio.Event(), asyncio.Event()
        self.room = writer.room  # returns once the disk has caught up enough for more to be asked of it
        # Captured
        self.completions = CompletionStore(reader, writer) if sharing is None else sharing.completions
        self.answers = AnswerStore(reader, writer)
        self.inbox = InboxStore(reader, writer)
        self.images = ImageStore(reader, writer)
        self.items = ItemStore(reader, writer)
        self.sizes = SizeStore(reader, writer)
        self.stats = StatStore(reader, writer)
        self.transfer = TransferStore(reader, writer)
        # Learning
        self.ratings = RatingStore(reader, writer) if sharing is None else sharing.ratings
        self.opinions = OpinionStore(reader, writer)
        self.lessons = LessonStore(reader, writer)
        self.guesses = GuessStore(reader, writer)
        self.flags = FlagStore(reader, writer)
        self.reactions = ReactionStore(reader, writer)
        self.samples = SampleStore(reader, writer)
        self.signals = SignalStore(reader, writer)
        self.judged_pairs = JudgedPairStore(reader, writer)
        self.runs = RunStore(reader, writer, encrypted=self.encrypted)
        self.versions = VersionStore(reader, writer)
        self.lines = LineStore(reader, writer)
        self.experiments = ExperimentStore(reader, writer)
        self.unlearning = RebuildStore(reader, writer)
        self.retraining = RetrainStore(reader, writer)
        self.episodes = EpisodeStore(reader, writer)
        self.episode_groups = EpisodeGroupStore(reader, writer)
        self.episode_scores = EpisodeScoreStore(reader, writer)
        self.rollouts = RolloutStore(reader, writer)
        self.keys = KeyStore(reader, writer, home)
        self.meta = MetaStore(reader, writer)
        # Safety
        # The key as it was given: each copy has a salt of its own.
        self.erasure = ErasureStore(reader, writer, home, secret, is_shared=sharing is not None)

        loop = asyncio.get_running_loop()

        def changed() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever waited
                loop.call_soon_threadsafe(self._look_at_integrity)

        integrity.listen(changed)

    @classmethod
    async def open(
        cls, home: Path, secret: Secret | None = None, tell: schema.Tell = lambda text: None, url: str = ""
    ) -> Store:
        """Take the home folder, bring its database up to date and end what was left pending.

        With `url` the database is PostgreSQL's there, which other relays may use, too; the folder is this relay's own.

        After a stop that was not clean the file is checked: one that is small at once, another while it is used.
        With `db_key` the database is encrypted; `tell` is told, in another thread, of what may take long. Raises
        StoreError: also where there is a key and the database is in the clear, or the other way round.
        """
        if url:
            return await cls._open_shared(home, url)
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

    @classmethod
    async def _open_shared(cls, home: Path, url: str) -> Store:
        sharing = sharing_module()
        lock, connection, spool, relay = await asyncio.to_thread(_take_shared, home, url)
        integrity = Integrity(home / schema.NAME)  # the server checks its own files
        shared = await sharing.connect(connection, url, integrity, spool, relay)
        return cls(home, lock, integrity, shared.writer, shared.reader, None, shared)

    async def close(self) -> None:
        """Write what is queued, then let go of the folder."""
        if self._closed:
            return
        self._closed = True
        if self.integrity.state == "sound":
            with contextlib.suppress(StoreError):  # no space for the flag: the next start checks the file
                if self.sharing is None:
                    await self._writer.submit(lambda db: set_meta(db, schema.CLEAN, True))
            self.integrity.close()
            if self.sharing is not None:
                await self.sharing.close()
            await self._reader.close()
            await self._writer.stop()
        else:  # the last one to close may only read, so that the log stays where it is
            await self._writer.stop()
            await self._reader.close()
            self.integrity.close()
        self.erasure.close()
        self._lock.release()

    def close_at_once(self, within_s: float) -> bool:
        """Write what is queued, nothing else is done; for a process that ends now. Blocks, at most so long; False
        where the disk was slower."""
        return self._writer.end_at_once(within_s)

    @property
    def is_learner(self) -> bool:
        """Tell if versions are made here; of several relays on one database, one makes them."""
        return self.sharing is None or self.sharing.following.leads

    @property
    def commits(self) -> int:
        """Transactions committed since the store was opened."""
        return self._writer.commits

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
        was_damaged = integrity.note_of(path).exists()
        db = schema.open_database(path, backup.before_migration, secret, tell)
        file_integrity = Integrity(path)
        try:
            if was_damaged or not schema.was_closed(db):
                db.execute("PRAGMA wal_autocheckpoint = 0")
                _check(file_integrity, path, secret, tell, at_once=was_damaged)
            schema.begin(db, completions.recover)
            _revoke(db, home)
        except BaseException as error:
            driver.let_go(db, path, secret)
            file_integrity.close()
            if isinstance(error, driver.errors()):
                raise schema.not_opened(path, error) from error
            raise
        conversion.wipe_journal(path)
        return lock, file_integrity, db, secret
    except BaseException:
        lock.release()
        raise


def sharing_module() -> Any:
    """`store.postgres.sharing`, which needs a package of its own. Raises MissingExtra."""
    try:
        from store.postgres import sharing
    except ImportError:
        raise MissingExtra(
            "store.url is set and psycopg is not installed: `pip install 'rlproxy[postgres]'`; nothing was changed."
        ) from None
    return sharing


def _take_shared(home: Path, url: str) -> tuple[Lock, Any, Any, str]:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    sharing = sharing_module()
    lock = Lock(home)
    try:
        connection, spool, relay = sharing.take(home, url)
        try:
            _revoke(connection, home)
        except BaseException:
            connection.close()
            raise
        return lock, connection, spool, relay
    except BaseException:
        lock.release()
        raise


def _revoke(db: sqlite3.Connection, home: Path) -> None:
    """An older database may have taken the place of the one that knew what was revoked. The other way round, one of an
    older rlproxy knows what was not noted yet. Raises StoreError."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        keys.revoke_all(db, tombstones.revoked(home).keys, "rlproxy")
        all_keys = keys.read_keys(db)
    keys.note_beside(home, all_keys)


def _check(file_integrity: Integrity, path: Path, secret: Secret | None, tell: schema.Tell, *, at_once: bool) -> None:
    """Begin the check, and wait for it where damage was found before. Raises StoreDamaged."""
    size = path.stat().st_size
    extent = f"{size / 1e9:.1f} GB of the database"
    if at_once:
        tell(f"Damage was found before the last stop: all {extent} are checked first.")
    file_integrity.begin(secret)
    file_integrity.wait(None if at_once else integrity.FIRST_S if size < integrity.SMALL else 0)
    if (refusal := file_integrity.refusal) is not None:
        raise refusal
    if file_integrity.state == "checking":
        tell(f"The last stop was not a clean one: all {extent} are checked now, and requests are served meanwhile.")
