"""The log-probs, against the plain way of computing them."""

import json
import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPTNeoXJapaneseConfig

from tests.harness import tiny
from trainer import mis_po
from trainer.lessons.chat_template import Template
from trainer.mis_po import OFF, Band, Terms
from trainer.policy import torch_midway
from trainer.policy.packing import Tokens, pack
from trainer.policy.torch_policy import _peft

ROWS = [
    Tokens((1, 50, 60), (70, 80, 90, 2), 0.8),
    Tokens((1, 51), (71, 2), 1.0),
    Tokens((1, 52, 53, 54, 55), (72, 73, 74, 75, 76, 77), 0.5),
]


@pytest.fixture
def policy(model):
    return tiny.policy(model)


def plain(model, row, top_p=1.0, top_k=0):
    """One sequence, no batch, no short cut, float64 from the logits on."""
    causal = AutoModelForCausalLM.from_pretrained(model)
    ids = torch.tensor([row.prompt + row.reply])
    with torch.no_grad():
        logits = causal(ids).logits[0].double()[len(row.prompt) - 1 : -1] / row.temperature
    found = []
    for row_logits, token in zip(logits, row.reply, strict=True):
        probs = row_logits.softmax(-1)
        order = probs.argsort(descending=True).tolist()
        kept, mass = [], 0.0
        limited = order[: top_k or None]
        whole = sum(float(probs[i]) for i in limited)
        for i in limited:
            if mass / whole >= top_p:
                break
            kept.append(i)
            mass += float(probs[i])
        found.append(math.log(float(probs[token]) / mass) if token in kept else -math.inf)
    return found


def plain_of(causal, row):
    """(T,) log-probs of a reply, one token after the other."""
    with torch.no_grad():
        logits = causal(torch.tensor([row.prompt + row.reply])).logits[0].double()[len(row.prompt) - 1 : -1]
    log_probs = (logits / row.temperature).log_softmax(-1)
    return [float(each[token]) for each, token in zip(log_probs, row.reply, strict=True)]


def test_what_is_restored_has_no_gradient_of_a_step_that_was_not_taken(model):
    """A run that is stopped between the two, or that diverges there, begins its second try from nothing."""
    policy = tiny.policy(model)
    row = Tokens((1, 50), (60, 61, 2))
    old = policy.log_probs(pack([row])).plain
    terms = Terms(old, old, np.ones(3), np.full(3, np.nan), np.ones(3))
    policy.backward(pack([row]), terms, lambda xp, theta, t: ((t.advantage * theta).sum(), {}))
    policy.restore({})
    assert policy.step(1e-3, 1.0) == 0


def step(policy, rows, advantage=1.0, rate=1e-2, kl_ref=0.05):
    packed = pack(rows)
    old = policy.log_probs(packed).plain
    ones = np.ones_like(old)
    share = np.repeat([1 / (len(r.reply) * len(rows)) for r in rows], packed.lengths)
    sums = policy.backward(
        packed,
        Terms(old, old, ones, advantage * ones, share),
        lambda xp, theta, terms: mis_po.loss(xp, theta, terms, kl_ref=kl_ref, guard_low=0.5, guard_high=2.0),
    )
    return sums, policy.step(rate, 1.0)


def test_log_probs_equal_the_plain_computation(model, policy):
    packed = pack(ROWS)
    got = np.split(policy.log_probs(packed).plain, np.cumsum(packed.lengths)[:-1])
    for row, part in zip(ROWS, got, strict=True):
        np.testing.assert_allclose(part, plain(model, row), atol=2e-5)


def test_from_known_states_only_the_head_is_left(policy, monkeypatch):
    packed = pack(ROWS)
    computed, told = policy.log_probs(packed), policy.teach(packed, 8, required_ids=[5])
    states = policy.states(packed)
    monkeypatch.setattr(policy, "_hidden", None)
    for one, other in zip(policy.log_probs(packed, states), computed, strict=True):
        assert one.tolist() == other.tolist()
    again = policy.teach(packed, 8, required_ids=[5], states=states)
    assert (again.ids == told.ids).all() and (again.log_probs == told.log_probs).all()


