"""Results that a run would compute again after a stop: log-probs, a teacher's words. By content.

Owns the files in `cache/` of a run folder, sealed where the run has a key: they hold token ids. Not here: what they
mean (lessons, teacher).
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.io.encrypted_files import IN_THE_CLEAR, Seal


@dataclass(frozen=True, slots=True)
class Cache:
    folder: Path
    seal: Seal = IN_THE_CLEAR

    def get(self, name: str) -> bytes | None:
        path = self.folder / name
        return self.seal.read(path) if path.exists() else None

    def keep(self, name: str, data: bytes) -> None:
        """Whole, or not there."""
        self.folder.mkdir(exist_ok=True)
        self.seal.write(self.folder / name, data)

    def arrays(self, name: str) -> dict[str, npt.NDArray[Any]] | None:
        data = self.get(name)
        if data is None:
            return None
        with np.load(io.BytesIO(data)) as archive:
            return {key: archive[key] for key in archive.files}

    def keep_arrays(self, name: str, **arrays: npt.NDArray[Any]) -> None:
        out = io.BytesIO()
        np.savez(out, **arrays)  # type: ignore[arg-type]  # its stub takes the names for its own flag
        self.keep(name, out.getvalue())
