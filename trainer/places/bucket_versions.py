"""Copies of versions in a bucket, each under a hash of its files, for relays that share no disk.

Owns the copy, and that what comes back is the version that was meant. Not here: which versions are copied (the proxy's
version_copies).

    adapters/DIGEST/        the adapter's files; manifest.json last
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.formats.manifest import MANIFEST, AdapterError, verify
from trainer.places import shipment
from trainer.places.bucket import Bucket, BucketError
from trainer.places.parcel import place_adapter


def digest_of(manifest: Mapping[str, Any]) -> str:
    """A hash of the names and hashes of its files. Raises AdapterError where it names none."""
    files = manifest.get("files")
    if not isinstance(files, Mapping) or not files:
        raise AdapterError("this version's manifest names no files, so no copy of it can be told from another.")
    return hashlib.sha256("".join(f"{name} {files[name]}\n" for name in sorted(files)).encode()).hexdigest()


class BucketVersions:
    """All calls block."""

    def __init__(self, url: str) -> None:
        self.url, self._bucket = url, Bucket(url)

    def check(self) -> None:
        """Raises BucketError where it does not keep what is written."""
        self._bucket.check()

    def copy(self, manifest: Mapping[str, Any], folder: Path) -> None:
        """Copy the version of this manifest, unless it is there. Raises AdapterError, BucketError, OSError."""
        name = f"adapters/{digest_of(manifest)}"
        if self._bucket.has(f"{name}/{MANIFEST}"):
            return
        if verify(folder)["files"] != manifest["files"]:
            raise AdapterError(f"{folder} is another version.")
        for file in (*sorted(manifest["files"]), MANIFEST):
            self._bucket.upload(f"{name}/{file}", folder / file)

    def fetch(self, manifest: Mapping[str, Any], folder: Path) -> None:
        """Put the version of this manifest into `folder`: whole and verified, or not at all. Raises AdapterError,
        BucketError, OSError."""
        name = f"adapters/{digest_of(manifest)}"
        part = folder.with_name(f".{folder.name}.part")
        shipment.clear(part)
        part.mkdir(parents=True)
        try:
            for file in (*sorted(manifest["files"]), MANIFEST):
                if not self._bucket.download(f"{name}/{Path(file).name}", part / Path(file).name):
                    raise BucketError(f"{self.url}/{name} has no {file} yet.")
            if verify(part)["files"] != manifest["files"]:
                raise AdapterError(f"{self.url}/{name} is another version.")
            place_adapter(part, folder)
        except AdapterError as error:
            raise AdapterError(f"{error} Without {self.url}/{name}, a relay that has it copies it anew.") from None
        finally:
            shipment.clear(part)

    def remove(self, manifest: Mapping[str, Any]) -> None:
        """Raises AdapterError, BucketError."""
        self._bucket.remove(f"adapters/{digest_of(manifest)}")
