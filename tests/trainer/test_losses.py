"""Each objective against a slow float64 reference, one token at a time, written from its formula."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trainer import losses, mis_po
from trainer.mis_po import Terms

CLIP_BAND = {"token_low": 0.5, "token_high": 2.0, "low": 0.9, "high": 1.1}
PPO = {"clip_low": 0.2, "clip_high": 0.28}
GUARD = {"guard_low": 0.5, "guard_high": 2.0}
BETA, ZERO, KL = 0.1, 0.3, 0.05
K = 3


# --- the formulas, slowly; `at` is where scales and reference points, which have no gradient, are taken ---------------


def replies(batch):
    at = 0
    for length, advantage in zip(batch["lengths"], batch["advantages"], strict=True):
        yield range(at, at + length), advantage
        at += length


def k3(other, theta):
    return math.exp(other - theta) - (other - theta) - 1


def pull(ref, theta):
    gap = ref - theta
    return k3(ref, theta) if gap <= 1 else k3(1, 0) + (math.e - 1) * (gap - 1)


def clipped(value, low, high):
    return max(low, min(high, value))


def slow_mis_po_clip(theta, b, at):
    total = 0.0
    for tokens, a in replies(b):
        rho = math.exp(sum(at[t] - b["ref"][t] for t in tokens) / len(tokens))
        scale = min(1.0, rho / 0.9, 1.1 / rho)
        actor = -sum(b["keep"][t] * clipped(math.exp(theta[t] - b["behaviour"][t]), 0.5, 2.0) * a for t in tokens)
        total += (actor * scale + KL * sum(k3(b["ref"][t], theta[t]) for t in tokens)) / len(tokens)
    return total / len(b["lengths"])


def slow_grpo(theta, b, at):
    total = 0.0
    for tokens, a in replies(b):
        for t in tokens:
            x = math.exp(theta[t] - b["old"][t])
            gain = min(x * a, clipped(x, 0.8, 1.28) * a)
            total += (KL * k3(b["ref"][t], theta[t]) - b["keep"][t] * gain) / len(tokens)
    return total / len(b["lengths"])


def slow_mis_po(theta, b, at):
    total = 0.0
    for tokens, a in replies(b):
        for t in tokens:
            x = math.exp(at[t] - b["old"][t])
            guarded = b["is_own"][t] and ((a > 0 and x > 2) or (a < 0 and x < 0.5))
            actor = 0 if guarded else b["keep"][t] * a * theta[t]
            anchored = KL * pull(b["ref"][t], theta[t]) * (1 - b["teaches"][t])
            total += (anchored - actor) / len(tokens)
    return total / len(b["lengths"])


def slow_kl(p, q):
    p, q = ([*each, 1 - sum(each)] for each in (np.exp(p).tolist(), np.exp(q).tolist()))
    return sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))


def slow_distill(top, b):
    total = 0.0
    for tokens, _ in replies(b):
        total += sum(b["teaches"][t] * slow_kl(b["teacher"][t], top[t]) for t in tokens) / len(tokens)
    return total / len(b["lengths"])


def slow_stay(top, b):
    total = 0.0
    for tokens, _ in replies(b):
        total += sum(b["stays"][t] * slow_kl(top[t], b["teacher"][t]) for t in tokens) / len(tokens)
    return total / len(b["lengths"])


def slow_elsewhere(top, b, at):
    total = 0.0
    for tokens, _ in replies(b):
        for t in tokens:
            moved = [now - was for now, was in zip(at[t], b["teacher"][t], strict=True)]
            pushed = [w * (now - was) for w, now, was in zip(b["elsewhere"][t], top[t], b["teacher"][t], strict=True)]
            total += sum(p for p, m in zip(pushed, moved, strict=True) if m > math.log(0.5)) / len(tokens)
    return total / len(b["lengths"])


def slow_kto(theta, b, at):
    total = 0.0
    for tokens, a in replies(b):
        reward = sum(theta[t] - b["ref"][t] for t in tokens)
        sign, worth = (1 if a > 0 else -1), abs(a)
        total += worth - worth / (1 + math.exp(-sign * BETA * (reward - ZERO))) if a else 0.0
    return total / len(b["lengths"])


LOSSES = {
    "mis-po-clip": (slow_mis_po_clip, lambda *a: losses.mis_po_clip(*a, kl_ref=KL, **CLIP_BAND)),
    "grpo": (slow_grpo, lambda *a: losses.grpo(*a, kl_ref=KL, **PPO)),
    "mis-po": (slow_mis_po, lambda *a: mis_po.loss(*a, kl_ref=KL, **GUARD)),
    "kto": (slow_kto, lambda *a: losses.kto(*a, beta=BETA)),
}


@st.composite
def batches(draw):
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    n = sum(lengths)
    values = st.floats(-6, -0.01, width=64)
    theta, old, ref, behaviour = (draw(arrays(np.float64, n, elements=values)) for _ in range(4))
    # Away from the edges, where the losses have kinks.
    for other in (old, behaviour):
        for edge in (2.0, 0.5, 1.28, 0.8):
            theta = np.where(np.abs(theta - other - math.log(edge)) < 1e-3, theta - 0.005, theta)
    logits = st.floats(-4, 4, width=64)

    def some(rows):  # of a vocabulary of K + 2
        raw = draw(arrays(np.float64, (rows, K + 2), elements=logits))
        return (raw - np.logaddexp.reduce(raw, axis=1)[:, None])[:, :K]

    return {
        "theta": theta,
        "lengths": lengths,
        "old": old,
        "ref": ref,
        "behaviour": behaviour,
        "keep": draw(arrays(np.bool_, n)).astype(float),
        "is_own": draw(arrays(np.bool_, n)).astype(float),
        "teaches": draw(arrays(np.bool_, n)).astype(float),
        "stays": draw(arrays(np.bool_, n)).astype(float),
        "advantages": draw(st.lists(st.floats(-2, 2), min_size=len(lengths), max_size=len(lengths))),
        "top": some(n),
        "teacher": some(n),
        "elsewhere": draw(arrays(np.float64, (n, K), elements=st.sampled_from([0.0, 0.3, 1.0]))),
    }


def flat(b, as_array=np.asarray):
    lengths = b["lengths"]
    return Terms(
        **{
            name: as_array(b[name])
            for name in ("old", "ref", "keep", "is_own", "behaviour", "teaches", "stays", "teacher", "elsewhere")
        },
        advantage=as_array(np.repeat(np.asarray(b["advantages"], float), lengths)),
        share=as_array(np.repeat([1 / (n * len(lengths)) for n in lengths], lengths)),
        member=as_array(np.repeat(np.eye(len(lengths)), lengths, axis=1)),
        zero=as_array(np.asarray(ZERO)),
    )


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=40, deadline=None)
@given(b=batches())
def test_loss_equals_the_formula(name, b):
    slow, fast = LOSSES[name]
    theta = b["theta"]
    expected = slow(theta, b, theta)
    assert fast(np, theta, flat(b))[0] == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert float(fast(torch, torch.from_numpy(theta), flat(b, torch.from_numpy))[0]) == pytest.approx(
        expected, rel=1e-9, abs=1e-9
    )


def slope(slow, theta, index, step=1e-6):
    up, down = theta.copy(), theta.copy()
    up[index] += step
    down[index] -= step
    return (slow(up) - slow(down)) / (2 * step)


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=30, deadline=None)
@given(b=batches())
def test_gradient_equals_finite_differences_and_leaves_masks_and_scales_alone(name, b):
    slow, fast = LOSSES[name]
    variable = torch.from_numpy(b["theta"].copy()).requires_grad_()
    fast(torch, variable, flat(b, torch.from_numpy))[0].backward()
    for t in range(len(variable)):
        expected = slope(lambda theta: slow(theta, b, b["theta"]), b["theta"], t)
        assert float(variable.grad[t]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(batches())
def test_the_teachers_divergence_equals_the_formula_and_so_does_its_gradient(b):
    expected = slow_distill(b["top"], b)
    loss, sums = losses.distill(np, b["top"], flat(b))
    assert loss == pytest.approx(expected, abs=1e-6)
    assert sums["kl_teacher"] >= -1e-9
    variable = torch.from_numpy(b["top"].copy()).requires_grad_()
    terms = flat(b, torch.from_numpy)
    terms.teacher.requires_grad_()
    losses.distill(torch, variable, terms)[0].backward()
    for index in np.ndindex(b["top"].shape):
        found = slope(lambda top: slow_distill(top, b), b["top"], index)
        assert float(variable.grad[index]) == pytest.approx(found, rel=1e-3, abs=1e-5)


@settings(max_examples=20, deadline=None)
@given(batches(), st.floats(0, 2), st.floats(0, 2), st.floats(0, 2))
def test_combine_is_the_ratings_plus_the_teacher_plus_what_is_to_stay_and_go(b, w, v, u):
    weights = {"w_distill": w, "w_stay": v, "w_elsewhere": u}
    combined, sums = losses.combine(np, b["theta"], flat(b), b["top"], **weights, kl_ref=KL, **GUARD)
    expected = slow_mis_po(b["theta"], b, b["theta"]) + w * slow_distill(b["top"], b) + v * slow_stay(b["top"], b)
    expected += u * slow_elsewhere(b["top"], b, b["top"])
    assert combined == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert sums["loss"] == combined and sums.keys() >= {"kl_teacher", "kl_stay", "elsewhere"}
    alone, _ = losses.combine(np, b["theta"], flat(b), **weights, kl_ref=KL, **GUARD)
    assert alone == mis_po.loss(np, b["theta"], flat(b), kl_ref=KL, **GUARD)[0]


@settings(max_examples=20, deadline=None)
@given(batches(), st.floats(0, 2))
def test_kto_combine_is_kto_plus_the_teacher(b, w):
    loss, sums = losses.kto_combine(np, b["theta"], flat(b), b["top"], beta=BETA, w_distill=w)
    expected = slow_kto(b["theta"], b, b["theta"]) + w * slow_distill(b["top"], b)
    assert loss == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert sums["loss"] == loss and "kl_teacher" in sums
    alone, _ = losses.kto_combine(np, b["theta"], flat(b), beta=BETA, w_distill=w)
    assert alone == losses.kto(np, b["theta"], flat(b), beta=BETA)[0]


@settings(max_examples=20, deadline=None)
@given(batches())
def test_what_is_to_stay_costs_nothing_where_it_is_and_has_the_gradient_of_the_formula(b):
    loss, sums = losses.hold(np, b["teacher"], flat(b))
    assert loss == pytest.approx(0, abs=1e-12) and sums["kl_stay"] == pytest.approx(0, abs=1e-12)
    variable = torch.from_numpy(b["top"].copy()).requires_grad_()
    found, sums = losses.hold(torch, variable, flat(b, torch.from_numpy))
    found.backward()
    assert float(found.detach()) == pytest.approx(slow_stay(b["top"], b), rel=1e-6, abs=1e-6)
    assert sums["kl_stay"] >= -1e-9
    for index in np.ndindex(b["top"].shape):
        expected = slope(lambda top: slow_stay(top, b), b["top"], index)
        assert float(variable.grad[index]) == pytest.approx(expected, rel=1e-3, abs=1e-5)


@settings(max_examples=20, deadline=None)
@given(batches())
def test_what_is_pushed_down_elsewhere_has_the_gradient_of_the_formula_down_to_the_guard(b):
    guard = {"guard_low": GUARD["guard_low"]}
    assert losses.push_down_unlikely(np, b["teacher"], flat(b), **guard)[0] == 0  # and yet it pushes
    variable = torch.from_numpy(b["top"].copy()).requires_grad_()
    found, _ = losses.push_down_unlikely(torch, variable, flat(b, torch.from_numpy), **guard)
    found.backward()
    assert float(found.detach()) == pytest.approx(slow_elsewhere(b["top"], b, b["top"]), rel=1e-6, abs=1e-6)
    for index in np.ndindex(b["top"].shape):
        expected = slope(lambda top: slow_elsewhere(top, b, b["top"]), b["top"], index)
        assert float(variable.grad[index]) == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_what_rises_where_it_was_not_likely_counts_for_more_than_by_the_other_direction():
    """The end of a reply, 1 in 100,000 in the middle of a sentence, becomes 1 in 200."""
    was, now = (np.log([[p, 0.9]]) for p in (1e-5, 0.005))
    one = np.ones(1)
    terms = Terms(one, one, one, one, one, teaches=one, stays=one, teacher=was)
    seen, hardly = losses.hold(np, now, terms)[0], losses.distill(np, now, terms)[0]
    assert seen > 5 * hardly > 0


@pytest.mark.parametrize("part", [losses.distill, losses.hold])
def test_a_student_that_is_its_teacher_has_nothing_to_learn(part):
    logits = torch.randn(6, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    teacher = logits.detach().log_softmax(-1).topk(5)
    ones = torch.ones(6, dtype=torch.float64)
    terms = Terms(ones, ones, ones, ones, ones / 6, teaches=ones, stays=ones, teacher=teacher.values)
    loss, _ = part(torch, logits.log_softmax(-1).gather(-1, teacher.indices), terms)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0, abs=1e-12)
    assert float(logits.grad.abs().max()) < 1e-12


def test_distillation_reaches_the_teacher_tail_and_all():
    target = torch.randn(3, 12, generator=torch.Generator().manual_seed(1)).mul(2).log_softmax(-1)
    top = target.topk(4)
    logits = torch.zeros(3, 12, requires_grad=True)
    ones = torch.ones(3)
    terms = Terms(ones, ones, ones, ones, ones / 3, teaches=ones, teacher=top.values)
    optimiser = torch.optim.Adam([logits], 0.1)
    for _ in range(300):
        optimiser.zero_grad()
        losses.distill(torch, logits.log_softmax(-1).gather(-1, top.indices), terms)[0].backward()
        optimiser.step()
    reached = logits.detach().log_softmax(-1)
    torch.testing.assert_close(reached.gather(-1, top.indices), top.values, atol=1e-2, rtol=0)
    # Inside the one bin nothing is asked for: the mass is the teacher's, its parts stay as they were to each other.
    assert float(1 - reached.exp().gather(-1, top.indices).sum(-1)[0]) == pytest.approx(
        float(1 - top.values.exp().sum(-1)[0]), abs=1e-2
    )


@pytest.mark.parametrize("part", [losses.distill, losses.hold])
def test_a_certain_teacher_in_fp32_stays_finite(part):
    sure = torch.tensor([[-1e-8, -18.0, -19.0]])
    top = torch.tensor([[0.0, -30.0, -31.0]], requires_grad=True)
    one = torch.ones(1)
    loss, _ = part(torch, top, Terms(one, one, one, one, one, teaches=one, stays=one, teacher=sure))
    loss.backward()
    assert bool(torch.isfinite(loss)) and bool(torch.isfinite(top.grad).all())


def test_rows_without_a_teacher_have_no_gradient_from_it():
    top = torch.full((2, 3), -2.0, requires_grad=True)
    nothing = torch.zeros(2, 3)  # as the loop fills them
    terms = Terms(*[torch.ones(2)] * 5, teaches=torch.tensor([1.0, 0.0]), teacher=nothing - torch.tensor([[3.0], [0]]))
    losses.distill(torch, top, terms)[0].backward()
    assert (top.grad[0] != 0).all() and (top.grad[1] == 0).all()


@pytest.mark.parametrize("name", ["mis-po", "mis-po-clip", "grpo"])
def test_on_policy_each_is_reinforce(name):
    """x ≡ 1 and θ = ref: value aside, the gradient is −A ∇ℓ / T, whatever the name."""
    theta = torch.tensor([-1.0, -2.0, -0.5, -3.0, -1.5], dtype=torch.float64, requires_grad=True)
    now = theta.detach().numpy().copy()
    same = {"old": now, "ref": now, "behaviour": now, "keep": np.ones(5), "is_own": np.ones(5)}
    b = same | {"lengths": [2, 3], "advantages": [1.0, -0.5], "teaches": np.zeros(5), "teacher": np.zeros((5, K))}
    b |= {"stays": np.zeros(5), "elsewhere": np.zeros((5, K))}
    LOSSES[name][1](torch, theta, flat(b, torch.from_numpy))[0].backward()
    assert theta.grad.tolist() == pytest.approx([-1 / 4, -1 / 4, 0.5 / 6, 0.5 / 6, 0.5 / 6])


def test_the_scale_of_mis_po_clip_has_no_gradient():
    """With one, past `high`, it would cancel the push exactly."""
    ref = torch.full((4,), -2.0, dtype=torch.float64)
    theta = (ref + 0.3).requires_grad_()
    ones = torch.ones(4, dtype=torch.float64)
    terms = Terms(ref, ref, ones, ones, ones / 4, behaviour=theta.detach().clone(), member=ones[None])
    _, sums = losses.mis_po_clip(torch, theta, terms, kl_ref=0.0, **CLIP_BAND)
    sums["loss"].backward()
    scale = 1.1 / math.exp(0.3)
    assert theta.grad.tolist() == pytest.approx([-scale / 4] * 4)
    assert float(sums["scale"]) == pytest.approx(4 * scale)


def test_no_mask_scale_or_constant_has_a_gradient():
    theta = torch.full((4,), -1.1, requires_grad=True)
    for name, (_, fast) in LOSSES.items():
        fields = ("old", "ref", "keep", "is_own", "behaviour", "teaches", "stays")
        b = {f: np.full(4, -1.0 if f in ("old", "ref", "behaviour") else 1.0) for f in fields}
        wide = {"teacher": np.full((4, K), -2.0), "elsewhere": np.ones((4, K))}
        terms = flat(b | wide | {"lengths": [4], "advantages": [1.0]}, torch.from_numpy)
        loss, sums = fast(torch, theta, terms)
        for sum_name in ("scale", "guarded"):
            assert sum_name not in sums or not sums[sum_name].requires_grad, (name, sum_name)
        assert loss.requires_grad


def test_ppo_stops_past_its_clip_on_the_side_of_the_advantage_only():
    old = torch.full((4,), -3.0, dtype=torch.float64)
    ones = torch.ones(4, dtype=torch.float64)
    moved = torch.tensor([1.3, 1.2, 0.75, 0.85], dtype=torch.float64).log()
    for sign, free in ((1.0, [0, 1, 1, 1]), (-1.0, [1, 1, 0, 1])):
        theta = (old + moved).requires_grad_()
        loss, sums = losses.grpo(torch, theta, Terms(old, old, ones, sign * ones, ones / 4), kl_ref=0.0, **PPO)
        loss.backward()
        assert (theta.grad != 0).int().tolist() == free
        assert float(sums["guarded"]) == 1


def test_a_group_is_compared_with_itself_and_a_single_reply_with_the_baseline():
    groups = ["a", "b", "a", "c", "a", "c"]
    rewards = [1.0, 0.5, -1.0, 1.0, 0.3, 1.0]
    found = losses.group_baselines(groups, rewards, 0.2)
    assert found == pytest.approx([0.1, 0.2, 0.1, 1.0, 0.1, 1.0])


def test_kto_saturates_and_pushes_both_ways():
    ref = torch.full((3,), -2.0, dtype=torch.float64)
    ones = torch.ones(3, dtype=torch.float64)
    for sign in (1.0, -1.0):
        pushes = []
        for far in (0.0, 30.0):
            theta = (ref + sign * far).requires_grad_()
            terms = Terms(ref, ref, ones, sign * ones, ones / 3, member=ones[None], zero=torch.tensor(0.0))
            losses.kto(torch, theta, terms, beta=BETA)[0].backward()
            pushes.append(theta.grad.tolist())
        assert pushes[0] == pytest.approx([-sign * BETA / 4] * 3)
        assert abs(pushes[1][0]) < 1e-3 * abs(pushes[0][0])


def test_the_reference_point_is_a_divergence_of_mismatched_replies():
    theta, ref = np.array([-1.0, -2.0, -3.0]), np.array([-2.0, -2.5, -2.0])
    assert losses.reference_point(theta, ref, [2, 1]) == pytest.approx((1.5 - 1.0) / 2)
    assert losses.reference_point(ref, theta, [2, 1]) == 0.0  # never below
    assert losses.reference_point(theta, ref, [3]) == 0.0


def test_a_teachers_word_on_a_token_is_clipped_and_weighted():
    pull = losses.directional(np.array([-1.0, -9.0, -0.1]), np.array([-2.0, -1.0, -5.0]), weight=0.5, clip=2.0)
    assert pull.tolist() == pytest.approx([0.5, -1.0, 1.0])


def test_what_is_imitated_has_no_guard_and_counts_for_no_drift():
    old = torch.full((2,), -6.0, dtype=torch.float64)
    theta = (old + 3).requires_grad_()
    ones = torch.ones(2, dtype=torch.float64)
    terms = Terms(old, old, ones, ones, ones / 2, is_own=torch.tensor([1.0, 0.0]))
    loss, sums = mis_po.loss(torch, theta, terms, kl_ref=0.0, **GUARD)
    loss.backward()
    assert theta.grad.tolist() == pytest.approx([0, -0.5])
    assert float(sums["kl_old"].detach()) == pytest.approx(math.exp(3) - 4)
