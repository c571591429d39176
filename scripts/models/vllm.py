"""Tiny models in a real vLLM on a CPU, with an adapter and without: `python -m scripts.models --server vllm`.

Owns the row of each kind: what vLLM said against transformers and PEFT, or the words in which it refused. All kinds go
through one process of vLLM's own environment (scripts/setup_vllm), which is started again where one of them ended it.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from scripts.models import tiny
from scripts.models.reference import PROMPTS, Reference, row
from trainer.formats.weights import cache_folder

PYTHON: Final = cache_folder() / "venvs" / "vllm" / "bin" / "python"
WORKER: Final = Path(__file__).with_name("vllm_worker.py")
SILENT_S: Final = 900  # for one model on a busy machine


def rows(kinds: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One for each kind, in the order in which they are done."""
    with tempfile.TemporaryDirectory(prefix="vllm-models-") as name:
        root = Path(name)
        (root / "prompts.json").write_text(json.dumps(PROMPTS))
        references: dict[str, Reference] = {}
        for kind in kinds:
            try:
                tokenizer = cache_folder() / "models" / "SmolLM2-135M-Instruct"
                base = tiny.make(kind, root / kind / "base", tokenizer=tokenizer, wide=True)
                references[kind] = Reference.make(kind, base, root / kind / "adapter", "vllm")
            except Exception as error:  # of one kind; the others are still to be tried
                yield {"kind": kind, "error": str(error)}
        remaining = list(references)
        while remaining:
            count = len(remaining)
            for answer in _answers(root, remaining):
                remaining.remove(answer["kind"])
                yield row(references[answer["kind"]], answer)
            if remaining and len(remaining) == count:
                yield {"kind": remaining.pop(0), "error": "vLLM's process ended without a word"}


def _answers(root: Path, kinds: Sequence[str]) -> Iterator[dict[str, Any]]:
    command = [str(PYTHON), "-P", str(WORKER), str(root), *kinds]  # -P: this folder has a vllm.py, too
    with (root / "vllm.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        try:
            for line in process.stdout:
                yield json.loads(line)
        finally:
            process.kill()
            process.wait()
