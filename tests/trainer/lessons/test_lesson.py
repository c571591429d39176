"""What a lesson says of its push: what `rlproxy why` tells later."""

from __future__ import annotations

import numpy as np
import pytest

from tests.trainer.lessons.test_pairs import lesson, made


def test_the_push_is_of_the_tokens_that_passed():
    advantage = np.array([0.5, -1.0, 0.0, -9.0])
    rated = lesson("good", 1, 1.0, [-1.0] * 4, advantage=advantage, keep=np.array([True, True, True, False]))
    assert rated.push == (pytest.approx(-0.5 / 3, abs=1e-6), 1, 1)
    nothing = lesson("bad", 1, -1.0, [-1.0] * 4, keep=np.zeros(4, bool))
    assert nothing.push == (0.0, 0, 0)


def test_what_pushes_is_told_apart(tmp_path):
    assert lesson("a", 1, 1.0, [-1.0]).kind == "rating"
    assert lesson("a", 1, 1.0, [-1.0], credited=True).kind == "token"
    paired = made(tmp_path, [lesson("bad", 1, -1.0, [-1.0] * 4), lesson("good", 1, 1.0, [-2.0] * 3)])
    assert [each.kind for each in paired] == ["pair", "pair"]
    assert [(each.push.up, each.push.down) for each in paired] == [(0, 4), (3, 0)]
