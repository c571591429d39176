"""The mathematics, against slow float64 references written from the formulas."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trainer import mis_po
from trainer.mis_po import OFF, Band, Terms

PAPER = Band(0.996, 1.001)
LIMITS = {"token_low": 0.5, "token_high": 2.0}
GUARD = {"guard_low": 0.5, "guard_high": 2.0}


def reference(theta, lengths, old, ref, keep, advantages, kl_ref):
    """The loss of the facts' §2.7 and §2.8, one token at a time, with k3 as a line past one nat."""
    total, at = 0.0, 0
    for length, a in zip(lengths, advantages, strict=True):
        actor = kl = 0.0
        for t in range(at, at + length):
            ratio = math.exp(theta[t] - old[t])
            guarded = (a > 0 and ratio > 2) or (a < 0 and ratio < 0.5)
            if keep[t] and not guarded:
                actor -= a * theta[t]
            gap = ref[t] - theta[t]
            kl += math.exp(gap) - gap - 1 if gap <= 1 else math.e - 2 + (math.e - 1) * (gap - 1)
        total += (actor + kl_ref * kl) / length / len(lengths)
        at += length
    return total


@st.composite
def batches(draw):
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    n = sum(lengths)
    values = st.floats(-6, -0.01, width=64)
    theta, old, ref = (draw(arrays(np.float64, n, elements=values)) for _ in range(3))
    # Away from the guard's edges, where the loss has a kink.
    moved = theta - old
    for edge in (math.log(2), math.log(0.5)):
        theta = np.where(np.abs(moved - edge) < 1e-3, theta - 0.01, theta)
    keep = draw(arrays(np.bool_, n)).astype(np.float64)
    advantages = draw(st.lists(st.floats(-2, 2), min_size=len(lengths), max_size=len(lengths)))
    return theta, lengths, old, ref, keep, advantages


def flat(lengths, old, ref, keep, advantages, as_array=np.asarray):
    return Terms(
        old=as_array(old),
        ref=as_array(ref),
        keep=as_array(keep),
        advantage=as_array(np.repeat(advantages, lengths)),
        share=as_array(np.repeat([1 / (n * len(lengths)) for n in lengths], lengths)),
    )


@settings(max_examples=60, deadline=None)
@given(batches(), st.floats(0, 1))
def test_loss_equals_the_formula(batch, kl_ref):
    theta, lengths, old, ref, keep, advantages = batch
    expected = reference(theta, lengths, old, ref, keep, advantages, kl_ref)
    terms = flat(lengths, old, ref, keep, advantages)
    assert mis_po.loss(np, theta, terms, kl_ref=kl_ref, **GUARD)[0] == pytest.approx(expected, abs=1e-9)
    in_torch = flat(lengths, old, ref, keep, advantages, torch.from_numpy)
    loss, _ = mis_po.loss(torch, torch.from_numpy(theta), in_torch, kl_ref=kl_ref, **GUARD)
    assert float(loss) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(batches())
def test_gradient_equals_finite_differences(batch):
    theta, lengths, old, ref, keep, advantages = batch
    terms = flat(lengths, old, ref, keep, advantages, torch.from_numpy)
    variable = torch.from_numpy(theta.copy()).requires_grad_()
    mis_po.loss(torch, variable, terms, kl_ref=0.05, **GUARD)[0].backward()
    for t in range(len(theta)):
        step = 1e-6
        up, down = theta.copy(), theta.copy()
        up[t] += step
        down[t] -= step
        slope = (
            reference(up, lengths, old, ref, keep, advantages, 0.05)
            - reference(down, lengths, old, ref, keep, advantages, 0.05)
        ) / (2 * step)
        assert float(variable.grad[t]) == pytest.approx(slope, rel=1e-4, abs=1e-6)


