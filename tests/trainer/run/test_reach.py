"""How far weak evidence may move a policy: a little, or further as long as it costs no sense."""

import io

import numpy as np
import pytest

from config import presets
from tests.harness import tiny
from trainer.io.progress import Progress
from trainer.lessons.chat_template import Template
from trainer.lessons.samples import Sample
from trainer.policy import packing
from trainer.run import gate, reach, steps
from trainer.run.base_surprise import BaseSurprise

PRESET = presets.resolve("balanced", {})


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return tiny.policy(tiny.make_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture
def said(policy):
    return gate.answer_questions(policy, Template(policy.tokenizer))


@pytest.fixture
def moved(policy):
    """The state where a run began, and one far from it, which the policy wears."""
    start = policy.adapter()
    noise = np.random.default_rng(3)
    far = {n: (t + noise.normal(0, 0.15, t.shape)).astype(np.float32) for n, t in start.items()}
    policy.wear(far)
    yield start, far
    policy.wear(start)


def made_at(policy, start, said):
    """Lessons of what was said, made where the run began."""
    far = policy.adapter()
    policy.wear(start)
    found = []
    for n, tokens in enumerate(said):
        old = policy.log_probs(packing.pack([tokens])).plain
        sample = Sample(f"rt-{n}", False, 0, 1.0 if n % 2 else -1.0, 1.0, True, tokens, old)
        found.append(tiny.lesson(sample, old))
    policy.wear(far)
    return found


def back(policy, start, teaching, bound, spent, tmp_path):
    out = io.StringIO()
    with Progress(tmp_path, out) as progress:
        look = steps._go_back(policy, start, teaching, steps.measure_drift(policy, teaching), bound, spent, progress)
    return look, out.getvalue()


def test_the_cost_is_nothing_at_the_base_and_what_the_gate_sees_elsewhere(policy, said, moved):
    _, far = moved
    checks = gate.compare_with_base(BaseSurprise.measure(policy, said), [], gate.Bounds())
    assert reach.cost(policy, said) == pytest.approx(checks["base_nll"].value, abs=1e-4)
    with policy.wearing(None):
        assert reach.cost(policy, said) == pytest.approx(0.0, abs=1e-5)
    policy.wear(far)


def test_the_bound_grows_with_evidence_and_ends_where_it_is_plain(said):
    bounds = [reach.move_bound(PRESET, e, credited=False, most=0.3, replies=said) for e in (0.0, 0.4, 0.8)]
    assert [b.nats for b in bounds] == sorted(b.nats for b in bounds) and bounds[0].nats == PRESET.drift_weak
    assert [b.cost for b in bounds] == sorted(b.cost for b in bounds) and bounds[0].cost == reach.SENSE
    assert reach.move_bound(PRESET, 1.0, credited=False, most=0.3, replies=said) is None
    assert reach.move_bound(PRESET, 0.0, credited=True, most=0.3, replies=said) == reach.MoveBound(
        PRESET.drift_credited
    )


def test_a_run_that_costs_no_sense_goes_as_far_as_plain_evidence_would(policy, said, moved, tmp_path):
    start, _ = moved
    teaching = made_at(policy, start, said)
    first = steps.measure_drift(policy, teaching).moved
    free = reach.MoveBound(first / 100, cost=1e9, replies=said)
    look, told = back(policy, start, teaching, free, 0.0, tmp_path)
    assert look.moved == pytest.approx(min(first, reach.FULL), rel=0.25) and "nats of sense" in told


def test_a_run_that_costs_sense_goes_back_until_it_does_not(policy, said, moved, tmp_path):
    start, _ = moved
    teaching = made_at(policy, start, said)
    costs, first = reach.cost(policy, said), steps.measure_drift(policy, teaching).moved
    assert costs > 0
    dear = reach.MoveBound(first / 1e6, cost=costs / 8, replies=said)
    look, _ = back(policy, start, teaching, dear, 0.0, tmp_path)
    assert look.moved < first and reach.cost(policy, said) <= costs / 8 * 1.3
    policy.wear(moved[1])
    only = reach.MoveBound(first / 8)
    look, told = back(policy, start, teaching, only, 0.0, tmp_path)
    assert look.moved <= first / 8 * 1.1 and "nats of sense" not in told
