"""Where a key comes from, and what is no key."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

from store.errors import KeyProblem, MissingExtra, NoKey
from store.file import db_key, driver
from store.file.db_key import Secret, find, find_or_make

KEY = "0123456789abcdef" * 4


def test_a_key_is_64_digits_and_a_passphrase_anything_longer() -> None:
    assert Secret(KEY).for_cipher == f"x'{KEY}'" and not Secret(f" {KEY}\n").needs_salt
    phrase = Secret('it\'s a "long" one')
    assert phrase.needs_salt
    salt = bytes(range(16))
    derived = hashlib.pbkdf2_hmac("sha512", b'it\'s a "long" one', salt, 256_000, dklen=32)
    assert phrase.salted(salt).for_cipher == f"x'{derived.hex()}{salt.hex()}'"
    for short in ("", "eleven char", KEY[:10]):
        with pytest.raises(NoKey, match="too short") as refused:
            Secret(short)
        assert not short or short not in str(refused.value)


def test_it_is_never_shown() -> None:
    for one in (Secret(KEY), Secret("a passphrase of mine"), Secret("a passphrase of mine").salted(b"0" * 16)):
        assert "*" in repr(one) and KEY not in repr(one) and "passphrase" not in repr(one)
        assert "passphrase" not in f"{one} {one!s} {one!r}"


def test_sqlciphers_own_shell_takes_the_passphrase(tmp_path: Path) -> None:
    """What we derive is what SQLCipher derives: another program opens the file with the words alone."""
    phrase, path = Secret("correct horse battery"), tmp_path / "a.db"
    db = driver.connect(path, phrase)
    db.execute("CREATE TABLE a (b)")
    db.close()
    other = driver.sqlcipher().connect(str(path))
    other.execute("PRAGMA key = 'correct horse battery'")
    assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("a",)]
    other.close()


def test_a_file_is_made_once_and_must_be_ones_own(tmp_path: Path) -> None:
    file, home = tmp_path / "keys" / "rlproxy.key", tmp_path / "home"
    home.mkdir()
    with pytest.raises(NoKey, match="is not there"):
        find(f"file:{file}", home)
    first, made = find_or_make(f"file:{file}", home)
    assert made and file.stat().st_mode & 0o777 == 0o600 and len(file.read_text().strip()) == 64
    again, made = find_or_make(f"file:{file}", home)
    assert not made and again.for_cipher == first.for_cipher
    file.chmod(0o640)
    with pytest.raises(NoKey, match=f"chmod 600 {file}") as refused:
        find(f"file:{file}", home)
    assert file.read_text().strip() not in str(refused.value)
    with pytest.raises(NoKey, match="beside what it locks"):
        find_or_make(f"file:{home / 'a' / 'key'}", home)
    with pytest.raises(NoKey, match="is not a file"):
        find(f"file:{tmp_path}", home)


def test_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(db_key.VARIABLE, raising=False)
    with pytest.raises(NoKey, match="RLPROXY_STORE_KEY is not set"):
        find("env", tmp_path)
    monkeypatch.setenv(db_key.VARIABLE, KEY)
    found = find("env", tmp_path)
    assert found is not None and KEY in found.for_cipher
    assert find("", tmp_path) is None


def test_at_a_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoKey, match="no terminal"):
        find("prompt", tmp_path)
    said = iter(["a passphrase of mine", "a passphrase of mind", KEY, KEY, KEY])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda words: next(said))
    with pytest.raises(NoKey, match="not the same"):
        find_or_make("prompt", tmp_path)
    assert KEY in find_or_make("prompt", tmp_path)[0].for_cipher
    found = find("prompt", tmp_path)
    assert found is not None and KEY in found.for_cipher


def test_in_a_keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import keyring

    from scripts.fakes.keyring import FileKeyring

    before = keyring.get_keyring()
    keyring.set_keyring(FileKeyring(tmp_path / "ring.json"))
    try:
        with pytest.raises(NoKey, match="service rlproxy"):
            find("keyring", tmp_path / "home")
        made, new = find_or_make("keyring", tmp_path / "home")
        found = find("keyring", tmp_path / "home")
        assert new and found is not None and found.for_cipher == made.for_cipher
        with pytest.raises(NoKey):
            find("keyring", tmp_path / "another")
        keyring.set_keyring(FileKeyring(tmp_path / "ring.json", locked=True))
        with pytest.raises(NoKey, match="unlock it"):
            find("keyring", tmp_path / "home")
    finally:
        keyring.set_keyring(before)
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(MissingExtra, match="keyring is not installed"):
        find("keyring", tmp_path / "home")


def test_every_problem_is_one_sentence() -> None:
    for kind in (NoKey, MissingExtra):
        assert issubclass(kind, KeyProblem)
    assert os.environ.get(db_key.VARIABLE) is None, "a test run must not be given anybody's key"