@pytest.mark.parametrize(("top_p", "top_k"), [(0.9, 0), (0.5, 0), (1.0, 3), (0.8, 20), (1e-6, 0)])
def test_truncated_sampling_is_compared_under_the_same_truncation(model, policy, top_p, top_k):
    rows = [Tokens(r.prompt, r.reply, r.temperature, top_p, top_k) for r in ROWS]
    packed = pack(rows)
    got = policy.log_probs(packed)
    expected = np.concatenate([plain(model, r, top_p, top_k) for r in rows])
    np.testing.assert_allclose(got.sampled, expected, atol=2e-5)
    np.testing.assert_allclose(got.plain, np.concatenate([plain(model, r) for r in rows]), atol=2e-5)


def test_halfway_states_are_those_that_transformers_gives(model, policy):
    causal = AutoModelForCausalLM.from_pretrained(model)
    found = np.split(policy.middle(pack(ROWS)), np.cumsum([len(r.reply) for r in ROWS])[:-1])
    for row, states in zip(ROWS, found, strict=True):
        with torch.no_grad():
            all_layers = causal(torch.tensor([row.prompt + row.reply]), output_hidden_states=True).hidden_states
        # Of two layers the first has as many above it as below, but for one.
        np.testing.assert_allclose(states, all_layers[1][0, len(row.prompt) - 1 : -1].numpy(), atol=1e-5)


def test_a_model_that_names_no_layers_does_not_lean(policy):
    sizes = {"vocab_size": 99, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    nameless = AutoModelForCausalLM.from_config(GPTNeoXJapaneseConfig(**sizes))
    assert torch_midway.layer(nameless) is None and policy.leans


@pytest.mark.parametrize("trees", [True, False])
def test_who_leans_reads_on_from_states_that_are_moved_at_the_replies_alone(model, policy, monkeypatch, trees):
    if not trees:
        monkeypatch.setattr(policy, "_kernel", None)
    rows = [*ROWS, Tokens(ROWS[0].prompt, (70, 81, 2), 0.8)]  # shares its first reply token with another
    direction = np.random.default_rng(0).normal(0, 2, 64).astype(np.float32)
    before = policy.log_probs(pack(rows)).plain
    with policy.leaning(direction):
        found = np.split(policy.log_probs(pack(rows)).plain, np.cumsum([len(r.reply) for r in rows])[:-1])
    causal = AutoModelForCausalLM.from_pretrained(model)
    for row, leant in zip(rows, found, strict=True):
        move = torch.zeros(1, len(row.prompt) + len(row.reply), 64)
        move[:, len(row.prompt) - 1 :] = torch.from_numpy(direction)
        causal.model.layers[1].register_forward_pre_hook(lambda _, given, move=move: (given[0] + move, *given[1:]))
        np.testing.assert_allclose(leant, plain_of(causal, row), atol=1e-4)
        causal.model.layers[1]._forward_pre_hooks.clear()
    np.testing.assert_array_equal(policy.log_probs(pack(rows)).plain, before)  # and stands up again


def test_a_soft_cap_on_the_logits_is_applied(tmp_path):
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=259,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        final_logit_softcapping=2.0,
        initializer_range=0.5,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    got = tiny.policy(tmp_path).log_probs(pack([ROWS[0]])).plain
    np.testing.assert_allclose(got, plain(tmp_path, ROWS[0]), atol=2e-5)


def test_a_model_with_another_head_is_refused(model, monkeypatch):
    monkeypatch.setattr("trainer.policy.torch_policy.logit_scaling", lambda config: lambda logits: logits * 1.5)
    with pytest.raises(ValueError, match="does not know"):
        tiny.policy(model)


def test_old_log_probs_have_no_dropout(tmp_path):
    model = tiny.make_model(tmp_path / "m", attention_dropout=0.5)
    policy = tiny.policy(model)
    packed = pack(ROWS)
    first = policy.log_probs(packed).plain
    step(policy, ROWS, rate=1e-12)
    np.testing.assert_allclose(policy.log_probs(packed).plain, first, atol=1e-6)
    np.testing.assert_allclose(np.split(first, np.cumsum(packed.lengths)[:-1])[0], plain(model, ROWS[0]), atol=2e-5)


def test_a_foreign_adapters_dropout_is_off_where_activations_are_recomputed(model, policy, tmp_path, monkeypatch):
    policy.save(tmp_path)
    about = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(about | {"lora_dropout": 0.5}))
    monkeypatch.setattr("trainer.policy.footprint.SHARE_OF_FREE_MEMORY", 0.0)
    warm = tiny.policy(model, parent=tmp_path)
    assert ("gradient_checkpointing", True) in [choice[:2] for choice in warm.choices]
    noise = np.random.default_rng(0)
    warm.wear({n: noise.normal(0, 0.3, t.shape).astype(np.float32) for n, t in warm.adapter().items()})
    packed, trained = pack(ROWS), []
    old = warm.log_probs(packed).plain

    def loss(xp, theta, terms):
        trained.extend(theta.tolist())
        return theta.sum(), {}

    warm.backward(packed, Terms(old, old, *[np.ones_like(old)] * 3), loss)
    np.testing.assert_allclose(trained, old, atol=1e-4)


