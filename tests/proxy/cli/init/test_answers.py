"""The file of answers, and its page."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from proxy.cli.init.answers import Answers, BadAnswers, read

PAGE = Path(__file__).resolve().parents[4] / "docs/start/quick-start.md"


def test_the_example_of_the_page_has_every_key_and_is_read(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None and tomllib.loads(example[1]).keys() == Answers.model_fields.keys()
    (tmp_path / "a.toml").write_text(example[1])
    assert read(tmp_path / "a.toml").agents == ["claude-code"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.toml", "backend = ", "cannot be read"),
        ("a.json", "[1]", "should be a table"),
        ("a.json", "{", "cannot be read"),
        ("a.toml", "install = 1", "install in"),
        ("a.toml", 'agents = "codex"', "agents in"),
        ("a.toml", 'wieghts = "x"', "did you mean 'weights'"),
    ],
)
def test_what_is_no_answer(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadAnswers, match=said):
        read(tmp_path / name)
