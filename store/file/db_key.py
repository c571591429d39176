"""The key of an encrypted database: where it comes from, and how SQLCipher wants to hear it.

Owns the sources (keyring, file, environment, prompt) and what a key may look like. 64 hexadecimal digits are a key;
anything else of twelve characters or more is a passphrase. It is never part of a message, a repr or an argument. Not
here: connections (driver).
"""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import secrets
import stat
import sys
from pathlib import Path
from typing import Final

from store.errors import MissingExtra, NoKey

VARIABLE: Final = "RLPROXY_STORE_KEY"
SERVICE: Final = "rlproxy"  # in the keyring; the name there is the home folder's
SALT_BYTES: Final = 16
KEY_BYTES: Final = 32
ROUNDS: Final = 256_000  # SQLCipher 4's own: its shell opens the file with the passphrase, too
LEAST: Final = 12  # characters of a passphrase
_HEX: Final = re.compile(r"[0-9a-fA-F]{64}")


class Secret:
    """A key or a passphrase."""

    def __init__(self, text: str) -> None:
        """Raises NoKey where it is too short."""
        text = text.strip()
        if not _HEX.fullmatch(text) and len(text) < LEAST:
            raise NoKey(
                f"The database's key is too short: it should be 64 hexadecimal digits, or a passphrase of {LEAST} "
                "characters or more; nothing was changed."
            )
        self._key = bytes.fromhex(text) if _HEX.fullmatch(text) else None
        self._passphrase = text
        self._salt: bytes | None = None

    def __repr__(self) -> str:
        return "Secret(**********)"

    @property
    def needs_salt(self) -> bool:
        """A passphrase becomes a key with the salt of the file that it is for."""
        return self._key is None

    def salted(self, salt: bytes) -> Secret:
        """The key of one file. SQLCipher's own derivation, done once here and not by each connection."""
        secret = object.__new__(Secret)
        secret._passphrase, secret._salt = self._passphrase, salt
        secret._key = hashlib.pbkdf2_hmac("sha512", self._passphrase.encode(), salt, ROUNDS, dklen=KEY_BYTES)
        return secret

    @property
    def for_cipher(self) -> str:
        """Write the key as SQLCipher takes a raw one, in quotes of its own."""
        assert self._key is not None, "a passphrase is salted first"
        return f"x'{self._key.hex()}{'' if self._salt is None else self._salt.hex()}'"


def find(source: str, home: Path) -> Secret | None:
    """The key that `store.key_from` names; None where it names none. Raises NoKey, MissingExtra."""
    if not source:
        return None
    if source == "env":
        return Secret(_from_environment())
    if source == "prompt":
        return Secret(_ask("Key of rlproxy's database: "))
    if source == "keyring":
        passphrase = _keyring().get_password(SERVICE, _name(home))
        if passphrase is None:
            raise NoKey(
                f"The keyring has no key for {home}; put it back (service {SERVICE}, name {_name(home)}), or make one "
                "with `rlproxy encrypt` if nothing is encrypted yet."
            )
        return Secret(passphrase)
    return Secret(_from_file(_path(source)))


def find_or_make(source: str, home: Path) -> tuple[Secret, bool]:
    """The key to encrypt with, and whether it was made just now. Raises NoKey, MissingExtra."""
    if source == "keyring":
        keyring = _keyring()
        if keyring.get_password(SERVICE, _name(home)) is None:
            passphrase = secrets.token_hex(KEY_BYTES)
            keyring.set_password(SERVICE, _name(home), passphrase)
            if keyring.get_password(SERVICE, _name(home)) != passphrase:
                raise NoKey("The keyring did not keep the key; choose another place for it. Nothing was changed.")
            return Secret(passphrase), True
    elif source == "prompt":
        first = _ask("New key (a passphrase, or 64 hexadecimal digits): ")
        if _ask("Once more: ") != first:
            raise NoKey("The two were not the same; nothing was changed.")
        return Secret(first), False
    elif source.startswith("file:") and not _path(source).exists():
        passphrase = secrets.token_hex(KEY_BYTES)
        _write(_path(source), passphrase, home)
        return Secret(passphrase), True
    secret = find(source, home)
    assert secret is not None, "the caller has a source"
    return secret, False


def _from_environment() -> str:
    passphrase = os.environ.get(VARIABLE, "")
    if not passphrase:
        raise NoKey(f'store.key_from is "env" and {VARIABLE} is not set, so the database cannot be opened.')
    return passphrase


def _ask(words: str) -> str:
    if not sys.stdin.isatty():
        raise NoKey('store.key_from is "prompt" and there is no terminal to ask at; choose keyring, file:PATH or env.')
    return getpass.getpass(words)


def _from_file(path: Path) -> str:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise NoKey(f"The key file {path} is not a file.")
        if status.st_mode & 0o077:
            raise NoKey(f"The key file {path} can be read by others: `chmod 600 {path}`, then try again.")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NoKey(
            f"The key file {path} is not there; put it back, or make one with `rlproxy encrypt` if nothing is "
            "encrypted yet."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise NoKey(f"The key file {path} cannot be read: {type(error).__name__}.") from None


def _write(path: Path, text: str, home: Path) -> None:
    if path.resolve().is_relative_to(home.resolve()):
        raise NoKey(f"{path} is in the home folder, beside what it locks; choose a place that is not copied with it.")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    except OSError as error:
        raise NoKey(f"The key file {path} could not be written ({error.strerror}); nothing was changed.") from None


def _path(source: str) -> Path:
    return Path(source.removeprefix("file:")).expanduser()


def _name(home: Path) -> str:
    return str(home.expanduser().resolve())


class _Keyring:
    """The person's keyring, its errors in our words."""

    def __init__(self) -> None:
        try:
            import keyring
            import keyring.errors
        except ImportError:
            raise MissingExtra(
                "store.key_from is \"keyring\" and Python's keyring is not installed: `pip install 'rlproxy[encrypt]'`."
            ) from None
        self._module, self._errors = keyring, keyring.errors.KeyringError

    def get_password(self, service: str, name: str) -> str | None:
        try:
            return self._module.get_password(service, name)
        except (self._errors, RuntimeError) as error:
            raise NoKey(
                f"The keyring cannot be asked ({type(error).__name__}); unlock it, or use another key_from."
            ) from None

    def set_password(self, service: str, name: str, value: str) -> None:
        try:
            self._module.set_password(service, name, value)
        except (self._errors, RuntimeError) as error:
            raise NoKey(f"The keyring did not take the key ({type(error).__name__}); nothing was changed.") from None


def _keyring() -> _Keyring:
    return _Keyring()
