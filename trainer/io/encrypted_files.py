"""Files of a run folder that only the key of that run opens.

Owns the form: a header, then chunks under AES-256-GCM. Each chunk is bound to its place, the last one is marked, and
all are bound to the file's name. So a file that was cut, changed or put in another's place is refused. A file without
the header is in the clear and is read as it is. Not here: which files those are, where the key is kept (the proxy's
database), how it comes to the trainer (its stdin). Free of torch; `cryptography` is imported when there is a key.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path
from typing import Any, Final

HEADER: Final = b"rlproxy sealed 1\n"
KEY_BYTES: Final = 32
SALT_BYTES: Final = 32
CHUNK: Final = 2**20  # bytes of text in one chunk
TAG: Final = 16


class SealError(ValueError):
    """One sentence: what cannot be opened, and why."""


class Seal:
    """How the files of one run are written and read; without a key in the clear."""

    def __init__(self, key: bytes | None) -> None:
        assert key is None or len(key) == KEY_BYTES, "a run's key has 32 bytes"
        self._key = key

    def __repr__(self) -> str:
        return "Seal(in the clear)" if self._key is None else "Seal(**********)"

    def read(self, path: Path) -> bytes:
        """Raises SealError, OSError."""
        data = path.read_bytes()
        if not data.startswith(HEADER):
            return data
        if self._key is None:
            raise SealError(f"{path} is encrypted, and this run was given no key.")
        salt, body = data[len(HEADER) :][:SALT_BYTES], memoryview(data)[len(HEADER) + SALT_BYTES :]
        cipher, refused = _cipher(self._key, salt, path.name), _refused()
        count = -(-len(body) // (CHUNK + TAG))
        opened = []
        try:
            for n in range(max(1, count)):
                part = body[n * (CHUNK + TAG) : (n + 1) * (CHUNK + TAG)]
                opened.append(cipher.decrypt(_nonce(n, n + 1 >= count), bytes(part), None))
        except refused:
            raise SealError(f"{path} cannot be decrypted: it is of another run's key, cut, or changed.") from None
        return b"".join(opened)

    def write(self, path: Path, data: bytes) -> None:
        """Whole and on disk, or not there; readable by its owner only."""
        part = unfinished(path)
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data if self._key is None else self._closed(self._key, path.name, data))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def _closed(self, key: bytes, name: str, data: bytes) -> bytes:
        salt = os.urandom(SALT_BYTES)
        cipher = _cipher(key, salt, name)
        parts = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)] or [b""]
        closed = (cipher.encrypt(_nonce(n, n == len(parts) - 1), part, None) for n, part in enumerate(parts))
        return b"".join((HEADER, salt, *closed))


IN_THE_CLEAR: Final = Seal(None)


def unfinished(path: Path) -> Path:
    """The name of a file while it is written; a kill leaves it."""
    return path.with_name(f".{path.name}.part")


def is_sealed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(HEADER)) == HEADER


def missing() -> str | None:
    """None, or one sentence on what has to be installed before a run can be sealed."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        return "encrypted run folders need `cryptography`: `pip install 'rlproxy[encrypt]'`"
    return None


def _cipher(key: bytes, salt: bytes, name: str) -> Any:
    """Each file has a key of its own, from the run's key, random bytes in the file, and its name."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    own = hmac.digest(hmac.digest(salt, key, hashlib.sha256), b"rlproxy run folder\1" + name.encode(), hashlib.sha256)
    return AESGCM(own)


def _refused() -> type[Exception]:
    from cryptography.exceptions import InvalidTag

    return InvalidTag


def _nonce(n: int, last: bool) -> bytes:
    return n.to_bytes(11, "big") + (b"\1" if last else b"\0")
