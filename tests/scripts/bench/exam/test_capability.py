"""Programs run for real, bad ones too; instructions are checked on texts that keep and break them."""

import pytest

from scripts.bench.exam.capability import INSTRUCTIONS, PROGRAM, computes_fibonacci, measure

LOOP = "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n"


@pytest.mark.parametrize(
    ("reply", "solved"),
    [
        (f"Here it is:\n```python\n{LOOP}```\nIt loops.", True),
        (f"```\n{LOOP}", True),
        (LOOP, True),
        (f"```python\n{LOOP.replace('range(n)', 'range(n - 1)')}```", True),  # counted from F(1) = 0
        (f"```python\n{LOOP.replace('a + b', 'a * b')}```", False),
        ("```python\ndef fibonacci(n):\n    while True: pass\n```", False),
        ("```python\ndef fib(n): return n\n```", False),
        ("Use a loop.", False),
        ("", False),
    ],
)
async def test_program(reply, solved, monkeypatch):
    monkeypatch.setattr("scripts.bench.exam.capability.TIMEOUT_S", 2.0)
    assert await computes_fibonacci(reply) is solved


async def test_instructions():
    good = ["It is round. It is grey. It is far.", "1. a\n2. b\n3. c\n4. d\n5. e", "It does a thing again."]
    bad = ["It is round.", "- a\n- b\n- c\n- d\n- e", "It Repeats."]
    for texts, kept in ((good, True), (bad, False)):
        solved = await measure({PROGRAM: LOOP, **dict(zip(INSTRUCTIONS, texts, strict=True))})
        assert solved == {PROGRAM: True, **dict.fromkeys(INSTRUCTIONS, kept)}