def test_on_policy_it_is_reinforce():
    logits = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    theta = logits.log_softmax(-1)[torch.arange(5), torch.tensor([1, 2, 3, 4, 5])]
    old = theta.detach().numpy()
    verdict = mis_po.verdict(old, old, **LIMITS, band=PAPER)
    terms = flat([2, 3], old, old, verdict.keep.astype(float), [1.0, -0.5], torch.from_numpy)
    mis_po.loss(torch, theta, terms, kl_ref=0.05, **GUARD)[0].backward()
    got = logits.grad.clone()
    logits.grad = None
    again = logits.log_softmax(-1)[torch.arange(5), torch.tensor([1, 2, 3, 4, 5])]
    (-(again[:2].mean() * 1.0 + again[2:].mean() * -0.5) / 2).backward()
    torch.testing.assert_close(got, logits.grad)  # at θ = ref the KL term has no slope either


def test_the_guard_stops_the_gradient_and_only_that():
    old = torch.zeros(4, dtype=torch.float64) - 3
    theta = (old + torch.tensor([math.log(2.1), math.log(1.9), math.log(0.4), math.log(0.6)])).requires_grad_()
    ones = torch.ones(4, dtype=torch.float64)
    for sign, free in ((1.0, [0, 1, 1, 1]), (-1.0, [1, 1, 0, 1])):
        theta.grad = None
        terms = Terms(old, old, ones, sign * ones, ones / 4)
        _, sums = mis_po.loss(torch, theta, terms, kl_ref=0.0, **GUARD)
        _.backward()
        assert (theta.grad != 0).int().tolist() == free
        assert float(sums["guarded"]) == 1


@given(st.lists(st.floats(-8, -0.01), min_size=2, max_size=6), st.integers(0, 10_000))
def test_drift_is_the_divergence_itself_in_the_mean(logits, seed):
    old = np.array(logits) - np.logaddexp.reduce(logits)
    theta = old + np.random.default_rng(seed).normal(0, 0.5, len(old))
    theta -= np.logaddexp.reduce(theta)
    each = mis_po.drift(np, old, theta)
    assert (each >= -1e-12).all()
    assert (np.exp(old) * each).sum() == pytest.approx((np.exp(old) * (old - theta)).sum(), abs=1e-9)


def test_masked_tokens_have_no_gradient():
    theta = torch.full((3,), -1.0, dtype=torch.float64, requires_grad=True)
    constant = torch.full((3,), -1.0, dtype=torch.float64)
    keep = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    loss, _ = mis_po.loss(torch, theta, Terms(constant, constant, keep, -constant, -constant / 3), kl_ref=0.0, **GUARD)
    loss.backward()
    assert theta.grad.tolist() == pytest.approx([-1 / 3, 0, -1 / 3])


def test_token_bounds_are_inclusive():
    behaviour = np.zeros(4)  # so that x is exactly what is written here
    old = np.log([0.5, 2.0, 0.4999, 2.0001])
    assert mis_po.verdict(old, behaviour, **LIMITS, band=OFF).tokens.tolist() == [True, True, False, False]


def test_trajectory_bounds_are_inclusive():
    behaviour = np.full(1, -2.0)
    for rho, inside in ((0.9961, True), (1.0009, True), (0.9959, False), (1.0011, False)):
        assert mis_po.verdict(behaviour + math.log(rho), behaviour, **LIMITS, band=PAPER).reply is inside


@pytest.mark.parametrize("shift", [-40.0, -0.01, 0.0, 0.0005, 40.0])
def test_ten_thousand_tokens_neither_overflow_nor_underflow(shift):
    behaviour = np.full(10_000, -30.0)
    with np.errstate(all="raise"):
        verdict = mis_po.verdict(behaviour + shift, behaviour, **LIMITS, band=PAPER)
    assert verdict.log_rho == pytest.approx(max(-20, min(20, shift)))
    assert verdict.reply is (shift in (0.0, 0.0005))


@given(st.floats(-0.3, 0.3), st.floats(0, 0.5), st.integers(1, 5000))
def test_a_calibrated_band_is_never_stricter_than_the_papers(mu, sigma, tokens):
    low, high = Band(0.996, 1.001, mu, sigma).limits(tokens)
    assert low <= math.log(0.996)
    assert high >= math.log(1.001)


