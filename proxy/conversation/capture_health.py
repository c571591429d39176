"""Health of capture: the disk takes what is written, files can be opened, and no prompt was cut.

Owns these facts; `status` tells them. Not here: the writing itself (capture).
"""

from __future__ import annotations

from collections import deque

from proxy.conversation.cut_prompts import CutPrompts
from proxy.core.sharing.fd_limits import Files


class Health:
    """Health of the disk, which must take what is captured, and the system gives files; `problem` is for `status`."""

    problem: str | None = None

    def __init__(self, longer: str = "") -> None:
        """`longer`: how a server of this kind is given a longer context."""
        self.files = Files()
        self.cut = CutPrompts(longer)
        self.turns = 0  # main turns answered since the start
        self.lost: deque[str] = deque(maxlen=10_000)  # begun, perhaps, and not ended: the disk did not take it
