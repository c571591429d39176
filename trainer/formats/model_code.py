"""Python code that comes in a model's folder: none runs, unless a person has named this very model.

Owns what transformers is told about it, and the sentence where it would have to run. `trust` holds for this process.
Source: transformers' `trust_remote_code`. Not here: the setting (config.sections).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

WARNING: Final = "set (train.trust_remote_code): code in the model's folder runs here with your rights, unchecked"
_trusted: set[Path] = set()


def trust(weights: Path) -> None:
    """From here on the code in this folder may run in this process."""
    _trusted.add(weights.resolve())


def options(weights: Path) -> dict[str, bool]:
    """Arguments of each `from_pretrained`. Left out, transformers would ask on the terminal."""
    return {"trust_remote_code": weights.resolve() in _trusted}


def refusal(weights: Path, error: Exception) -> str | None:
    """The sentence for a model that did not load because its code may not run; None where that is not why."""
    if options(weights)["trust_remote_code"] or "trust_remote_code" not in str(error):
        return None
    code = json.loads((weights / "config.json").read_bytes()).get("auto_map")
    files = ", ".join(sorted({f"{str(name).split('.')[0]}.py" for name in code.values()})) if code else "its own code"
    return (
        f"{weights} is a kind of model that only {files} in its folder can load, and rlproxy runs no code of a model. "
        "Read that code; where you trust it, add the model to train.trust_remote_code, as train.weights names it."
    )
