"""The commands of README.md and docs/start/quick-start.md, as they stand there, for the replay.

Owns how they are found. Each command of the README's quick start must have a part in the replay. A page that says more,
or less, than what is replayed is an error here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
README, PAGE = "README.md", "docs/start/quick-start.md"
SECTION: Final = "## 60 seconds"

# What a command begins with, and its part.
PARTS: Final = {
    "clone": "git clone <this repository>",
    "demo": "make demo",
    "setup": "make setup",
    "init": "rlproxy init",
    "serve": "rlproxy serve",
    "ask": "curl -s http://127.0.0.1:8484/v1/chat/completions",
    "bad": "rlproxy bad",
    "good": "rlproxy good",
    "status": "rlproxy status",
    "other server": "rlproxy serve --backend",
    "new terminal": "cd rlproxy && . .venv/bin/activate",
    "train": "rlproxy train",
    "versions": "rlproxy adapters",
    "answers": "rlproxy answers",
}


class PageError(Exception):
    """The pages do not say what is to be done; one sentence."""


def blocks(text: str) -> list[list[str]]:
    """The commands of each `sh` block: lines that end in a backslash go on, comments and empty lines are none."""
    command_blocks = []
    for block in re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        lines = block.replace("\\\n", "\\\0").splitlines()
        commands = [re.sub(r"\s+# .*$", "", line).replace("\0", "\n").strip() for line in lines]
        command_blocks.append([command for command in commands if command and not command.startswith("#")])
    return command_blocks


def section(text: str, heading: str) -> str:
    if f"\n{heading}\n" not in text:
        raise PageError(f"{README} has no section {heading!r}.")
    return text.split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0]


def part(command: str) -> str:
    """Which part a command has; the longest beginning that fits."""
    fits = [name for name, begins in PARTS.items() if command.startswith(begins)]
    if not fits:
        raise PageError(f"No quick start replays this command of the pages: {command}")
    return max(fits, key=lambda name: len(PARTS[name]))


class Pages:
    def __init__(self, root: Path = ROOT) -> None:
        """Raises PageError."""
        readme = (root / README).read_text(encoding="utf-8")
        page = (root / PAGE).read_text(encoding="utf-8")
        self._commands: dict[str, str] = {}
        for command in (c for text in (section(readme, SECTION), page) for block in blocks(text) for c in block):
            self._commands.setdefault(part(command), command)

    def __getitem__(self, name: str) -> str:
        if name not in self._commands:
            raise PageError(f"Neither {README} ({SECTION[3:]}) nor {PAGE} has the step {PARTS[name]!r}.")
        return self._commands[name]
