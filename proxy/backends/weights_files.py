"""The files that weights are read from, as one short text that changes when they do.

Owns the fingerprint. Not here: what a difference means (proxy.training.weights_check).
"""

from __future__ import annotations

import hashlib
from pathlib import Path


def fingerprint(weights: str) -> str:
    """Fingerprint of a folder: its files with their sizes and times. Of a hub id: its name. Blocking."""
    folder = Path(weights).expanduser()
    if not folder.is_dir():
        return weights
    files = sorted((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in folder.iterdir() if f.is_file())
    return f"{folder} {hashlib.sha256(repr(files).encode()).hexdigest()[:16]}"
