"""Files of checks that are taken, and the sentence about each one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.checks.checks_file import ChecksError, read

EXAMPLE = Path(__file__).resolve().parents[3] / "config" / "checks.example.toml"
SOUND = """
[[prompt]]
name = "a"
text = "Hello"
tags = ["greeting"]

[[check]]
name = "short"
kind = "length"
max_words = 5
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "checks.toml"
    file.write_text(text)
    return file


def test_the_example_is_sound() -> None:
    suite = read(EXAMPLE)
    assert [check.kind for check in suite.check] == ["regex", "length", "schema", "tool"]
    assert suite.prompt[0].conversation == [{"role": "user", "content": "How do I get my money back?"}]


def test_what_the_example_leaves_to_be_uncommented_is_sound(tmp_path: Path) -> None:
    lines = EXAMPLE.read_text().splitlines()
    uncommented = [
        line.removeprefix("# ")
        if line.startswith(
            ("# [", "# name", "# kind", "# function", "# criterion", "# count", "# trained", "# session")
        )
        else line
        for line in lines
    ]
    suite = read(written(tmp_path, "\n".join(uncommented)))
    assert [check.kind for check in suite.check][-2:] == ["python", "judge"]
    assert suite.captured is not None and suite.captured.count == 80 and suite.episodes is not None


def test_a_file_says_where_it_is_and_what_it_was(tmp_path: Path) -> None:
    suite = read(written(tmp_path, SOUND))
    assert (suite.name, suite.folder) == ("checks.toml", tmp_path)
    assert suite.digest != read(written(tmp_path, SOUND + "\n")).digest


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[prompt", "is not TOML"),
        ("max_tokens = 3", "check: Field required"),
        (SOUND.replace("Hello", 'Hello"\nmessages = [{role="user"}]\n#'), "needs either `text` or `messages`"),
        (SOUND + SOUND.partition("[[check]]")[0], "two prompts are called 'a'"),
        (SOUND + 'tags = ["x"]', "the check 'short' is of 'x', which no prompt has"),
        (SOUND.replace('"length"', '"size"'), "check.0"),
        (SOUND.replace("max_words = 5", 'pattern = "("').replace('"length"', '"regex"'), "not a regular expression"),
        (SOUND.replace("max_words", "most_words"), "most_words"),
        (SOUND.partition("[[check]]")[2].join(["[[check]]", ""]), "there is nothing to ask"),
        ('digest = "x"' + SOUND, "has the key 'digest'"),
        (SOUND.replace("max_words = 5", 'function = "check"').replace('"length"', '"python"'), "a Python file"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ChecksError, match=r"checks\.toml") as raised:
        read(written(tmp_path, text))
    assert words in str(raised.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ChecksError, match=r"checks\.example\.toml is an example"):
        read(tmp_path / "none.toml")


def test_many_prompts_are_read_in_time_in_proportion_to_them(tmp_path: Path) -> None:
    """Each name was looked for among all: 100,000 of them took a quarter of an hour."""
    prompts = "".join(f'[[prompt]]\nname = "{number}"\ntext = "x"\n' for number in range(40_000))
    assert len(read(written(tmp_path, prompts + SOUND)).prompt) == 40_001
    with pytest.raises(ChecksError, match="two prompts are called '39999'"):
        read(written(tmp_path, prompts + '[[prompt]]\nname = "39999"\ntext = "y"\n' + SOUND))