def test_calibration_keeps_fresh_replies_of_a_noisy_server():
    noise = np.random.default_rng(0)
    log_x = noise.normal(-0.02, 0.2, 2000)
    band = mis_po.calibrate(PAPER, log_x.mean(), log_x.std(), len(log_x))
    behaviour = np.full(100, -2.0)
    fresh = [behaviour + noise.normal(-0.02, 0.2, 100) for _ in range(200)]
    verdicts = [mis_po.verdict(old, behaviour, **LIMITS, band=band) for old in fresh]
    assert np.mean([v.reply for v in verdicts]) > 0.98
    assert np.mean([mis_po.verdict(o, behaviour, **LIMITS, band=PAPER).reply for o in fresh]) < 0.2


@pytest.mark.parametrize("tokens", [32, 96, 1000])
def test_a_band_from_few_tokens_is_as_much_wider_as_they_say_less(tokens):
    """Of fresh replies as few are refused, from however few tokens the noise is known."""
    noise, behaviour, taken = np.random.default_rng(1), np.full(6, -2.0), []
    for _ in range(300):
        log_x = noise.normal(-0.01, 0.05, tokens)
        band = mis_po.calibrate(PAPER, log_x.mean(), log_x.std(), tokens)
        taken.append(mis_po.verdict(behaviour + noise.normal(-0.01, 0.05, 6), behaviour, **LIMITS, band=band).reply)
    assert np.mean(taken) > 0.98
    low, high = mis_po.Band(0.996, 1.001, -0.01, 0.05, tokens).limits(6)
    assert low < -0.01 - 3 * 0.05 / math.sqrt(6) and high > -0.01 + 3 * 0.05 / math.sqrt(6)


def test_another_model_is_not_noise():
    assert mis_po.calibrate(PAPER, -0.8, 1.2, 1000) is None


def test_a_token_outside_the_support_is_masked_and_left_out_of_rho():
    behaviour = np.full(4, -1.0)
    old = np.array([-1.0, -np.inf, -1.0, -1.0])
    verdict = mis_po.verdict(old, behaviour, **LIMITS, band=PAPER)
    assert verdict.keep.tolist() == [True, False, True, True]
    assert verdict.log_rho == 0
    mirrored = mis_po.verdict(behaviour, old, **LIMITS, band=PAPER)  # ℓ_β, recomputed under top-p
    assert mirrored.keep.tolist() == [True, False, True, True]
    assert mirrored.log_rho == 0
    nowhere = mis_po.verdict(np.full(4, -np.inf), behaviour, **LIMITS, band=PAPER)
    assert nowhere.cause(stale=False) == "fresh-mismatch"


def test_every_loss_of_a_reply_has_a_cause():
    behaviour = np.full(10, -2.0)
    drifted = mis_po.verdict(behaviour - 0.1, behaviour, **LIMITS, band=PAPER)
    assert drifted.cause(stale=True) == "stale"
    assert drifted.cause(stale=False) == "fresh-mismatch"
    assert mis_po.verdict(behaviour - 5, behaviour, **LIMITS, band=OFF).cause(stale=False) == "token"
    assert mis_po.verdict(behaviour - 5, behaviour, **LIMITS, band=OFF).cause(stale=True) == "stale"
    assert mis_po.verdict(behaviour, behaviour, **LIMITS, band=PAPER).cause(stale=False) is None


def test_advantage_is_weighted_and_clipped():
    assert mis_po.advantage(1.0, 1.0, 0.2, weight_good=1.5, clip=2.0) == pytest.approx(1.2)
    assert mis_po.advantage(-1.0, 1.0, 0.2, weight_good=1.5, clip=2.0) == pytest.approx(-1.2)
    assert mis_po.advantage(-1.0, 5.0, 0.0, weight_good=1.0, clip=2.0) == -2.0


def test_the_baseline_starts_as_a_hundred_neutral_ratings():
    assert mis_po.ema(0.0, [1.0], 0.99) == pytest.approx(0.01)
    assert mis_po.ema(0.0, [-1.0] * 100, 0.99) == pytest.approx(-(1 - 0.99**100))
    assert mis_po.ema(0.5, [], 0.99) == 0.5


