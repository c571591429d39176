"""Running out of memory, as the frameworks and the system say it. Free of numpy and torch."""

from __future__ import annotations

from typing import Final

NO_MEMORY: Final = ("out of memory", "can't allocate memory", "cannot allocate memory")  # CUDA, torch's CPU, the system


class OutOfMemory(MemoryError):
    """This batch did not fit. The gradient of the step so far is gone; parameters and optimiser are as before."""


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether memory ran out. Python and we have a class for it; the frameworks, words."""
    message = str(error).lower()
    return isinstance(error, MemoryError) or any(words in message for words in NO_MEMORY)
