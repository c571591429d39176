"""The home folder is its owner's: what other users of the machine could read there is closed at the start.

Owns which names in a home are rlproxy's, and the modes of those that hold what people said. A folder that has other
things in it, a repository or a person's own home, is left as it is. Closing it could break what belongs to others. Then
only what is ours in it is closed. Not here: a home that cannot be made (start_errors).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

UMASK: Final = 0o077  # of a running proxy: what it makes is its owner's, but for adapters, which servers read
OTHERS_MODE: Final = 0o077
PRIVATE: Final = ("agents", "backups", "checks", "logs", "matrix", "runs", "tensorboard")  # folders
FILES: Final = (
    "rlproxy.db", "rlproxy.db-*", "rlproxy.db.*", "rlproxy.revoked", "rlproxy.forgotten", "rlproxy.lock",
    "rlproxy.toml*", ".rlproxy.toml*", "serving.json", ".serving.json", "service.env", "lmstudio*.json",
    ".lmstudio*.json.tmp", "ollama.json", ".ollama.json.tmp", "home-mark.json", ".home-mark.json.tmp",
    "watch.lock", "watch.skipped", ".watch.skipped", "watch.waiting", ".watch.waiting",
)  # fmt: skip
SERVED: Final = ("adapters_out", "gguf", "mlx")  # what a server of another user may have to read


def close(home: Path) -> Iterator[str]:
    """Closes it, with all in it that is ours; says what was changed, and what could not be."""
    try:
        with os.scandir(home) as entries:
            by_name = {entry.name: entry for entry in entries}
    except OSError as error:
        yield f"Who may read the home {home} could not be looked at ({error.strerror or error}); nothing was changed."
        return
    foreign = sorted(name for name in by_name if name not in (*PRIVATE, *SERVED) and not _is_file_of_ours(name))
    yield from _close_folder(home, foreign)
    for name, entry in sorted(by_name.items()):
        private = name in PRIVATE if entry.is_dir(follow_symlinks=False) else _is_file_of_ours(name)
        if private and not entry.is_symlink():  # where a link leads is not ours to say
            with contextlib.suppress(FileNotFoundError):  # it went meanwhile, as what is written anew does
                yield from _close_one(Path(entry.path))


def _is_file_of_ours(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in FILES)


def _close_folder(home: Path, foreign: list[str]) -> Iterator[str]:
    mode, owner = _mode(home), home.stat().st_uid
    if owner != os.geteuid():
        if mode & stat.S_IRWXO or owner != 0:
            yield (
                f"The home {home} belongs to another user (uid {owner}, mode {mode:04o}), who can read or replace "
                "what is in it. Only rlproxy's own files were closed. Use a folder of your own: --home FOLDER."
            )
    elif mode & OTHERS_MODE and foreign:
        yield (
            f"Other users can look into the home {home} (mode {mode:04o}). It was left so, since it has things that "
            f"are not rlproxy's ({', '.join(foreign[:3])}); only rlproxy's own files were closed. `chmod 700 {home}` "
            "closes it, or use a folder for rlproxy alone: --home FOLDER."
        )
    else:
        yield from _close_one(home)


def _close_one(path: Path) -> Iterator[str]:
    """For its owner only, if it is not so yet."""
    mode = _mode(path)
    if not mode & OTHERS_MODE:
        return
    reason = "the file system keeps no modes"
    try:
        path.chmod(mode & ~OTHERS_MODE)
    except OSError as error:
        reason = error.strerror or str(error)
    if _mode(path) & OTHERS_MODE:
        yield (
            f"Other users may read {path} (mode {mode:04o}), and that could not be changed ({reason}). It is used as "
            "it is; put the home where only you can read it: --home FOLDER."
        )
    else:
        closed = mode & ~OTHERS_MODE
        yield f"Other users could read {path} (mode {mode:04o}); it is closed to them now (mode {closed:04o})."


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