@given(st.lists(st.sampled_from([-2.0, -1.0, -0.25, 0.0, 0.5, 1.0, 2.0]), max_size=40))
def test_balanced_signs_weigh_the_same(advantages):
    made = mis_po.balance(advantages)
    assert [np.sign(a) for a in made] == [np.sign(a) for a in advantages]
    up, down = sum(a for a in made if a > 0), -sum(a for a in made if a < 0)
    if not up or not down:
        assert made == advantages
        return
    factors = [a / b for a, b in zip(made, advantages, strict=True) if b]
    if max(factors) < 2.99:
        assert up == pytest.approx(down)
        assert up + down == pytest.approx(sum(map(abs, advantages)))
    assert max(factors) <= 3 + 1e-9


@given(st.floats(-30, 30), st.floats(-30, 30))
def test_the_pull_is_k3_up_to_a_nat_and_never_harder_than_there(ref, theta):
    one, other = (
        torch.tensor([ref], dtype=torch.float64),
        torch.tensor([theta], dtype=torch.float64, requires_grad=True),
    )
    pulled = mis_po.pull(torch, one, other)
    pulled.sum().backward()
    pulled = pulled.detach()
    assert float(pulled) >= -1e-12
    assert abs(float(other.grad)) <= math.e - 1 + 1e-9
    if abs(ref - theta) <= 1:
        assert float(pulled) == pytest.approx(float(mis_po.k3(torch, one, other.detach())), abs=1e-12)


@given(st.lists(st.floats(-12, 0), min_size=1, max_size=9), st.floats(-2, 2), st.floats(0.01, 1))
def test_likely_tokens_of_a_disliked_reply_are_spared_and_nothing_else_is(old, advantage, likely):
    made = mis_po.spare_likely(np.full(len(old), advantage), np.array(old), likely)
    for value, log_p in zip(made, old, strict=True):
        assert value == (0 if advantage < 0 and log_p > math.log(likely) else advantage)


def test_everything_is_pushed_down_where_nothing_counts_as_likely():
    old = np.log([0.999, 0.5, 1e-9])
    assert mis_po.spare_likely(np.full(3, -1.0), old, 1.0).tolist() == [-1, -1, -1]


# --- late replies: second-moment trust -----------------------------------------------------------------------------


def dropped_one_by_one(log_x, advantages, most):
    """M2PO as the paper words it: while the mean is too large, the largest one goes."""
    keep = [math.isfinite(x) for x in log_x]
    while True:
        onward = [i for i, (x, a) in enumerate(zip(log_x, advantages, strict=True)) if keep[i] and x * a > 0]
        if not onward or math.fsum(log_x[i] ** 2 for i in onward) / len(onward) <= most:
            return keep
        keep[max(onward, key=lambda i: log_x[i] ** 2)] = False


@settings(deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.one_of(st.integers(-40, 40).map(lambda n: n / 16), st.just(math.nan)),
                st.sampled_from([-1.0, 0.0, 0.5]),
            ),
            min_size=1,
            max_size=9,
        ),
        max_size=4,
    ),
    st.sampled_from([0.0, 0.04, 0.5, 9.0]),
)
def test_trust_drops_what_the_paper_drops(replies, most):
    log_x, pushed = ([np.array([pair[at] for pair in reply]) for reply in replies] for at in (0, 1))
    found = mis_po.trust_tokens(log_x, pushed, most=most)
    assert [len(each) for each in found] == [len(each) for each in log_x]
    if not replies:
        return
    keep, flat, a = (np.concatenate(each) for each in (found, log_x, pushed))
    onward = keep & (flat * a > 0)
    assert not onward.any() or (flat[onward] ** 2).mean() <= most + 1e-12
    assert keep[np.isfinite(flat) & ~(flat * a > 0)].all() and not keep[~np.isfinite(flat)].any()
    slow = dropped_one_by_one(flat.tolist(), a.tolist(), most)
    assert keep.sum() == sum(slow)  # of two equally large ones either may go
    assert sorted(flat[keep] ** 2) == sorted(x * x for x, k in zip(flat.tolist(), slow, strict=True) if k)


def test_a_late_token_weighs_what_the_policy_makes_of_it_and_twice_at_most():
    log_x = np.log([0.01, 0.5, 1.0, 1.9, 7.0])
    assert mis_po.importance(log_x, most=2.0) == pytest.approx([0.01, 0.5, 1.0, 1.9, 2.0])
