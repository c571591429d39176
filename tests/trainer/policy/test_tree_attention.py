"""Many sequences in one tree give what each gives alone: log-probs, loss and gradients, on the usual model shapes."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, Qwen3ForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from scripts.models import tiny as tiny_models
from tests.harness import tiny
from trainer import mis_po
from trainer.mis_po import Terms
from trainer.policy import tree, tree_attention
from trainer.policy.packing import Tokens, group, pack

SHAPE = {
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "initializer_range": 0.2,
}
CONFIGS = {
    "llama": LlamaConfig(**SHAPE),
    "llama, one head each, a head of its own": LlamaConfig(
        **SHAPE | {"num_key_value_heads": 4, "tie_word_embeddings": False}
    ),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE),
    "mistral without a window": MistralConfig(**SHAPE, sliding_window=None),
    "mistral with a window that never closes": MistralConfig(**SHAPE, sliding_window=4096),
    "mistral with a window": MistralConfig(**SHAPE, sliding_window=8),
    "qwen2 with a window in one of two layers": Qwen2Config(
        **SHAPE, use_sliding_window=True, sliding_window=8, max_window_layers=1
    ),
}
# Kinds whose layers see less than all before them, or have a running state.
HYBRID = (
    "gpt_oss",
    "gemma3_text",
    "gemma4_text",
    "qwen3_5_text",
    "qwen3_next",
    "lfm2",
    "falcon_h1",
    "granitemoehybrid",
)
CONFIGS |= {kind: tiny_models.config_of(kind, vocabulary=259) for kind in HYBRID}
FORBIDDEN = {
    "llama": (
        LlamaConfig(**SHAPE, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
        "dynamic rotary embedding",
    ),
}


def make(folder, config):
    torch.manual_seed(0)
    MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(params=CONFIGS)
def policy(request, tmp_path):
    return tiny.policy(make(tmp_path, CONFIGS[request.param]))


def conversation(rng):
    """A long prompt that most share, replies that branch, one that became history, a duplicate, and a stranger."""
    draw = lambda n: tuple(int(i) for i in rng.integers(3, 259, n))  # noqa: E731
    prompt, reply = draw(300), draw(9)
    return [
        Tokens(prompt, reply, 0.8),
        Tokens(prompt, reply[:4] + draw(12), 0.8),
        Tokens(prompt, draw(1)),
        Tokens(prompt + reply + draw(5), draw(20), 0.5),  # the first reply, one turn later
        Tokens(prompt + reply, draw(3)),
        Tokens(prompt, reply, 1.3),
        Tokens(prompt[:150] + draw(20), draw(6)),
        Tokens(draw(40), draw(30)),
        Tokens(draw(1), draw(2)),
    ]


def taught(policy, batches, everything):
    """Losses and gradients of these micro-batches, summed."""
    total = 0.0
    for rows in batches:
        packed = pack(rows)
        old = policy.log_probs(packed).plain
        advantage = np.repeat([1.0 if len(r.reply) % 2 else -1.0 for r in rows], packed.lengths)
        share = np.repeat([1 / (len(r.reply) * len(everything)) for r in rows], packed.lengths)
        total += policy.backward(
            packed,
            Terms(old, old - 0.1, np.ones_like(old), advantage, share),
            lambda xp, theta, terms: mis_po.loss(xp, theta, terms, kl_ref=0.05, guard_low=0.5, guard_high=2.0),
        )["loss"]
    gradients = {name: p.grad.clone() for name, p in policy.trained.items()}
    for p in policy.trained.values():
        p.grad = None
    return total, gradients


def away_from_start(policy, seed=0):
    """At B = 0 half of the gradients are 0, and equal for no reason."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, p in policy.trained.items():
            if "lora_B" in name:
                p.normal_(0, 0.05)


def close(one, other, relative=1e-4):
    return float((one - other).norm()) <= relative * float(other.norm())


def test_one_tree_is_every_sequence_alone(policy):
    assert ("shared_prefixes", "blocks") in [choice[:2] for choice in policy.choices]
    away_from_start(policy)
    rows = conversation(np.random.default_rng(0))
    assert any(b.columns is None for b in tree.blocks(tree.grow(rows)))
    together = policy.log_probs(pack(rows)).plain
    apart = np.concatenate([policy.log_probs(pack([r])).plain for r in rows])
    np.testing.assert_allclose(together, apart, rtol=1e-4, atol=1e-5)
    loss, gradients = taught(policy, [rows], rows)
    loss_apart, gradients_apart = taught(policy, [[r] for r in rows], rows)
    assert loss == pytest.approx(loss_apart, rel=1e-4)
    for name, gradient in gradients.items():
        assert close(gradient, gradients_apart[name]), name


