"""The order of the optimiser steps, and what each is made of. Whole runs are in test_loop."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness import tiny
from trainer.lessons import batch, samples
from trainer.lessons.chat_template import Template
from trainer.run import steps


@given(st.lists(st.sampled_from([-1.0, 1.0]), min_size=1, max_size=70), st.integers(1, 16), st.integers(1, 3))
def test_every_batch_mixes_the_signs(signs, size, passes):
    plan = steps.schedule(signs, batch=size, passes=passes, seed=3)
    assert plan == steps.schedule(signs, batch=size, passes=passes, seed=3)
    each = len(plan) // passes
    for start in range(0, len(plan), each):
        assert sorted(i for step in plan[start : start + each] for i in step) == list(range(len(signs)))
    share = signs.count(1.0) / len(signs)
    for step in plan:
        assert abs(sum(signs[i] > 0 for i in step) - share * len(step)) <= 2


def test_the_loss_of_a_batch_is_the_mean_over_its_replies(lines):
    template = Template(tiny.tokenizer())
    parsed = [samples.parse(x, x["rating"], template, max_seq_len=999) for x in lines]
    made = [tiny.lesson(s, s.behaviour) for s in parsed[:3]]
    terms = batch.make_terms(made, 3)
    assert terms.share.sum() == pytest.approx(1)
    assert (terms.advantage * terms.share).sum() == pytest.approx(np.mean([s.reward for s in parsed[:3]]))
