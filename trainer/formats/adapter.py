"""Writing an adapter folder: whole, verified and on disk, or not there at all.

Owns the write: a folder beside the target, every file and the folder synced, then one rename. Not here: what the
tensors are (policies), how the manifest is checked (manifest).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainer.formats import sidecar_files
from trainer.formats.manifest import FORMAT, MANIFEST, AdapterError, sha256, verify
from trainer.io.run_folder import sync_folder

READABLE = 0o022  # umask: the server that reads it may be another user; who gets so far is up to the folder around it


def write(out: Path, save: Callable[[Path], None], members: Mapping[str, Any]) -> dict[str, Any]:
    """`save` fills a folder, which then becomes `out`. Returns the manifest.

    An `out` that is there already is fine when this same run wrote it and was killed before it could say so. Else it is
    an error: a version is never replaced.
    """
    if out.exists():
        manifest = verify(out)
        if (manifest.get("run"), manifest.get("samples")) != (members.get("run"), members.get("samples")):
            raise AdapterError(f"{out} already holds the adapter of run {manifest.get('run')}.")
        return manifest
    umask = os.umask(READABLE)
    try:
        return _write(out, save, members)
    finally:
        os.umask(umask)


def _write(out: Path, save: Callable[[Path], None], members: Mapping[str, Any]) -> dict[str, Any]:
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        save(temporary)
        parts = sorted(p for p in temporary.iterdir() if p.is_file())
        manifest = {
            "format": FORMAT,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            **members,
            "files": {p.name: sha256(p) for p in parts if p.name not in sidecar_files.FILES},
            "kept": {p.name: sha256(p) for p in parts if p.name in sidecar_files.FILES},  # may be deleted
        }
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False), encoding="utf-8")
        for part in [*parts, temporary / MANIFEST]:
            if part.name not in sidecar_files.FILES:
                part.chmod(0o666 & ~READABLE)  # safetensors writes for its owner only, whatever the umask
            _sync(part)
        sync_folder(temporary)
        os.rename(temporary, out)
        sync_folder(out.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return manifest


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
