"""What pages show besides commands: settings that load, JSON that parses, commands in sentences, words in quotes."""

from __future__ import annotations

import ast
import configparser
import json
import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest
import yaml

from config.errors import SettingsError
from config.settings import load
from proxy.cli.init import answers
from tests.harness import docs_blocks
from tests.harness.docs_blocks import PAGES, ROOT, SHELL, Block, Wrong

# Blocks that nothing of ours reads.
UNREAD: Final = {
    "ts": "run by tests/test_rating_from_code.py",
    "nginx": "no nginx is here",
    "caddy": "no Caddy is here",
    "{include} README.md": "read by make docs",
    "{toctree}": "read by make docs",
}
PROGRAMS: Final = re.compile(r"\s*(\w+=\S+ )*(rlproxy|curl|pip|make|docker|vllm|ollama|git|npm|python) ")
BLOCKS: Final = [block for page in PAGES for block in docs_blocks.blocks(page)]
TROUBLE: Final = ROOT / "docs/guides/troubleshooting.md"


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language not in SHELL], ids=lambda b: b.where)
def test_a_block_is_what_it_says(block: Block, tmp_path: Path) -> None:
    check(block, tmp_path)


def check(block: Block, folder: Path) -> None:
    file = folder / "block.toml"
    match block.language:
        case "toml" if block.page == "docs/start/quick-start.md":
            file.write_text(block.text)
            assert answers.read(file).backend
        case "toml":
            file.write_text(block.text)
            loaded = load(file=file, environ={})
            assert any(source != "default" for source in loaded.sources.values()), f"{block.where} sets nothing"
        case "json":
            json.loads(block.text)
        case "yaml":
            yaml.safe_load(block.text)
        case "ini":
            configparser.ConfigParser().read_string(block.text)
        case "python":
            compile(block.text, block.where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        case "":  # a picture, a tree of files
            assert not any(PROGRAMS.match(line) for line in block.text.splitlines()), f"{block.where} has commands: sh"
        case language:
            assert language in UNREAD, f"{block.where}: nobody checks {language}"


@pytest.mark.parametrize(
    "block",
    [
        Block("page.md", 1, "toml", "[train]\nstart = 16\n"),
        Block("page.md", 1, "toml", "[train]\n# start_at = 16\n"),
        Block("page.md", 1, "json", '{"a": 1,}'),
        Block("page.md", 1, "python", "print 1"),
        Block("page.md", 1, "", "rlproxy status\n"),
        Block("page.md", 1, "cobol", "STOP RUN."),
    ],
    ids=lambda block: f"{block.language} {block.text[:12]!r}",
)
def test_what_is_not_what_it_says_is_found(block: Block, tmp_path: Path) -> None:
    with pytest.raises((SettingsError, ValueError, SyntaxError, AssertionError)):
        check(block, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_sentences_exist(page: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8"))
    for said in re.findall(r"`(?:[A-Z_]+=\S+ )?rlproxy ([a-z][^`]*)`", text):
        docs_blocks.named_rightly(said.split())


def test_a_command_in_a_sentence_that_is_none_is_found() -> None:
    docs_blocks.named_rightly(["keys", "create", "--name", "ANN"])
    for wrong in ("key list", "keys make", "rollback --to-base", "serve --hosts X"):
        with pytest.raises(Wrong):
            docs_blocks.named_rightly(wrong.split())


# What rlproxy says


@cache
def said() -> list[str]:
    """Every text in the code; what is filled in is …"""
    found = list[str]()
    for room in ("proxy", "store", "trainer", "config"):
        for file in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    found.append("".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return found


def is_said(quoted: str) -> bool:
    """Whether all pieces of it stand in one text, in this order."""
    pieces = [piece for piece in quoted.split("…") if piece.strip(" .:;")]
    return bool(pieces) and any(_in_order(pieces, text) for text in said())


def _in_order(pieces: list[str], text: str) -> bool:
    at = 0
    for piece in pieces:
        if (at := text.find(piece, at)) < 0:
            return False
        at += len(piece)
    return True


def test_what_troubleshooting_quotes_is_said() -> None:
    quoted = re.findall(r"“([^”]+)”", TROUBLE.read_text(encoding="utf-8"))
    assert len(quoted) > 50
    wrong = [text for text in quoted if text not in ("quotation marks", "/rl good") and not is_said(text)]
    assert not wrong
    assert not is_said("there are no stale ratings") and not is_said("…")


def test_links_to_headings_lead_somewhere() -> None:
    for page in PAGES:
        for target, heading in re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
            to = (page.parent / target) if target else page
            if to.suffix == ".md":
                assert heading in headings(to), f"{page.name} links to {target}#{heading}, which is not there"


def headings(page: Path) -> set[str]:
    """As GitHub makes anchors of them."""
    lines = re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8"))
    found = re.findall(r"^#+ (.*)$", lines, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", one).lower() for one in found]
    return {re.sub(r"[^\w\- ]", "", one).replace(" ", "-") for one in plain}
