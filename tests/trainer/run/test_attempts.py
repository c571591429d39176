"""The second try: who gets one, how it differs, and that a resumed run knows which it is on."""

import pytest

from config import presets
from trainer.run.attempts import Attempts, has_lost_sense
from trainer.run.gate import Check

BALANCED = presets.resolve("balanced", {})
GOOD, BAD = Check(0.0, 1.0, ok=True), Check(2.0, 1.0, ok=False)
HALF = {name: getattr(BALANCED, name) / 2 for name in ("learning_rate", "drift_credited", "drift_weak")}


def changed(preset):
    now, full = preset.model_dump(), BALANCED.model_dump()
    return {name: value for name, value in now.items() if value != full[name]}


@pytest.mark.parametrize(
    ("checks", "elsewhere", "changes", "how"),
    [
        ({"base_nll": BAD, "entropy": GOOD}, True, {}, "with its pushes taken back elsewhere"),
        ({"base_nll": BAD}, False, {"w_elsewhere": 0.0} | HALF, "at half the rate"),
        ({"base_nll": BAD, "looping": BAD}, True, {"w_elsewhere": 0.0} | HALF, "at half the rate"),
        ({"length": BAD}, True, {"w_elsewhere": 0.0} | HALF, "at half the rate"),
        ({}, False, {"w_elsewhere": 0.0} | HALF, "at half the rate"),  # it diverged before the gate
    ],
)
def test_the_second_try_differs_by_what_was_wrong_and_is_the_last(tmp_path, checks, elsewhere, changes, how):
    tries = Attempts(tmp_path, BALANCED)
    assert changed(tries.preset) == {"w_elsewhere": 0.0} and tries.reason is None
    assert tries.retry("it said no", checks, elsewhere=elsewhere)
    for now in (tries, Attempts(tmp_path, BALANCED)):  # the second: as a run that was stopped and goes on
        assert changed(now.preset) == changes
        assert (now.how, now.reason) == (how, "it said no")
        assert not now.retry("and again", checks, elsewhere=elsewhere)


@pytest.mark.parametrize("spent", [0.25, 0.5, 0.6, 1.0])
def test_the_more_sense_was_lost_before_the_more_the_first_try_takes_back(tmp_path, spent):
    tries = Attempts(tmp_path, BALANCED, spent)
    assert tries.preset.w_elsewhere == pytest.approx(BALANCED.w_elsewhere * spent)
    assert tries.retry("it said no", {"base_nll": BAD}, elsewhere=True)
    # With most of the weight there already, the whole of it would be the same again.
    less = {"w_elsewhere": pytest.approx(BALANCED.w_elsewhere * spent)} if spent < 1 else {}
    assert changed(tries.preset) == ({} if spent <= 0.5 else less | HALF)
    assert changed(Attempts(tmp_path, BALANCED, spent).preset) == changed(tries.preset)


def test_half_the_rate_takes_back_what_the_first_try_did(tmp_path):
    tries = Attempts(tmp_path, BALANCED, 0.5)
    assert tries.retry("it said no", {"looping": BAD}, elsewhere=True)
    assert changed(tries.preset) == {"w_elsewhere": BALANCED.w_elsewhere / 2} | HALF


def test_without_a_weight_for_it_a_run_by_token_goes_at_half_the_rate(tmp_path):
    tries = Attempts(tmp_path, BALANCED.model_copy(update={"w_elsewhere": 0.0}))
    assert tries.retry("base_nll", {"base_nll": BAD}, elsewhere=True) and tries.how == "at half the rate"
    assert tries.preset.learning_rate == BALANCED.learning_rate / 2


def test_what_moved_too_little_is_not_tried_with_less(tmp_path):
    tries = Attempts(tmp_path, BALANCED)
    assert not tries.retry("no_op", {"no_op": BAD, "base_nll": BAD}, elsewhere=True)
    assert tries.reason is None and not list(tmp_path.iterdir())


def test_a_try_of_a_version_before_knew_only_half_the_rate(tmp_path):
    (tmp_path / "retry.json").write_text('{"why": "base_nll"}')
    assert changed(Attempts(tmp_path, BALANCED).preset) == {"w_elsewhere": 0.0} | HALF


@pytest.mark.parametrize(
    ("checks", "lost"),
    [
        ({"base_nll": BAD, "entropy": GOOD}, True),
        ({"base_nll": BAD, "entropy": BAD}, False),
        ({"base_nll": GOOD, "entropy": BAD}, False),
        ({"base_nll": GOOD}, False),
        ({}, False),
    ],
)
def test_sense_is_lost_where_base_nll_says_no_and_nothing_else_does(checks, lost):
    assert has_lost_sense(checks) is lost
