"""The replay of the quick starts takes its commands from the pages, and fails where a step is missing or too many."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.quickstart.pages import PAGE, PARTS, README, ROOT, PageError, Pages, blocks, part
from scripts.quickstart.terminal import Failed, Terminal


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A copy of them, to be damaged."""
    for page in (README, PAGE):
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / page, tmp_path / page)
    return tmp_path


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    one = Terminal(tmp_path, {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": str(tmp_path)})
    yield one
    one.close()


def changed(page: Path, old: str, new: str) -> None:
    text = page.read_text()
    assert old in text
    page.write_text(text.replace(old, new))


def test_every_step_is_in_the_pages() -> None:
    found = Pages()
    for name in PARTS:
        assert found[name].startswith(PARTS[name])
    assert found["setup"] == "make setup && . .venv/bin/activate"
    assert found["ask"].count("\n") == 1 and '"Why is the sky blue?"' in found["ask"]


@pytest.mark.parametrize(
    ("page", "line", "name"),
    [
        (README, "make setup && . .venv/bin/activate\n", "setup"),
        (README, "rlproxy serve        # a small model on the CPU, answering at http://127.0.0.1:8484/v1\n", "serve"),
    ],
)
def test_a_step_that_is_missing_is_named(pages: Path, page: str, line: str, name: str) -> None:
    changed(pages / page, line, "")
    with pytest.raises(PageError, match=name if name == "serve" else PARTS[name]):
        Pages(pages)[name]


def test_a_step_that_both_pages_lack_is_named(pages: Path) -> None:
    changed(pages / README, "cd rlproxy && . .venv/bin/activate   # in each new terminal\n", "")
    assert Pages(pages)["new terminal"]
    changed(pages / PAGE, "cd rlproxy && . .venv/bin/activate\n", "")
    with pytest.raises(PageError, match=PARTS["new terminal"]):
        Pages(pages)["new terminal"]


def test_a_command_that_nobody_replays_is_an_error(pages: Path) -> None:
    changed(pages / README, "make demo  ", "make tea\nmake demo  ")
    with pytest.raises(PageError, match="make tea"):
        Pages(pages)


def test_a_section_that_is_gone_is_an_error(pages: Path) -> None:
    changed(pages / README, "\n## 60 seconds\n", "\n## A minute\n")
    with pytest.raises(PageError, match="60 seconds"):
        Pages(pages)


def test_comments_and_long_lines() -> None:
    text = "```sh\n# first\na --b \\\n  c   # why\n\nd '#e'\n```\n\n```toml\nnone = 1\n```\n\n```sh\nf\n```\n"
    assert blocks(text) == [["a --b \\\n  c", "d '#e'"], ["f"]]
    assert part("rlproxy serve") == "serve" and part("rlproxy serve --backend vllm") == "other server"


def test_what_is_typed_lasts_and_what_fails_is_said(terminal: Terminal) -> None:
    terminal.run("mkdir there && cd there && export SAID=yes")
    assert terminal.run("pwd; echo $SAID", shows="yes").splitlines()[0].endswith("/there")
    with pytest.raises(Failed, match="ended with 3: so it is"):
        terminal.run("echo so it is; (exit 3)")
    with pytest.raises(Failed, match="did not show 'tea'"):
        terminal.run("echo coffee", shows="tea")
    with pytest.raises(Failed, match="nothing more within"):
        terminal.run("sleep 30", limit_s=0.2)


def test_nothing_of_the_own_environment_is_there(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLPROXY_SERVER__PORT", "1")
    assert "RLPROXY" not in terminal.run("env")


def test_one_that_stays_is_ended_by_ctrl_c(terminal: Terminal) -> None:
    terminal.begin("sh -c 'trap \"echo bye; exit 0\" INT; echo up; while :; do sleep 0.1; done'", shows="up")
    terminal.interrupt()
    terminal.run("true")
    with pytest.raises(Failed, match="did not show 'up'"):
        terminal.begin("echo down", shows="up")