def test_alone_is_what_transformers_computes(policy):
    """`alone` above goes through the tree too: here it does not."""
    away_from_start(policy)
    for row in conversation(np.random.default_rng(1)):
        with torch.inference_mode():
            logits = policy.model(torch.tensor([row.prompt + row.reply])).logits[0, len(row.prompt) - 1 : -1]
        expected = (logits / row.temperature).log_softmax(-1)[range(len(row.reply)), row.reply]
        np.testing.assert_allclose(policy.log_probs(pack([row])).plain, expected.numpy(), rtol=1e-4, atol=1e-5)


def test_any_grouping_adds_up_to_the_same(policy):
    away_from_start(policy)
    rows = conversation(np.random.default_rng(2))
    whole = taught(policy, [rows], rows)
    groups = group(rows, policy.budget.halved(400))
    assert len(groups) > 1
    parts = taught(policy, [[rows[i] for i in members] for members in groups], rows)
    assert parts[0] == pytest.approx(whole[0], rel=1e-4)
    for name, gradient in parts[1].items():
        assert close(gradient, whole[1][name]), name


def test_recomputed_activations_give_the_same_gradient(policy, tmp_path, monkeypatch):
    away_from_start(policy)
    rows = conversation(np.random.default_rng(3))
    kept = taught(policy, [rows], rows)
    monkeypatch.setattr("trainer.policy.footprint.SHARE_OF_FREE_MEMORY", 0.0)
    other = tiny.policy(tmp_path)
    assert ("gradient_checkpointing", True) in [choice[:2] for choice in other.choices]
    other.wear(policy.adapter())
    recomputed = taught(other, [rows], rows)
    for name, gradient in recomputed[1].items():
        assert close(gradient, kept[1][name]), name


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_model_that_sees_more_or_less_than_its_ancestors_is_padded_and_says_why(tmp_path, name):
    config, reason = FORBIDDEN[name]
    policy = tiny.policy(make(tmp_path, config))
    why = {choice: why for choice, value, why in policy.choices if value is False}
    assert reason in why["shared_prefixes"]
    assert not policy.budget.trees
    away_from_start(policy)
    rows = conversation(np.random.default_rng(0))[2:]
    together = policy.log_probs(pack(rows)).plain
    apart = np.concatenate([policy.log_probs(pack([r])).plain for r in rows])
    np.testing.assert_allclose(together, apart, rtol=1e-4, atol=1e-5)
    whole, parts = taught(policy, [rows], rows), taught(policy, [[r] for r in rows], rows)
    for each, gradient in whole[1].items():
        assert close(gradient, parts[1][each]), each


def test_a_model_whose_code_does_otherwise_is_found_out(tmp_path, monkeypatch):
    real = tree_attention.Layout.inputs
    monkeypatch.setattr(
        tree_attention.Layout, "inputs", lambda self: real(self) | {"position_ids": torch.zeros_like(self.depth)}
    )
    policy = tiny.policy(make(tmp_path, CONFIGS["qwen3"]))
    assert not policy.budget.trees
    why = {name: why for name, _, why in policy.choices}["shared_prefixes"]
    assert "other hidden states together than apart" in why
    assert policy._causal.config._attn_implementation == "sdpa"


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_flex_attention_has_the_same_mask(tmp_path):
    """The path for CUDA, uncompiled on the CPU: its mask and its shapes, not its speed."""
    make(tmp_path, CONFIGS["qwen3"])
    model = Qwen3ForCausalLM.from_pretrained(tmp_path).eval()
    assert tree_attention.prepare(model, "cpu", max_seq_len=4096)[0] == "blocks"
    forest = tree.grow(conversation(np.random.default_rng(4)))
    with torch.inference_mode():
        flex = model.model(**tree_attention.Layout(forest, "cpu", flex=True).inputs()).last_hidden_state
        own = model.model(**tree_attention.Layout(forest, "cpu", flex=False).inputs()).last_hidden_state
    torch.testing.assert_close(flex, own, rtol=1e-3, atol=1e-4)


def test_generation_is_not_touched(policy, tmp_path):
    """Left padding and a cache go through transformers' own attention."""
    plain = MODEL_FOR_CAUSAL_LM_MAPPING[type(policy._causal.config)].from_pretrained(tmp_path)
    prompts = [(1, 50, 60, 70), (1, 51)]
    replies = policy.generate(prompts, max_tokens=8, temperature=0, seed=0)
    for prompt, reply in zip(prompts, replies, strict=True):
        out = plain.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)[0, len(prompt) :]
        assert out.tolist()[: len(reply)] == reply
