"""Packages that this machine needs to train: which extra, the exact command, and how much it downloads.

Owns the choice of the extra and the trap of torch: for Linux, pip's usual torch is the build for NVIDIA GPUs, gigabytes
of them. So pip is asked first what it would take, the person sees it, and nothing is installed that nobody agreed to.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import urllib.request
from importlib import metadata
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from config import backend_kinds
from proxy.core.redirects import open_url

MODULES: Final = {
    "train": ("torch", "transformers", "peft", "safetensors", "gguf"),
    "mlx": ("mlx_lm", "transformers", "safetensors"),
    "gguf": ("gguf", "safetensors", "numpy"),
}
DRY_S: Final = 600.0  # some indexes let pip look into a package only by downloading it
HEAD_S: Final = 10.0


class CannotInstall(Exception):
    """One sentence: what went wrong, and what to do."""


class Download(NamedTuple):
    packages: list[str]  # as torch==2.13.0
    gb: float | None  # None: some index did not tell
    cuda: bool  # the build for NVIDIA GPUs is among them


def missing(kind: str, weights: str, accelerator: str) -> tuple[str, ...]:
    """The extras that these choices need and that are not here."""
    needed: tuple[str, ...] = ()
    if kind == "builtin":
        needed = ("train",)
    elif weights or backend_kinds.BACKENDS[kind].tells_weights:
        on_mlx = accelerator == "metal"
        needed = (("mlx", "gguf") if kind in backend_kinds.GGUF else ("mlx",)) if on_mlx else ("train",)
    return tuple(extra for extra in needed if any(find_spec(module) is None for module in MODULES[extra]))


def command(extras: tuple[str, ...]) -> list[str]:
    """pip finds rlproxy installed, asks no index for it, and takes what its metadata say of these extras.

    Raises CannotInstall.
    """
    names = ",".join(extras)
    pip = [sys.executable, "-P", "-m", "pip", "install"]
    try:
        metadata.version("rlproxy")
    except metadata.PackageNotFoundError:  # an index may have another one of that name
        raise CannotInstall(
            f"rlproxy is not installed in this environment; in its folder: {sys.executable} -m pip install -e "
            f"'.[{names}]'"
        ) from None
    if find_spec("pip") is None:
        raise CannotInstall(f"{sys.prefix} has no pip; install the extra {names} with what made this environment.")
    return [*pip, f"rlproxy[{names}]"]


def download(command: list[str]) -> Download:
    """Ask pip what it would take, without installing it. Raises CannotInstall."""
    dry = [*command, "--dry-run", "--quiet", "--report", "-"]
    try:
        completed = subprocess.run(dry, capture_output=True, text=True, timeout=DRY_S, stdin=subprocess.DEVNULL)
        report = json.loads(completed.stdout) if completed.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise CannotInstall(f"pip did not say what it would install ({error}).") from None
    if report is None:
        raise CannotInstall(f"pip cannot install it: {_last_line(completed.stderr)}")
    return _download(report)


def _download(report: dict[str, Any]) -> Download:
    install = report["install"]
    packages = [f"{item['metadata']['name']}=={item['metadata']['version']}" for item in install]
    sizes = [_size(item["download_info"]["url"]) for item in install]
    gb = None if None in sizes else sum(size or 0 for size in sizes) / 1e9
    cuda = any(name.lower().startswith(("nvidia-", "cuda-")) for name in packages)
    return Download(packages, gb, cuda)


def _size(url: str) -> int | None:
    """Size of the file that pip would get, as its server says; of a file here nothing is downloaded."""
    if url.startswith("file:"):
        return 0
    if not url.startswith(("https://", "http://")):
        return None
    try:
        request = urllib.request.Request(url, method="HEAD")  # noqa: S310 (scheme checked above)
        with open_url(request, HEAD_S) as response:
            return int(response.headers["content-length"])
    except (OSError, ValueError, TypeError):
        return None


def install(command: list[str]) -> None:
    """With pip's own progress bar, on stderr. Raises CannotInstall."""
    completed = subprocess.run(command, stdout=sys.stderr, stdin=subprocess.DEVNULL)
    importlib.invalidate_caches()
    if completed.returncode != 0:
        raise CannotInstall(
            f"pip ended with status {completed.returncode}; the settings are written, try the command again."
        )


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")
