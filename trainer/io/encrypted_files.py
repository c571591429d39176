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
        cipher, invalid_tag = _cipher(self._key, salt, path.name), _invalid_tag()
        chunks = -(-len(body) // (CHUNK + TAG))
        parts = []
        try:
            for n in range(max(1, chunks)):
                chunk = body[n * (CHUNK + TAG) : (n + 1) * (CHUNK + TAG)]
                parts.append(cipher.decrypt(_nonce(n, n + 1 >= chunks), bytes(chunk), None))
        except invalid_tag:
            raise SealError(f"{path} cannot be decrypted: it is of another run's key, cut, or changed.") from None
        return b"".join(parts)

    def write(self, path: Path, data: bytes) -> None:
        """Whole and on disk, or not there; readable by its owner only."""
        partial = partial_path(path)
        partial.unlink(missing_ok=True)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data if self._key is None else self._encrypt(self._key, path.name, data))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def _encrypt(self, key: bytes, name: str, data: bytes) -> bytes:
        salt = os.urandom(SALT_BYTES)
        cipher = _cipher(key, salt, name)
        chunks = [data[offset : offset + CHUNK] for offset in range(0, len(data), CHUNK)] or [b""]
        encrypted = (cipher.encrypt(_nonce(n, n == len(chunks) - 1), chunk, None) for n, chunk in enumerate(chunks))
        return b"".join((HEADER, salt, *encrypted))


IN_THE_CLEAR: Final = Seal(None)


def partial_path(path: Path) -> Path:
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

    file_key = hmac.digest(
        hmac.digest(salt, key, hashlib.sha256), b"rlproxy run folder\1" + name.encode(), hashlib.sha256
    )
    return AESGCM(file_key)


def _invalid_tag() -> type[Exception]:
    from cryptography.exceptions import InvalidTag

    return InvalidTag


def _nonce(n: int, last: bool) -> bytes:
    return n.to_bytes(11, "big") + (b"\1" if last else b"\0")
