"""A loss of the user's own for a run: its file as it is now, for the run folder.

Not here: what the trainer does with it (trainer.own_loss).
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from config.sections import Train, own_function
from proxy.core.own_code import child
from proxy.core.own_code.child import OwnCodeFailed


class LossFile(NamedTuple):
    code: bytes
    spec: dict[str, Any]  # `loss` of run.json

    @property
    def choice(self) -> dict[str, Any]:
        """For the manifest."""
        return {"name": "train.loss", "value": self.spec["sha256"], "why": f"the sha256 of {self.spec['file']}"}


def read(train: Train) -> LossFile | None:
    """Read the file of train.loss; None if that setting is empty. Blocking. Raises OwnCodeFailed."""
    if (location := own_function(train.loss)) is None:
        return None
    file, function = location
    source = child.read(file)
    spec = {"file": str(file), "function": function, "sha256": source.hash, "timeout_s": train.loss_timeout_s}
    return LossFile(source.code, spec)


async def lacks(train: Train) -> str | None:
    """Why no run can have it; None where one can."""
    try:
        await asyncio.to_thread(read, train)
    except OwnCodeFailed as error:
        return f"train.loss: {error}"
    return None
