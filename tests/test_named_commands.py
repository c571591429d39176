"""Commands and routes that a message, a page, or a docs page names: each exists, is used rightly, and opens.

The fenced blocks of docs are run elsewhere (test_docs_commands). Here are the words in between, and those that rlproxy
itself says: string literals of its modules, and the templates and scripts of its page.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

from proxy.cli.app import app
from proxy.web.route_table import ROUTES
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy

ROOT = Path(__file__).resolve().parents[1]
COMMAND: Any = typer.main.get_command(app)
PACKAGES = ("proxy", "store", "trainer", "config", "scripts")
NAMED = re.compile(r"`rlproxy ([a-z][^`]*)`")
HOLE = "1"  # where a message has a value: a number is a name, too
# Not a command line: what stands for several, or for a part of one.
SHORTHAND = re.compile(r"[…|*]|\.\.\.| and ")
ROUTE = re.compile(r"\b(GET|POST|DELETE|PATCH) (/[\w/{}.-]*[\w}])")
LINK = re.compile(r"""(href|action|hx-get|hx-post)=["'](/[^"'#?]*)""")
POSTED = re.compile(r"""<form[^>]*method="post"[^>]*action="(/[^"#?]*)""")
NOT_OURS = (
    "/api/",
    "/health",
    "/v1/messages/batches",
    "/lora",
    "/props",
    "/slots",
    "/models",
    "/tokenize",
    "/apply-template",
)
# What is not run here, since it would not end, asks a person, or changes this machine.
NOT_RUN = {
    "serve",
    "init",
    "plan",
    "chat",
    "watch",
    "service",
    "connect",
    "disconnect",
    "encrypt",
    "decrypt",
    "stop",
    "restore",
    "status --watch",
    "import open-webui",
    "import openclaw-rl",
    "report",  # it writes into the folder that it is run in
}


class Mention(NamedTuple):
    text: str
    place: str


def literals(file: Path) -> Iterator[Mention]:
    """String literals, those that stand together as one; a value in an f-string is HOLE."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                part.value if isinstance(part, ast.Constant) else HOLE
                for part in node.values  # type: ignore[misc]
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        yield Mention(text, f"{file.relative_to(ROOT)}:{node.lineno}")


def mentions() -> Iterator[Mention]:
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            yield from literals(file)
    pages = ROOT / "proxy/web/pages"
    for file in (*pages.rglob("*.html"), *pages.rglob("*.js"), *ROOT.glob("integrations/*/README.md"),
                 *ROOT.glob("docs/[!l]*/**/*.md"), ROOT / "README.md"):  # fmt: skip
        text = re.sub(r"^```.*?^```", "", file.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        yield Mention(re.sub(r"\{\{.*?\}\}", HOLE, text), str(file.relative_to(ROOT)))


def commands() -> dict[str, str]:
    """By what is typed after `rlproxy`; each with the first place that names it."""
    named: dict[str, str] = {}
    for text, place in mentions():
        for match in NAMED.finditer(text):
            named.setdefault(" ".join(match[1].split()), place)
    return {line: place for line, place in named.items() if not SHORTHAND.search(line)}


def values(words: list[str]) -> list[str]:
    """Words in capitals stand for what a person has: a number is a name, a version and an amount."""
    return [re.sub(r"(?<![\w-])[A-Z][A-Z_.]+\b", HOLE, word) for word in words]


def context(line: str) -> tuple[str, list[str]]:
    """The command's name and its words. Raises click's errors where it is wrong use, KeyError where there is none."""
    words, group, path = values(shlex.split(line)), COMMAND, []
    while (
        words
        and hasattr(group, "commands")
        and (
            words[0] in group.commands
            or not hasattr(group, "invoke_without_command")
            or not group.invoke_without_command
        )
    ):
        group = group.commands[words[0]]
        path.append(words.pop(0))
    return " ".join(path), words


COMMANDS = commands()


@pytest.mark.parametrize("line", sorted(COMMANDS))
def test_a_command_that_is_named_exists(line: str) -> None:
    """A name alone speaks of the command; with words after it, they are what one types."""
    try:
        path, words = context(line)
    except (KeyError, ValueError) as error:
        pytest.fail(f"{COMMANDS[line]} names `rlproxy {line}`, and there is no {error}")
    command = COMMAND
    for name in path.split():
        command = command.commands[name]
    flags = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)} | {"--help"}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in flags]
    assert not unknown, f"{COMMANDS[line]} names `rlproxy {line}`, and {path} has no {unknown}"
    takes = sum(1 if param.nargs != -1 else 99 for param in command.params if param.param_type_name == "argument")
    if not any(word.startswith("-") for word in words):
        assert len(words) <= takes, f"{COMMANDS[line]} names `rlproxy {line}`, and {path} takes {takes} words"


def whole(line: str) -> bool:
    """Tell whether it can be run as it stands: nothing in it stands for something or is a file
    (it would lie in this tree), and nothing lasts."""
    return not re.search(r"\b[A-Z]+\b|\b1\b|/|\.\w", line) and not any(
        line == name or line.startswith(f"{name} ") for name in NOT_RUN
    )


async def test_commands_that_are_named_whole_are_run(cli: Proxy) -> None:
    await cli.chat("hello")
    wrong = {}
    for line in sorted(filter(whole, COMMANDS)):
        path, words = context(line)
        if _lacks_words(path, words):  # it speaks of the command
            continue
        code, _, err = await rlproxy(cli.home, *path.split(), *words)
        if code not in (0, 1) or "Traceback" in err:
            wrong[line] = (COMMANDS[line], code, err)
    assert wrong == {}


def _lacks_words(path: str, words: list[str]) -> bool:
    """Tell whether something has to be said that is not: a group's command, an argument, an option's value."""
    try:
        _command(path).make_context(path, list(words))
    except Exception as error:  # typer's own click, which has no public name
        return type(error).__name__ in ("NoArgsIsHelpError", "MissingParameter", "BadOptionUsage")
    return False


def _command(path: str) -> Any:
    command = COMMAND
    for name in path.split():
        command = command.commands[name]
    return command


def matches(method: str, path: str) -> bool:
    for row in ROUTES:
        pattern = re.sub(
            r"\{[^}]*\}", "[^/]+", row.path.replace("{rest:(?!feedback(?:/|$)).*}", ".+").replace("{rest:.*}", ".+")
        )
        named = re.sub(r"\{[^}]*\}", HOLE, path)
        if row.method in (method.lower(), "*") and re.fullmatch(pattern, named):
            return True
    return False


def routes() -> dict[tuple[str, str], str]:
    """Method and path, with the first place that names them."""
    named: dict[tuple[str, str], str] = {}
    for text, place in mentions():
        if place.startswith(("proxy/backends", "trainer", "scripts", "docs/lab", "docs/reference/backends")):
            continue  # those are routes of model servers
        for method, path in ROUTE.findall(text):
            named.setdefault((method, path), place)
        posted = POSTED.findall(text)
        for attribute, path in LINK.findall(text) if place.startswith("proxy/web/pages") else ():
            method = "POST" if attribute == "hx-post" or (attribute == "action" and path in posted) else "GET"
            named.setdefault((method, path), place)
    return {key: place for key, place in named.items() if not key[1].startswith(NOT_OURS)}


@pytest.mark.parametrize(("method", "path"), sorted(routes()))
def test_a_route_that_is_named_exists(method: str, path: str) -> None:
    assert matches(method, path), f"{routes()[method, path]} names {method} {path}, and there is no such route"


async def test_routes_that_are_named_open(proxy: Proxy) -> None:
    await proxy.chat("hello")
    wrong = {}
    not_there_yet = r"/rl/retrain$"  # none has been begun
    for (method, path), place in routes().items():
        if method == "GET" and not re.search(
            rf"[{{}}A-Z]|\b1\b|/v1/responses|/rl/webhooks|/rl/events|{not_there_yet}", path
        ):
            async with proxy.http.get(path) as response:
                if response.status in (404, 405) or response.status >= 500:
                    wrong[path] = (place, response.status)
    assert wrong == {}
