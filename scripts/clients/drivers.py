"""The drivers of `make test-clients`: what stands at the head of each, and where its client is installed.

Owns the header (PEP 723 with a table `tool.client`, behind `#` or `//`) and the environments' places. Not here: what
installs them (install), what a conversation with them looks like (tests/clients).
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scripts.harness.circumstances import ROOT

FOLDER: Final = ROOT / "tests/clients/drivers"
TALKING: Final = ROOT / "tests/clients/talking"
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rlproxy/clients"
TOOLS: Final = CACHE / "tools"  # uv, and the Node that the newest of these clients want
WAYS: Final = {
    "chat": ("chat",),
    "responses": ("responses native", "responses translated"),
    "messages": ("messages native", "messages translated"),
    "ollama": ("ollama native", "ollama translated"),
}
# Of a driver's table `side`. `asks`: what the client asks for itself, in words. `types`: what a person types in it to
# have the conversation summed up. `answers`: whether it then goes on with one more answer for its person. `tokens`: how
# many the backend says it has read, so that the client sums up by itself. `tool`: its tool for a subagent, like `tool`.
# `rate`: how a command begins, where it is another program then.
SIDE: Final = frozenset({"asks", "types", "answers", "tokens", "tool", "rate"})
_HEAD: Final = re.compile(r"\A(#|//) /// script\n(?P<toml>(?:\1(?: .*)?\n)+?)\1 ///\n")


@dataclass(frozen=True)
class Driver:
    """One client. `lacks`: for each cell that cannot work, why, as its client has it."""

    file: Path
    name: str
    formats: list[str]
    pypi: list[str]
    npm: dict[str, str]
    crates: dict[str, str] = field(default_factory=dict)  # programs that cargo builds
    python: str = ""  # the least version that it wants, where that is not ours
    lacks: dict[str, str] = field(default_factory=dict)
    rate: str = "/rl "  # how a command begins in it
    answer: dict[str, Any] = field(default_factory=lambda: {"says": "{}"})  # what the model says in its format
    tool: dict[str, Any] = field(default_factory=lambda: {"calls": "look", "arguments": {"place": "{}"}})
    side: dict[str, Any] = field(default_factory=dict)  # what else it asks, beside what its user said: SIDE

    @property
    def id(self) -> str:
        return self.file.stem

    @property
    def home(self) -> Path:
        """Its environment."""
        return CACHE / self.id

    @property
    def packages(self) -> list[str]:
        return [*(f"{name}@{version}" for name, version in {**self.npm, **self.crates}.items()), *self.pypi]

    @property
    def version(self) -> str:
        """The version of the client itself, which stands first."""
        return re.split(r"==|(?<!^)@", self.packages[0])[-1]

    @property
    def mark(self) -> str:
        """A hash of the packages that the environment is made from."""
        return hashlib.sha256("\n".join(self.packages).encode()).hexdigest()

    @property
    def installed(self) -> bool:
        stamp = self.home / ".made-from"
        return stamp.exists() and stamp.read_text() == self.mark

    @property
    def ways(self) -> list[str]:
        return [way for format in self.formats for way in WAYS[format]]

    def lack(self, cell: str, way: str) -> str | None:
        """Why this cannot work, in this format."""
        return self.lacks.get(f"{way.split()[0]}.{cell}", self.lacks.get(cell))


def read(file: Path) -> Driver:
    """Raises SystemExit where its head says something else."""
    head = _HEAD.match(file.read_text(encoding="utf-8"))
    if head is None:
        raise SystemExit(f"{file} has no head: `# /// script`, its packages, `[tool.client]`, `# ///`.")
    lines = (line.removeprefix(head[1]).removeprefix(" ") for line in head["toml"].splitlines())
    metadata = tomllib.loads("\n".join(lines))
    about = metadata["tool"]["client"]
    python = metadata.get("requires-python", "").removeprefix(">=")
    return Driver(file, pypi=metadata.get("dependencies", []), npm=about.pop("npm", {}), python=python, **about)


def drivers() -> list[Driver]:
    return [read(file) for file in sorted(FOLDER.iterdir()) if file.suffix in (".py", ".mjs")]
