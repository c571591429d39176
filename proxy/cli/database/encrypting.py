"""`rlproxy encrypt` and `decrypt`: a home folder from the clear to encrypted and back, with no rlproxy running.

Owns the order, so that a kill anywhere leaves what the same command finishes. To encrypt: the setting, the database,
its copies, what `rlproxy eval` has kept, run folders. Back again: run folders, the database, its copies, the setting.
Not here: files of the store (store.copies.encryption), what a sealed file looks like (trainer.io.encrypted_files), what
is printed (encrypt).
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from config.settings import FILE_NAME, Settings
from proxy.checks import answers
from proxy.cli.agents.paths import UnreadableSettings
from proxy.cli.agents.toml_text import drop, parse, set_value
from proxy.training import run_folder
from store.copies import encryption
from store.errors import KeyProblem, NoKey, StoreError
from store.file import conversion, db_key, driver, run_keys, schema
from store.file.conversion import Progress
from store.file.db_key import Secret
from trainer.launch import IN_THE_CLEAR, Seal, SealError, is_sealed, sealing_lacks

MEANWHILE: Final = "cache"  # of a run that has not ended; it is made again


@dataclass
class Report:
    key_from: str
    key_made: bool = False  # just now
    was: bool | None = None  # encrypted before; None where there was no database
    files: list[str] = field(default_factory=list)
    runs: int = 0  # folders
    evaluations: int = 0  # files of `rlproxy eval` that are gone: an encrypted home keeps none
    failures: dict[str, str] = field(default_factory=dict)
    setting: str | None = None  # where the setting is still to be changed by hand


def encrypt(settings: Settings, source: str, progress: Progress) -> Report:
    """Raises StoreError."""
    source = source or settings.store.key_from
    home = settings.home
    if not source:
        raise NoKey(
            "Say where the key is to be kept: `rlproxy encrypt --key keyring`, `--key file:PATH` (made if it is not "
            "there), `--key prompt` or `--key env`; nothing was changed."
        )
    driver.sqlcipher()
    if (reason := sealing_lacks()) is not None:
        raise KeyProblem(f"{reason}; nothing was changed.")
    with encryption.owned(home):
        was_encrypted = encryption.is_encrypted(home)
        secret, key_is_new = (db_key.find(source, home), False) if was_encrypted else db_key.find_or_make(source, home)
        assert secret is not None, "there is a source"
        report = Report(source, key_is_new, was_encrypted)
        original = _write_setting(settings, source)
        try:
            conversion_report = encryption.encrypt(home, secret, progress)
        except BaseException:
            if not encryption.is_encrypted(home):
                _restore_settings(home, original)
            raise
        _take(report, conversion_report)
        report.evaluations = _wipe_evaluations(home, report)
        if not driver.is_new(home / schema.NAME):
            report.runs = _runs(home, secret, progress, report, sealed=True)
            if report.files or report.runs:
                encryption.note(home, "encrypt", secret)
    return report


def decrypt(settings: Settings, progress: Progress) -> Report:
    """Raises StoreError."""
    source, home = settings.store.key_from, settings.home
    if not source:
        raise NoKey("store.key_from names no key, so nothing here is known to be encrypted; nothing was changed.")
    with encryption.owned(home):
        secret = db_key.find(source, home)
        assert secret is not None, "there is a source"
        report = Report(source, was=encryption.is_encrypted(home))
        if report.was:
            report.runs = _runs(home, secret, progress, report, sealed=False)
            if not report.failures:
                _drop_run_keys(home, secret)
        if any(str(name).startswith(str(home / "runs")) for name in report.failures):
            raise StoreError(f"{next(iter(report.failures.values()))} Nothing else was decrypted.")
        _take(report, encryption.decrypt(home, secret, progress))
        if report.files or report.runs:
            encryption.note(home, "decrypt", None)
        report.setting = _remove_setting(settings)
    return report


def _take(report: Report, conversion_report: encryption.ConversionReport) -> None:
    report.files += [str(path) for path in conversion_report.files]
    report.failures |= {str(path): reason for path, reason in conversion_report.failures.items()}


def _wipe_evaluations(home: Path, report: Report) -> int:
    """Answers and results that were kept while the home was in the clear; how many files."""
    count = 0
    for file in sorted((home / answers.FOLDER).rglob("*")):
        if not file.is_file() or file.is_symlink():
            continue
        try:
            conversion.wipe(file)
        except OSError as error:
            report.failures[str(file)] = str(error)
        else:
            count += 1
    return count


def _runs(home: Path, secret: Secret, progress: Progress, report: Report, *, sealed: bool) -> int:
    """Run folders to the other form; how many there were to do."""
    count = 0
    with closing(driver.connect(home / schema.NAME, secret, with_names=True)) as db:
        db.execute("PRAGMA synchronous = FULL")
        for folder in sorted((home / "runs").glob("r*")):
            number = folder.name[1:]
            run_folder.settle(folder)
            files = [folder / name for name in run_folder.TEXTS if (folder / name).is_file()]
            todo = [file for file in files if is_sealed(file) != sealed]
            clear = sealed and (folder / MEANWHILE).is_dir()
            if not number.isdecimal() or not (todo or clear):
                continue
            progress(folder, "copy", 0.0)
            try:
                if run_folder.is_running(folder):
                    raise OSError("a trainer is still at work in it; wait until it has ended, and do this again")
                seal = Seal(run_keys.of(db, int(number)))
                for file in todo:
                    _turn(file, seal, sealed=sealed)
                for file in (folder / MEANWHILE).glob("*") if clear else ():
                    if not is_sealed(file):
                        conversion.wipe(file)
            except (OSError, SealError) as error:
                report.failures[str(folder)] = str(error)
                continue
            count += 1
    return count


def _drop_run_keys(home: Path, secret: Secret) -> None:
    with closing(driver.connect(home / schema.NAME, secret)) as db:
        db.execute("PRAGMA secure_delete = ON")
        run_keys.drop_all(db)


def _turn(file: Path, seal: Seal, *, sealed: bool) -> None:
    data = seal.read(file)
    old = file.with_name(f".{file.name}{conversion.OLD}")
    if sealed:
        old.hardlink_to(file)
    (seal if sealed else IN_THE_CLEAR).write(file, data)
    if sealed:
        conversion.wipe(old)


# The setting


def _write_setting(settings: Settings, source: str) -> str | None:
    """Write it down where it is not so yet; the text of the file before."""
    path = settings.home / FILE_NAME
    original = path.read_text(encoding="utf-8") if path.exists() else None
    if settings.store.key_from != source:
        try:
            _write(path, set_value(original or "", ("store", "key_from"), source))
        except UnreadableSettings as error:
            raise NoKey(
                f"{path} cannot be changed ({error}); set store.key_from yourself. Nothing was changed."
            ) from None
    return original


def _restore_settings(home: Path, original: str | None) -> None:
    path = home / FILE_NAME
    if original is None:
        path.unlink(missing_ok=True)
    elif path.read_text(encoding="utf-8") != original:
        _write(path, original)


def _remove_setting(settings: Settings) -> str | None:
    """Take it out of the home's own file; or say where it is."""
    path = settings.home / FILE_NAME
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if not parse(text).get("store", {}).get("key_from"):
        return "the environment or another settings file"
    _write(path, drop(text, ("store", "key_from")))
    return None


def _write(path: Path, text: str) -> None:
    IN_THE_CLEAR.write(path, text.encode())
