"""What the gate asks, in plain words: of each check, and of none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

from config.gate_checks import QUESTIONS, question

ROOT = Path(__file__).resolve().parents[2]


def test_each_check_has_a_question_and_a_place_in_the_docs() -> None:
    source = "".join((ROOT / "trainer/run" / name).read_text() for name in ("gate.py", "ratings.py"))
    made = set(re.findall(r'(?:checks\[|\{|, |^\s+)"([a-z_]+)"(?:\] = |: )', source, re.MULTILINE))
    assert {name for name in made if f"def {name}(" in source or name in QUESTIONS} == set(QUESTIONS)
    explained = (ROOT / "docs/explain/how-it-learns.md").read_text()
    assert [name for name in QUESTIONS if f"`{name}`" not in explained] == []
    assert all(asked.endswith("?") for asked in QUESTIONS.values())


def test_a_check_of_another_time_keeps_its_name() -> None:
    assert question("kl_ref") == "kl_ref"
