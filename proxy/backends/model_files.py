"""Files that a model server names: which of them are opened, and how.

A server on another machine, or of another user, may name anything: a pipe, a device, or a link to
a private file. Owns the folders below which a named file is opened, and that only a regular file is.
All calls block: they belong in a thread. Not here: what the files say (gguf_head, sampling_defaults).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from config.sections import BackendSection

SMALL: Final = 2**22  # bytes of a config.json
# Where model servers keep their files, unless somebody chose otherwise.
USUAL: Final = (
    "~/.ollama/models", "/usr/share/ollama/.ollama/models", "/var/lib/ollama", "/var/lib/private/ollama",
    "~/.lmstudio/models", "~/.cache/lm-studio/models", "~/.cache/llama.cpp", "~/Library/Caches/llama.cpp",
    "~/.cache/huggingface/hub", "~/.cache/rlproxy/models",
)  # fmt: skip
# Variables by which their owners move them, and what follows the value.
MOVED: Final = (
    ("OLLAMA_MODELS", ""), ("LLAMA_CACHE", ""), ("HF_HUB_CACHE", ""), ("HF_HOME", "hub"),
    ("XDG_CACHE_HOME", "rlproxy/models"),
)  # fmt: skip
_is_hub_id: Final = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII).fullmatch


class ModelFolders:
    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = tuple(folders)

    @classmethod
    def of(cls, settings: BackendSection, weights: str = "") -> ModelFolders:
        """Those of the settings, and the usual ones. `weights`: as train.weights."""
        trained = Path(weights).expanduser()
        chosen = (settings.models_dir, trained if trained.is_absolute() else None)
        return cls([folder.expanduser() for folder in (*chosen, *_usual()) if folder is not None])

    def resolve(self, spec: str | Path) -> Path:
        """The file or folder itself, behind all links. Raises OSError where it is not below one of the folders."""
        path = Path(spec)
        real = Path(os.path.realpath(path))
        if path.is_absolute() and any(real.is_relative_to(os.path.realpath(folder)) for folder in self.folders):
            return real
        raise OSError(
            errno.EACCES, "it is not below a folder of models that the settings name: backend.models_dir is for that"
        )

    def holds(self, spec: str | Path) -> bool:
        try:
            self.resolve(spec)
        except (OSError, ValueError):  # the latter: no path at all
            return False
        return True

    def open(self, spec: str | Path) -> BinaryIO:
        """Raises OSError."""
        return open_regular(self.resolve(spec))

    def read_small(self, spec: str | Path) -> bytes:
        """Raises OSError."""
        with self.open(spec) as file:
            return _small(file)


def is_hub_id(spec: str) -> bool:
    """Tell whether this is `owner/name` and no path: the hub's own cache has its files."""
    return _is_hub_id(spec) is not None


def open_regular(path: Path) -> BinaryIO:
    """Raises OSError, also for what is not a regular file: opening a pipe waits, and a device may act."""
    _check(os.stat(path).st_mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check(os.fstat(descriptor).st_mode)  # it may have been replaced
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_small(path: Path) -> bytes:
    """Raises OSError."""
    with open_regular(path) as file:
        return _small(file)


def _check(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def _small(file: BinaryIO) -> bytes:
    content = file.read(SMALL + 1)
    if len(content) > SMALL:
        raise OSError(errno.EFBIG, f"it is over {SMALL} bytes")
    return content


def _usual() -> Iterator[Path]:
    yield from map(Path, USUAL)
    for variable, beyond in MOVED:
        if value := os.environ.get(variable):
            yield Path(value) / beyond