def test_the_gradient_is_the_finite_difference(model):
    policy = tiny.policy(model)
    step(policy, ROWS)  # away from B = 0, where A has no gradient
    packed = pack(ROWS)
    old = policy.log_probs(packed).plain
    advantage = np.repeat([1.0, -1.0, 0.5], packed.lengths)
    terms = Terms(old + 0.01, old - 0.2, np.ones_like(old), advantage, np.full_like(old, 0.1))

    def loss(xp, theta, constants):
        return mis_po.loss(xp, theta, constants, kl_ref=0.3, guard_low=0.5, guard_high=2.0)

    policy.backward(packed, terms, loss)
    name, parameter = max(policy.trained.items(), key=lambda item: float(item[1].grad.abs().max()))
    at = np.unravel_index(int(parameter.grad.abs().argmax()), parameter.shape)
    slope = float(parameter.grad[at])

    def value(shift):
        tensors = policy.adapter()
        tensors[name][at] += shift
        policy.wear(tensors)
        result = float(loss(np, policy.log_probs(packed).plain, terms)[0])
        tensors[name][at] -= shift
        policy.wear(tensors)
        return result

    assert (value(1e-2) - value(-1e-2)) / 2e-2 == pytest.approx(slope, rel=2e-2)


def test_micro_batches_add_up_to_the_batch(model):
    policy = tiny.policy(model)
    step(policy, ROWS)
    gradients = []
    for parts in ([ROWS], [[r] for r in ROWS]):
        for rows in parts:
            packed = pack(rows)
            old = policy.log_probs(packed).plain
            share = np.repeat([1 / (len(r.reply) * len(ROWS)) for r in rows], packed.lengths)
            policy.backward(
                packed,
                Terms(old, old - 0.1, np.ones_like(old), np.ones_like(old), share),
                lambda xp, theta, terms: mis_po.loss(xp, theta, terms, kl_ref=0.05, guard_low=0.5, guard_high=2.0),
            )
        gradients.append([p.grad.clone() for p in policy.trained.values()])
        for p in policy.trained.values():
            p.grad = None
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_checkpointed_gradients_are_the_same(model, monkeypatch):
    kept = tiny.policy(model)
    monkeypatch.setattr("trainer.policy.footprint.SHARE_OF_FREE_MEMORY", 0.0)
    recomputed = tiny.policy(model)
    assert ("gradient_checkpointing", True) in [choice[:2] for choice in recomputed.choices]
    recomputed.wear(kept.adapter())
    for policy in (kept, recomputed):
        for _ in range(2):
            step(policy, ROWS)
    for name, tensor in kept.adapter().items():
        np.testing.assert_allclose(recomputed.adapter()[name], tensor, rtol=1e-4, atol=1e-6)


def test_a_saved_adapter_is_worn_and_continued(model, policy, tmp_path):
    from peft import PeftModel

    for _ in range(3):
        step(policy, ROWS)
    folder = tmp_path / "v0001"
    folder.mkdir()
    policy.save(folder)
    packed = pack(ROWS)
    trained = policy.log_probs(packed).plain
    base = np.concatenate([plain(model, r) for r in ROWS])
    assert np.abs(trained - base).max() > 1e-2

    assert str(model.parent) not in (folder / "adapter_config.json").read_text()
    for row, part in zip(ROWS, np.split(trained, np.cumsum(packed.lengths)[:-1]), strict=True):
        with _peft():
            loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), folder)
        with torch.no_grad():
            ids = torch.tensor([row.prompt + row.reply])
            own = (loaded(ids).logits[0][len(row.prompt) - 1 : -1] / row.temperature).log_softmax(-1)
        np.testing.assert_allclose(part, own[range(len(row.reply)), row.reply].numpy(), atol=2e-5)

    other = tiny.policy(model)
    with other.wearing(folder):
        np.testing.assert_allclose(other.log_probs(packed).plain, trained, atol=2e-5)
    np.testing.assert_allclose(other.log_probs(packed).plain, base, atol=2e-5)
    warm = tiny.policy(model, parent=folder)
    np.testing.assert_allclose(warm.log_probs(packed).plain, trained, atol=2e-5)
    with warm.wearing(None):
        np.testing.assert_allclose(warm.log_probs(packed).plain, base, atol=2e-5)
    step(warm, ROWS)
    assert np.abs(warm.log_probs(packed).plain - trained).max() > 1e-3


