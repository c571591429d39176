"""Choosing tokens: the distribution is the one that log-probs report, and a seed is worth what it says."""

import math
import random

import pytest
import torch

from trainer.serve.sampling import RULED_OUT, Sampling, choose, truncate

LOGITS = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.1]]))


def test_greedy_takes_the_likeliest_and_reports_temperature_1_over_the_whole_vocabulary():
    chosen = choose(LOGITS, [Sampling(temperature=0, top_p=0.1, top_k=1)], [0.99])
    assert chosen.ids == [0]
    assert chosen.logprobs == pytest.approx([math.log(0.5)])


def test_log_probs_are_those_after_temperature():
    chosen = choose(LOGITS, [Sampling(temperature=2.0)], [0.999])
    weights = [math.sqrt(p) for p in (0.5, 0.25, 0.15, 0.1)]
    assert chosen.ids == [3]
    assert chosen.logprobs == pytest.approx([math.log(weights[3] / sum(weights))], abs=1e-6)


@pytest.mark.parametrize(
    ("top_p", "top_k", "kept"),
    [(0.5, 0, 1), (0.51, 0, 2), (0.75, 0, 2), (0.9, 0, 3), (1.0, 2, 2), (0.6, 3, 2), (0.01, 0, 1), (1.0, 99, 4)],
)
def test_truncation_keeps_the_likeliest_until_their_mass_is_reached(top_p, top_k, kept):
    out = truncate(torch.log_softmax(LOGITS[0], -1), top_p, top_k)
    assert torch.isfinite(out).tolist() == [n < kept for n in range(4)]
    assert float(out.exp().sum()) == pytest.approx(1)


def test_truncation_agrees_with_the_trainers():
    from trainer.policy.torch_head import support_mass

    generator = torch.Generator().manual_seed(3)
    for top_p, top_k in [(0.3, 0), (0.9, 0), (1.0, 5), (0.8, 20)]:
        logprobs = torch.log_softmax(3 * torch.randn(200, generator=generator), -1)
        out = truncate(logprobs, top_p, top_k)
        rows = logprobs.expand(200, 200)
        theirs = logprobs - support_mass(rows, torch.arange(200), torch.full((200,), top_p), torch.full((200,), top_k))
        torch.testing.assert_close(out, theirs)


def test_samples_follow_the_distribution_and_never_what_was_ruled_out():
    draws = [random.Random(n).random() for n in range(2000)]
    chosen = choose(LOGITS.expand(2000, 4), [Sampling(top_k=3)] * 2000, draws)
    shares = [chosen.ids.count(token) / 2000 for token in range(4)]
    assert shares == pytest.approx([0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0], abs=0.04)


def test_the_largest_draw_finds_no_token_of_probability_0():
    logits = torch.tensor([[0.0, 1.0, -torch.inf, -torch.inf]])
    chosen = choose(logits, [Sampling()], [1 - 2**-53])
    assert chosen.ids == [1]


def test_each_row_has_its_own_settings():
    settings = [Sampling(temperature=0), Sampling(top_p=0.6), Sampling()]
    chosen = choose(LOGITS.expand(3, 4), settings, [0.99, 0.99, 0.99])
    assert chosen.ids == [0, 1, 3]
    assert chosen.logprobs == pytest.approx([math.log(0.5), math.log(1 / 3), math.log(0.1)], abs=1e-6)


def test_what_was_ruled_out_is_reported_as_a_number_that_json_has():
    chosen = choose(LOGITS, [Sampling(top_k=1)], [0.5])
    assert chosen.likeliest(0, 2)[1][1] == -9999.0


def test_a_mask_is_before_the_cuts_and_both_log_probs_are_told():
    mask = torch.tensor([False, True, True, True])
    chosen = choose(LOGITS.expand(2, 4), [Sampling(temperature=0), Sampling(top_k=1)], [0.5, 0.5], {0: mask, 1: mask})
    assert chosen.ids == [1, 1]
    assert chosen.logprobs == pytest.approx([math.log(0.25 / 0.5), 0.0])
    assert chosen.unconstrained == pytest.approx([math.log(0.25), RULED_OUT])
    assert choose(LOGITS, [Sampling()], [0.1]).unconstrained == [None]


def test_what_a_mask_allows_keeps_its_odds():
    draws = [random.Random(n).random() for n in range(2000)]
    mask = torch.tensor([False, True, True, False])
    chosen = choose(LOGITS.expand(2000, 4), [Sampling()] * 2000, draws, dict.fromkeys(range(2000), mask))
    assert [chosen.ids.count(token) / 2000 for token in range(4)] == pytest.approx([0, 0.625, 0.375, 0], abs=0.04)
    gaps = {round(q - p, 5) for q, p in zip(chosen.logprobs, chosen.unconstrained, strict=True)}
    assert gaps == {round(-math.log(0.4), 5)}, "minus the log of the mass that was allowed, whatever was drawn"


def test_penalties_and_biases_are_openais():
    settings = Sampling(temperature=0, presence_penalty=0.5, frequency_penalty=0.25, bias=((3, 5.0), (2, -1.0)))
    chosen = choose(LOGITS, [settings], [0.0], counts={0: {0: 2, 3: 1}})
    logits = [math.log(0.5) - 1.0, math.log(0.25), math.log(0.15) - 1.0, math.log(0.1) + 5 - 0.75]
    assert chosen.ids == [3]
    assert chosen.distribution[0].tolist() == pytest.approx(torch.tensor(logits).log_softmax(-1).tolist(), abs=1e-6)
    assert torch.equal(LOGITS, torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.1]]))), "the model's are left as they are"
