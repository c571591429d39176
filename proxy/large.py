"""Work on large bodies, off the event loop: 30 MB of pictures must not keep others waiting.

Owns what is large. Most requests are not, and a thread would cost them more than it saves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LARGE: Final = 1 << 20


async def off_loop(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`work` on so many bytes. It must not touch what the loop may change meanwhile."""
    return await off_loop_above(LARGE, size, work, *args, **kwargs)


async def off_loop_above(least: int, size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The same for work that takes longer a byte."""
    return work(*args, **kwargs) if size < least else await asyncio.to_thread(work, *args, **kwargs)
