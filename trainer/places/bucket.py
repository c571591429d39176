"""A folder of objects, in S3 or in a local folder, by fsspec.

Owns reading, writing and removing of objects, and what an error of the store means in words. An upload is read back and
compared. Credentials and the endpoint come from the environment, as with any AWS program, and are in no message. Not
here: which objects a job has (bucket_jobs).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from trainer.formats.manifest import sha256

NEEDS: Final = "train.bucket needs the s3 extra: `pip install 'rlproxy[s3]'`"
CONNECT_S: Final = 10
READ_S: Final = 60
BLOCK: Final = 8 * 2**20  # bytes read at once
MOST_JSON: Final = 2**20  # bytes of an object that is read as JSON
NO_BUCKET: Final = "NoSuchBucket"
MEANINGS: Final = {
    "RequestTimeTooSkewed": "the clock of this machine differs too much from the bucket's: set it by NTP",
    "AccessDenied": "access is denied: the credentials need s3:ListBucket, GetObject, PutObject and DeleteObject",
    "403": "access is denied: the credentials need s3:ListBucket, GetObject, PutObject and DeleteObject",
    "InvalidAccessKeyId": "it does not know the access key: see AWS_ACCESS_KEY_ID or AWS_PROFILE",
    "SignatureDoesNotMatch": "the secret key is wrong: see AWS_SECRET_ACCESS_KEY or AWS_PROFILE",
    "ExpiredToken": "the credentials have expired",
    NO_BUCKET: "there is no such bucket",
    "NoCredentialsError": "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "PartialCredentialsError": "there is only half of the credentials: see AWS_SECRET_ACCESS_KEY",
    "EndpointConnectionError": "it cannot be reached: see AWS_ENDPOINT_URL",
    "ConnectTimeoutError": "it cannot be reached: see AWS_ENDPOINT_URL",
    "ReadTimeoutError": f"it sent nothing for {READ_S} s",
}


class BucketError(Exception):
    """One sentence: what the bucket did not do. The same may go well later."""


class Bucket:
    """All calls block, and raise BucketError."""

    def __init__(self, url: str) -> None:
        """`url`: as config.places.check_bucket has passed it."""
        self.url = url
        self._scheme, _, self._root = url.partition("://")

    def check(self) -> None:
        """Write, read and remove an object."""
        name, content = f".check-{secrets.token_hex(8)}", secrets.token_bytes(32)
        self.write(name, content)
        if self.read(name) != content:
            raise BucketError(f"{self.url}: what was written is not what is read.")
        self.remove(name)

    def read(self, name: str, offset: int = 0, limit: int | None = None) -> bytes | None:
        """Bytes of an object from this offset on; None where it is not there."""
        end = None if limit is None else offset + limit
        with contextlib.suppress(FileNotFoundError), self._words():
            if offset and self._files.info(self._path(name))["size"] <= offset:
                return b""
            content: bytes = self._files.cat_file(self._path(name), start=offset or None, end=end)
            return content
        return None

    def read_json(self, name: str) -> dict[str, Any] | None:
        content = self.read(name, limit=MOST_JSON)
        if content is None:
            return None
        try:
            members = json.loads(content)
        except (ValueError, RecursionError):
            members = None
        if not isinstance(members, dict):
            raise BucketError(f"{self.url}/{name} is cut or changed.")
        return members

    def write(self, name: str, content: bytes) -> None:
        with self._words():
            self._files.pipe_file(self._path(name), content)

    def upload(self, name: str, path: Path) -> None:
        """Write a file as an object, and read that back."""
        self.upload_unchecked(name, path)
        digest = None
        with (
            contextlib.suppress(FileNotFoundError),
            self._words(),
            self._files.open(self._path(name), "rb", block_size=BLOCK) as source,
        ):
            digest = hashlib.file_digest(source, "sha256").hexdigest()
        if digest != sha256(path):
            raise BucketError(f"{self.url}/{name} is not what was written there.")

    def upload_unchecked(self, name: str, path: Path) -> None:
        """Write a file as an object that proves itself where it is read."""
        with self._words():
            self._files.put_file(str(path), self._path(name))

    def download(self, name: str, path: Path) -> bool:
        """Write an object into a file of its owner's only. Tells whether it is there."""
        with contextlib.suppress(FileNotFoundError), self._words():
            with self._files.open(self._path(name), "rb", block_size=BLOCK) as source:
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with os.fdopen(handle, "wb") as sink:
                    shutil.copyfileobj(source, sink, BLOCK)
            return True
        return False

    def has(self, name: str) -> bool:
        with contextlib.suppress(FileNotFoundError), self._words():
            self._files.info(self._path(name))
            return True
        return False

    def remove(self, name: str) -> None:
        """Remove an object, or all under this name."""
        with contextlib.suppress(FileNotFoundError), self._words():
            self._files.rm(self._path(name), recursive=True)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @cached_property
    def _files(self) -> Any:
        """The file system of fsspec; it remembers no listing, as others write there, too."""
        try:
            if self._scheme == "file":
                from fsspec.implementations.local import LocalFileSystem

                return LocalFileSystem(auto_mkdir=True, skip_instance_cache=True)
            from s3fs import S3FileSystem
        except ImportError:
            raise BucketError(f"{NEEDS}.") from None
        bounds = {
            "connect_timeout": CONNECT_S,
            "read_timeout": READ_S,
            "retries": {"total_max_attempts": 1},
        }  # s3fs tries
        return S3FileSystem(skip_instance_cache=True, use_listings_cache=False, config_kwargs=bounds)

    @contextlib.contextmanager
    def _words(self) -> Iterator[None]:
        """Turn what a store raises into a BucketError: botocore's errors share no class with aiohttp's.

        An object that is not there stays a FileNotFoundError.
        """
        try:
            yield
        except BucketError:
            raise
        except Exception as error:
            if isinstance(error, FileNotFoundError) and _code(error) != NO_BUCKET:
                raise
            raise BucketError(f"{self.url}: {_meaning(error)}.") from None


def _code(error: BaseException) -> str:
    """The code of an error of S3; else the name of its class."""
    for each in (error, error.__cause__):
        response = getattr(each, "response", None)
        if isinstance(response, dict) and (code := response.get("Error", {}).get("Code")):
            return str(code)
    return type(error).__name__


def _meaning(error: BaseException) -> str:
    code = _code(error)
    if code in MEANINGS:
        return MEANINGS[code]
    if isinstance(error, OSError) and error.strerror and code == type(error).__name__:
        return error.strerror
    return f"it answered {code}"
