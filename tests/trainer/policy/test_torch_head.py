import pytest
import torch

from trainer.policy import torch_head

VOCABULARY, WIDTH = 300, 16


def log_probs(weight, target, scale=lambda x: x):
    def score(hidden, part):
        logits = scale(hidden @ weight.T) / 0.7
        return logits.log_softmax(-1).gather(-1, target[part, None]).squeeze(-1)

    return score


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("scale", [lambda x: x, lambda x: torch.tanh(x / 2) * 2], ids=["plain", "soft cap"])
def test_in_chunks_it_is_what_it_is_whole(monkeypatch, rows, scale):
    monkeypatch.setattr(torch_head, "CHUNK_BYTES", 0)  # the least: 16 rows
    torch.manual_seed(rows)
    hidden = torch.randn(rows, WIDTH, requires_grad=True)
    weight, target = torch.randn(VOCABULARY, WIDTH), torch.randint(VOCABULARY, (rows,))
    score = log_probs(weight, target, scale)
    found = torch_head.by_rows(hidden, score, VOCABULARY)
    whole = score(hidden, slice(None))
    torch.testing.assert_close(found, whole)
    # A loss that is not linear in the log-probs, so that each row's gradient has its own factor.
    (own,) = torch.autograd.grad((found.exp() * found).sum(), hidden)
    (expected,) = torch.autograd.grad((whole.exp() * whole).sum(), hidden)
    torch.testing.assert_close(own, expected)


def test_never_more_logits_at_once_than_the_chunk_holds():
    seen = []

    def score(hidden, part):
        seen.append(len(hidden))
        return hidden.sum(-1)

    hidden = torch.randn(1000, WIDTH, requires_grad=True)
    torch_head.by_rows(hidden, score, 50_000).sum().backward()
    assert sum(seen) == 1000
    assert max(seen) * 50_000 * 4 <= torch_head.CHUNK_BYTES


@pytest.mark.parametrize("rows", [1, 16, 17, 100])
def test_many_numbers_a_row_have_the_same_gradient_and_the_last_chunk_is_computed_once(monkeypatch, rows):
    monkeypatch.setattr(torch_head, "CHUNK_BYTES", 0)  # the least: 16 rows
    torch.manual_seed(rows)
    hidden = torch.randn(rows, WIDTH, requires_grad=True)
    weight, ids, asked = torch.randn(VOCABULARY, WIDTH), torch.randint(VOCABULARY, (rows, 5)), []

    def score(states, part):
        asked.append(part)
        return (states @ weight.T).log_softmax(-1).gather(-1, ids[part])  # (n, 5)

    found = torch_head.recomputed_by_rows(hidden, score, VOCABULARY)
    (own,) = torch.autograd.grad((found.exp() * found).sum(), hidden)
    parts = list(torch_head.chunks(rows, VOCABULARY))
    assert sorted(asked, key=parts.index) == [part for part in parts[:-1] for _ in range(2)] + parts[-1:]
    whole = score(hidden, slice(None))
    torch.testing.assert_close(found, whole)
    (expected,) = torch.autograd.grad((whole.exp() * whole).sum(), hidden)
    torch.testing.assert_close(own, expected)
