"""What stands in the fenced blocks of README.md and docs/: found, cut into commands, and checked without running.

Owns which programs a page may name, and why those that are not run are not. Running the others is test_docs_commands'.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer.main

from config.settings import PREFIX, SECRETS, TABLES, fields
from proxy.cli.app import app

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
SHELL: Final = ("sh", "bash")
JOINS: Final = ("&&", "||", ";", "|")
COMMAND: Final[Any] = typer.main.get_command(app)
OUR_PORT: Final = re.compile(r"(127\.0\.0\.1|localhost):8484")
ASSIGNED: Final = re.compile(r"(\w+)=(.*)", re.DOTALL)

# Run as they stand, in a folder of the test's own.
PLAIN: Final = ("curl", "mkdir", "cp", "find", "du")
# Commands of ours that are not run with the others: what cannot be in a test of pages, and which tests run it.
ELSEWHERE: Final[Mapping[tuple[str, ...], str]] = {
    ("serve",): "it would not end; its settings are loaded and its backend made (test_server, test_loop run it)",
    ("init",): "it asks, and looks for real servers (tests/proxy/cli/init/test_command.py)",
    ("plan",): "it asks a hub for a model that is not here (tests/proxy/cli/test_plan.py)",
    ("chat",): "it needs a terminal (tests/proxy/cli/test_chat.py)",
    ("service", "install"): "it changes the login (tests/proxy/cli/service)",
    ("service", "remove"): "the same",
    ("service", "status"): "the same",
    ("service", "logs"): "the same",
}
# Programs of others, by the words that they begin with.
OTHERS: Final[Mapping[str, str]] = {
    "vllm serve": "a model server with a GPU",
    "python -m sglang.launch_server": "a model server with a GPU",
    "mlx_lm.server": "a model server (make test-backends)",
    "llama-server": "a model server (make test-backends)",
    "ollama": "a model server",
    "lms": "LM Studio's own command",
    "claude": "an agent (make test-agents)",
    "codex": "an agent (make test-agents)",
    "opencode": "an agent",
    "aider": "an agent",
    "llm": "an agent (make test-agents)",
    "git clone": "the network",
    "cd rlproxy": "what that brought",
    "docker compose": "containers; the file is linted in tests/test_deploy.py",
    "cp deploy/env.example deploy/.env": "it would write into this checkout",
    "rsync": "another machine",
    ". .venv/bin/activate": "an environment that `make setup` has made",
    "scripts/send_signed.py": "tests/scripts/test_send_signed.py runs it",
}


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


class Line(NamedTuple):
    """One line of a shell block, with the programs that it names."""

    where: str
    text: str
    programs: list[list[str]]  # words of each, with assignments before them


class Wrong(AssertionError):
    """A line or block that a reader could not use."""


def blocks(page: Path, text: str | None = None) -> list[Block]:
    found, begun, language = list[Block](), 0, ""
    lines = (page.read_text(encoding="utf-8") if text is None else text).splitlines()
    name = str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name
    for number, line in enumerate(lines, 1):
        if not line.startswith("```"):
            continue
        if begun:
            found.append(Block(name, begun, language, "\n".join(lines[begun : number - 1]) + "\n"))
            begun = 0
        else:
            begun, language = number, line.removeprefix("```").strip()
    return found


def commands(block: Block) -> Iterator[Line]:
    joined = re.sub(r"\\\n\s*", "", block.text)
    for text in joined.splitlines():
        words = shlex.split(text, comments=True)
        programs = [list[str]()]
        for word in words:
            if word in JOINS:
                programs.append([])
            else:
                programs[-1].append(word)
        if words:
            yield Line(block.where, text, programs)


def without_assignments(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    given: dict[str, str] = {}
    for at, word in enumerate(words):
        if (found := ASSIGNED.fullmatch(word)) is None:
            return given, list(words[at:])
        given[found[1]] = found[2]
    return given, []


# Ours, by the words alone


def found_in(words: Sequence[str]) -> tuple[tuple[str, ...], Any, list[str]]:
    """The command that these words name, and what is left of them. Raises Wrong."""
    command = COMMAND
    path, rest = tuple[str, ...](), list(words)
    while isinstance(getattr(command, "commands", None), dict):
        if not rest or rest[0] not in command.commands:
            raise Wrong(f"there is no command `rlproxy {' '.join([*path, *rest[:1]])}`")
        command, path, rest = command.commands[rest[0]], (*path, rest[0]), rest[1:]
    return path, command, rest


def parse(words: Sequence[str]) -> dict[str, Any]:
    """The values of its parameters, as the command itself would get them. Raises Wrong."""
    path, command, rest = found_in(words)
    try:
        found: dict[str, Any] = command.make_context(" ".join(path), rest).params
    except Exception as error:  # typer's own click, which has no public name
        raise Wrong(f"`rlproxy {' '.join(words)}`: {getattr(error, 'message', error)}") from None
    return found


def named_rightly(words: Sequence[str]) -> None:
    """For a command in a sentence, with names for values: it exists, and so does each option. Raises Wrong."""
    command = COMMAND
    rest = list(words)
    while isinstance(getattr(command, "commands", None), dict) and rest and not rest[0].startswith("-"):
        if rest[0] not in command.commands:
            raise Wrong(f"there is no command `rlproxy {' '.join(words)}`")
        command, rest = command.commands[rest[0]], rest[1:]
    known = {"--help", *(name for one in command.params for name in (*one.opts, *one.secondary_opts))}
    for word in rest:
        option = word.partition("=")[0]
        if option.startswith("-") and option not in known:
            raise Wrong(f"`rlproxy {' '.join(words)}`: there is no option {option}")


def check_variable(name: str) -> None:
    """Raises Wrong where a variable of ours is no setting."""
    if not name.startswith(PREFIX) or name in SECRETS or name == "RLPROXY_SIGNED_SECRET":
        return
    key = name.removeprefix(PREFIX).lower().replace("__", ".")
    if key not in fields() and not any(key.startswith(f"{table}.") for table in TABLES):
        raise Wrong(f"{name} is no setting's name in the environment")


# Others'


def check_other(words: Sequence[str]) -> None:
    """A program that is not run. Raises Wrong."""
    said = " ".join(words)
    if words[0] == "make":
        names = [word for word in words[1:] if "=" not in word]
        rules = (ROOT / "Makefile").read_text(encoding="utf-8")
        if missing := [name for name in names if not re.search(rf"^{re.escape(name)}:", rules, re.MULTILINE)]:
            raise Wrong(f"`{said}`: the Makefile has no {missing}")
    elif words[:2] == ["pip", "install"]:
        _check_extras(said)
    elif words[0] == "export":
        check_variable(words[1].partition("=")[0])
    elif words[0] == "curl":
        if not any(
            word.startswith(("https://slack.com/", "https://api.telegram.org/", "https://discord.com/"))
            for word in words
        ):
            raise Wrong(f"`{said}` asks neither rlproxy nor a platform's API")
    elif not any(said == known or said.startswith(f"{known} ") for known in OTHERS):
        raise Wrong(f"`{said}` is neither run nor known: run it in test_docs_commands, or say in OTHERS why not")
    elif words[0].startswith("scripts/") and not (ROOT / words[0]).exists():
        raise Wrong(f"there is no {words[0]}")


def _check_extras(said: str) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for names in re.findall(r"rlproxy\[([\w,]+)\]", said):
        for name in names.split(","):
            if not re.search(rf"^{name} = \[", project, re.MULTILINE):
                raise Wrong(f"`{said}`: there is no extra {name}")