def test_a_gradient_that_is_not_finite_changes_nothing(policy):
    before = policy.adapter()
    next(iter(policy.trained.values())).grad = torch.full_like(next(iter(policy.trained.values())), torch.nan)
    assert not math.isfinite(policy.step(1e-2, 1.0))
    for name, tensor in policy.adapter().items():
        np.testing.assert_array_equal(tensor, before[name])


def test_replies_are_those_of_the_seed_and_end_where_they_end(policy):
    prompts = [(1, 50, 60), (1, 51)]
    first = policy.generate(prompts, max_tokens=20, temperature=0.8, seed=3)
    assert first == policy.generate(prompts, max_tokens=20, temperature=0.8, seed=3)
    assert first != policy.generate(prompts, max_tokens=20, temperature=0.8, seed=4)
    for reply in first:
        assert 1 <= len(reply) <= 20
        assert 2 not in reply[:-1]


def test_a_seed_draws_what_transformers_would_draw(policy):
    prompts = [(1, 50, 60), (1, 51, 61), (1, 52, 62)]
    torch.manual_seed(3)
    with torch.inference_mode():
        ids = policy.model.generate(
            input_ids=torch.tensor(prompts),
            attention_mask=torch.ones(3, 3, dtype=torch.long),
            max_new_tokens=20,
            do_sample=True,
            temperature=0.8,
            top_k=0,
            pad_token_id=2,
        )[:, 3:].tolist()
    theirs = [row[: row.index(2) + 1] if 2 in row else row for row in ids]
    assert policy.generate(prompts, max_tokens=20, temperature=0.8, seed=3) == theirs


@pytest.mark.parametrize("setting", [{"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 1}, {"min_p": 0.5}])
def test_replies_are_the_policys_whatever_the_model_recommends(tmp_path, policy, setting):
    """Servers draw from the policy as the client asks; with a penalty, a candidate that loops would not show it."""
    model = tiny.make_model(tmp_path / "m")
    path = model / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"do_sample": True} | setting))
    recommending = tiny.policy(model)
    for temperature in (0.0, 0.3, 1.0):
        asked = {"max_tokens": 40, "temperature": temperature, "seed": 1}
        assert recommending.generate([range(20, 30)], **asked) == policy.generate([range(20, 30)], **asked)


def test_a_template_wrong_by_one_token_falls_out_of_the_band(policy):
    template = Template(policy.tokenizer)
    prompts = [template.prompt([{"role": "user", "content": f"q{i}"}]) for i in range(8)]
    replies = policy.generate(prompts, max_tokens=30, temperature=1.0, seed=0)
    right = pack([Tokens(p, tuple(r)) for p, r in zip(prompts, replies, strict=True)])
    wrong = pack([Tokens(p[:-1], tuple(r)) for p, r in zip(prompts, replies, strict=True)])
    limits = {"token_low": 0.5, "token_high": 2.0, "band": Band(0.996, 1.001, 0.0, 0.01)}
    served = np.split(policy.log_probs(right).sampled, np.cumsum(right.lengths)[:-1])
    for packed, accepted in ((right, 8), (wrong, 0)):
        old = np.split(policy.log_probs(packed).sampled, np.cumsum(packed.lengths)[:-1])
        verdicts = [mis_po.verdict(o, b, **limits) for o, b in zip(old, served, strict=True)]
        assert sum(v.reply for v in verdicts) == accepted
    assert OFF.limits(10) == (-math.inf, math.inf)


@pytest.mark.model
def test_the_real_model_gives_its_own_log_probs(weights):
    policy = tiny.policy(weights, compute="float32")
    template = Template(policy.tokenizer)
    prompt = template.prompt([{"role": "user", "content": "What is the capital of France?"}])
    row = Tokens(prompt, template.reply("The capital of France is Paris.", ended=True), 0.8)
    got = policy.log_probs(pack([row, Tokens(prompt[:9], prompt[9:])]))
    short, whole = len(row.reply), plain(weights, row)
    order = np.split(got.plain, [short])[0]
    np.testing.assert_allclose(order, whole, atol=1e-3)
    assert order.mean() > -0.5
