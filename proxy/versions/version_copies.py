"""Where this relay has a version: on its disk, else out of the bucket that relays without a shared disk use.

Owns the fetch of a version that another relay has trained, and the copies in the bucket. A version gets one before it
goes live; one that learned from what was forgotten loses it. Not here: what a copy is (trainer.places.bucket_versions).
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import structlog
from typing_extensions import TypedDict

from config.settings import Settings
from proxy.core.errors import BackendDown
from proxy.core.tasks import Tasks
from store.errors import StoreError
from store.records import Adapter
from store.store import Store
from trainer.launch import AdapterError, BucketError, BucketVersions

log = structlog.get_logger()

NEWEST: Final = 32  # versions that a relay which begins to learn fetches: older ones train no sample
LOOK_S: Final = 60.0  # between two looks for versions that lack a copy, or should have none
COPY_S: Final = 60.0  # that a version waits for its copy before it goes live all the same
WAIT_S: Final = 20.0  # for a version on its way: what else waits for it, as keys that were revoked, waits no longer
RETRY_S: Final = 10  # for a client whose request needs a version that is not here yet


class BucketReport(TypedDict):
    line: str
    problem: str | None


class VersionCopies:
    def __init__(self, settings: Settings, store: Store, tasks: Tasks) -> None:
        url = settings.train.bucket
        self._bucket = BucketVersions(url) if url else None
        self._adapters_dir, self._store, self._tasks = settings.adapters_dir, store, tasks
        self._fetching: dict[int, asyncio.Task[Exception | None]] = {}
        self._problem: str | None = None  # of the last look
        self._removed: set[int] = set()

    def report(self) -> BucketReport | None:
        """For `status`; None where there is no bucket."""
        if self._bucket is None:
            return None
        return {"line": self._problem or f"{self._bucket.url} keeps what is written", "problem": self._problem}

    def folder(self, adapter: Adapter) -> Path:
        """Where it is on this machine, or would be."""
        path = Path(adapter.path)
        if self._bucket is None or path.exists():
            return path
        return self._adapters_dir.absolute().joinpath(*path.parts[-2:])

    async def fetch(self, adapter: Adapter) -> Path:
        """Its folder on this machine, out of the bucket where it lacks. Raises BackendDown, and not AdapterError: other
        relays may have the version, so a bucket that fails or lies must not roll it back."""
        folder, version = self.folder(adapter), adapter.version
        if self._bucket is None or await asyncio.to_thread(folder.exists):
            return folder
        if version not in self._fetching:
            self._fetching[version] = self._tasks.spawn(
                f"fetch-v{version}", self._outcome(self._bucket, adapter, folder)
            )
        fetching = self._fetching[version]
        await asyncio.wait({fetching}, timeout=WAIT_S)
        if not fetching.done():
            raise BackendDown(f"v{version} is on its way from the bucket to this machine.", retry_after=RETRY_S)
        del self._fetching[version]
        if (error := fetching.result()) is not None:
            message = f"v{version} is not on this machine, and the bucket's copy was not taken: {error}"
            raise BackendDown(message, retry_after=RETRY_S)
        log.info("version fetched from the bucket", version=version)
        return folder

    async def _outcome(self, bucket: BucketVersions, adapter: Adapter, folder: Path) -> Exception | None:
        try:
            await asyncio.to_thread(bucket.fetch, adapter.manifest, folder)
        except (AdapterError, BucketError, OSError) as error:
            return error
        return None

    async def fetch_newest(self) -> None:
        """Before this relay learns: the versions that its runs may start from or ask. Raises StoreError."""
        if self._bucket is None:
            return
        for adapter in await self._needed():
            try:
                await self.fetch(adapter)
            except BackendDown as error:
                log.warning("a version is not on this machine", version=adapter.version, error=str(error))

    async def copy(self, adapter: Adapter) -> None:
        """Before a version goes live, so that other relays can follow. Without a copy now, it gets one later."""
        if self._bucket is None:
            return
        try:
            async with asyncio.timeout(COPY_S):
                await asyncio.to_thread(self._bucket.copy, adapter.manifest, self.folder(adapter))
        except (AdapterError, BucketError, OSError, TimeoutError) as error:
            log.warning("a version has no copy in the bucket yet", version=adapter.version, error=str(error))

    async def _needed(self) -> list[Adapter]:
        """The newest versions, and those that answer."""
        live = {pointer.live for pointer in (await self._store.lines.pointers()).values()}
        adapters = [adapter for adapter in await self._store.versions.all() if not adapter.is_deleted]
        return [*(each for each in adapters[:-NEWEST] if each.version in live), *adapters[-NEWEST:]]

    async def run(self) -> None:
        """Copy what lacks a copy and remove what should have none, for ever."""
        while self._bucket is not None:
            try:
                await asyncio.to_thread(self._bucket.check)
                await self._settle(self._bucket)
                self._problem = None
            except (StoreError, AdapterError, BucketError, OSError) as error:
                if str(error) != self._problem:
                    log.warning("copies of versions are not settled; it is tried again", error=str(error))
                self._problem = str(error)
            await asyncio.sleep(LOOK_S)

    async def _settle(self, bucket: BucketVersions) -> None:
        for adapter in await self._needed():
            folder = self.folder(adapter)
            if adapter.manifest.get("files") and await asyncio.to_thread(folder.exists):
                await asyncio.to_thread(bucket.copy, adapter.manifest, folder)
        rebuild = await self._store.unlearning.state()
        if rebuild is None or rebuild.over is None:  # a run may still ask the versions that go
            return
        adapters = await self._store.versions.all()
        intact = [adapter.manifest.get("files") for adapter in adapters if not adapter.is_deleted]
        deleted = [adapter for adapter in adapters if adapter.is_deleted and adapter.version not in self._removed]
        obsolete = [adapter for adapter in deleted if adapter.manifest.get("files") not in intact]
        await asyncio.to_thread(self._remove, bucket, obsolete)
        self._removed |= {adapter.version for adapter in obsolete}

    def _remove(self, bucket: BucketVersions, obsolete: Collection[Adapter]) -> None:
        """Its files here are known by their hashes: another version may have had the same number."""
        manifests = [adapter.manifest for adapter in obsolete if adapter.manifest.get("files")]
        for manifest in manifests:
            bucket.remove(manifest)
        files = [manifest["files"] for manifest in manifests]
        for path in self._adapters_dir.glob("*/v*/manifest.json") if files else ():
            if _read(path).get("files") in files:
                shutil.rmtree(path.parent)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
