"""Is what the model could do still there? One program that is run, and three instructions that a program checks.

After CLaaS's evaluation; the wording is ours. The program runs in the child process of the user's own code (no secret
in its environment; bounded memory and time).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from proxy.core.own_code.child import OwnCode, OwnCodeFailed
from scripts.bench.exam.preferences import sentences

PROGRAM: Final = (
    "Write a Python function `fibonacci(n)` that returns the n-th Fibonacci number with a loop, without recursion."
)
TOKENS: Final = 256  # of a reply to one of these
TIMEOUT_S: Final = 5.0
MEMORY_MB: Final = 512
SEQUENCE: Final = (0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55)
FENCE: Final = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
NUMBERED: Final = re.compile(r"^[ \t]*\d+[.)][ \t]", re.MULTILINE)

INSTRUCTIONS: Final[dict[str, Callable[[str], bool]]] = {
    "Write exactly three sentences about the Moon.": lambda text: sentences(text) == 3,
    "List five reasons to read books, as a numbered list.": lambda text: len(NUMBERED.findall(text)) >= 5,
    "Explain what a loop is, without the word 'repeat'.": lambda text: bool(text) and "repeat" not in text.lower(),
}


async def measure(replies: dict[str, str]) -> dict[str, bool]:
    """Which tasks a model's replies solve. replies: by task, PROGRAM and each of INSTRUCTIONS."""
    solved = {task: check(replies[task]) for task, check in INSTRUCTIONS.items()}
    return {PROGRAM: await computes_fibonacci(replies[PROGRAM]), **solved}


async def computes_fibonacci(reply: str) -> bool:
    """True where its first block of code computes the sequence, counted from F(0) = 0 or from F(1) = 0."""
    block = FENCE.search(reply)
    with tempfile.TemporaryDirectory(prefix="exam-") as folder:
        file = Path(folder) / "program.py"
        file.write_text(block[1] if block else reply, encoding="utf-8")
        program = OwnCode(file, "fibonacci", timeout_s=TIMEOUT_S, memory_mb=MEMORY_MB, settings="exam.")
        try:
            computed = [(await program.call(n))[0] for n in range(1, len(SEQUENCE))]
        except OwnCodeFailed:
            return False
        finally:
            await program.stop()
    return computed in (list(SEQUENCE[1:]), list(SEQUENCE[:-1]))
