"""The engine against plain transformers and peft: the same tokens, the same log-probs, whatever shares the batch."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from tests.trainer.serving import QUESTIONS, Served, forward_logprobs, greedy, peft_model, until
from trainer.formats.manifest import AdapterError
from trainer.serve.batched_lora import read_adapter
from trainer.serve.engine import Engine, EngineError, GenerationRequest, context_of
from trainer.serve.sampling import Sampling

pytestmark = pytest.mark.model

GREEDY = Sampling(temperature=0)
TOKENS = 16


@pytest.mark.parametrize("where", ["rope", "config"])
def test_no_request_changes_the_positions_of_those_beside_it(where):
    """longrope takes other factors for a whole batch as soon as one row is longer than the model once was."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "factor": 4,
    }
    short = {"original_max_position_embeddings": 64}
    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=256, rope_parameters={**rope, **short},
    )  # fmt: skip
    if where == "config":
        config.rope_parameters = rope
        config.original_max_position_embeddings = 64
    assert context_of(config) == 64
    assert context_of(LlamaConfig(max_position_embeddings=256)) == 256


def ids(reply):
    return [delta.token for delta in reply]


def text(reply):
    return "".join(delta.text for delta in reply)


def wearers(served: Served):
    return (None, *served.adapters)


async def test_greedy_and_log_probs_are_those_of_transformers_and_peft(served):
    prompt = served.prompt(QUESTIONS[1])
    seen = set()
    for adapter in wearers(served):
        ask = GenerationRequest(prompt, TOKENS, GREEDY, adapter=adapter)
        plain, warm = await asyncio.gather(
            served.reply(ask), served.reply(replace(ask, sampling=Sampling(temperature=0.7, top_p=0.9, seed=5)))
        )
        model = peft_model(served, adapter)
        own = forward_logprobs(model, prompt, ids(plain), 1.0)
        assert ids(plain) == own.argmax(-1).tolist()
        at = own.gather(-1, torch.tensor(ids(plain))[:, None])[:, 0].tolist()
        assert [d.logprob for d in plain] == pytest.approx(at, abs=1e-4)
        for delta, row in zip(warm, forward_logprobs(model, prompt, ids(warm), 0.7), strict=True):
            ordered, order = row.exp().sort(descending=True)
            kept = order[: int((ordered.cumsum(-1) - ordered < 0.9).sum())]
            assert delta.logprob == pytest.approx(float(row[delta.token] - row[kept].logsumexp(-1)), abs=1e-4)
        seen.add(tuple(ids(plain)))
    assert len(seen) == 3, "the adapters of this test change what is said"
    assert greedy(peft_model(served, None), prompt, TOKENS) in map(list, seen)


async def test_a_mixed_batch_that_changes_all_the_time_gives_each_what_it_gets_alone(served):
    asks = [
        GenerationRequest(served.prompt(question), 3 + 2 * n + m, sampling, adapter=adapter, stop=("zzz",))
        for n, question in enumerate(QUESTIONS)
        for m, adapter in enumerate(wearers(served))
        for sampling in (GREEDY, Sampling(temperature=0.9, seed=10 * n + m))
    ]
    assert len(asks) > 16, "some must wait for a row"

    async def later(n, ask):
        await asyncio.sleep(0.04 * (n % 7))
        return await served.reply(ask)

    together = await asyncio.gather(*(later(n, ask) for n, ask in enumerate(asks)))
    for ask, reply in list(zip(asks, together, strict=True))[::5]:
        alone = await served.reply(ask)
        assert ids(reply) == ids(alone)
        assert [d.logprob for d in reply] == pytest.approx([d.logprob for d in alone], abs=1e-4)


async def test_a_reply_ends_with_its_end_token_and_one_log_prob_for_it(served):
    (reply,) = await served.replies(GenerationRequest(served.prompt(QUESTIONS[0]), 40, GREEDY))
    assert text(reply) == "The capital of France is Paris."
    assert reply[-1].token == 2
    assert reply[-1].finish == "stop"
    assert reply[-1].logprob < 0


async def test_max_tokens_ends_it(served):
    reply = await served.reply(GenerationRequest(served.prompt(QUESTIONS[1]), 3, GREEDY))
    assert [d.finish for d in reply] == [None, None, "length"]


async def test_a_stop_string_does_not_show_but_its_tokens_are_kept(served):
    ask = GenerationRequest(served.prompt(QUESTIONS[0]), 40, GREEDY, stop=("France is",))
    reply = await served.reply(ask)
    assert text(reply) == "The capital of "
    assert reply[-1].finish == "stop"
    assert reply[-1].stopped_by == "France is"
    assert served.engine.tokenizer.decode(ids(reply)) == "The capital of France is"


async def test_choices_of_one_seed_differ_and_repeat(served):
    ask = GenerationRequest(served.prompt(QUESTIONS[1]), 12, Sampling(temperature=1.0, seed=4))
    first = [ids(reply) for reply in await served.replies(ask, choices=4)]
    again = [ids(reply) for reply in await served.replies(ask, choices=4)]
    assert first == again
    assert len({tuple(reply) for reply in first}) == 4


async def test_a_long_prompt_is_read_in_chunks_and_does_not_stop_the_others(served, monkeypatch):
    monkeypatch.setattr("trainer.serve.engine.CHUNK", 40)
    long = served.prompt("The sea is deep and blue. " * 40)
    assert len(long) > 6 * 40
    order = []

    async def whole(name, ask):
        out = []
        async for _, delta in served.engine.generate(ask):
            order.append(name)
            out.append(delta)
        return out

    short = GenerationRequest(served.prompt(QUESTIONS[1]), 30, GREEDY, ignore_eos=True)
    running = asyncio.create_task(whole("short", short))
    await until(lambda: len(order) >= 2)
    reply = await whole("long", GenerationRequest(long, 6, GREEDY, adapter=served.adapters[0]))
    await running
    assert ids(reply) == greedy(peft_model(served, served.adapters[0]), long, 6)
    assert order.index("long") > 5, "the short one went on meanwhile"


async def test_cancelling_frees_the_row(served):
    stream = served.engine.generate(GenerationRequest(served.prompt(QUESTIONS[1]), 2000, GREEDY, ignore_eos=True))
    async for _ in stream:
        break
    stream.cancel()
    await until(lambda: served.engine.load == (0, 0))


async def test_a_model_that_fails_ends_the_replies_and_not_the_engine(served, monkeypatch):
    ask = GenerationRequest(served.prompt(QUESTIONS[0]), 4, GREEDY)

    def broken(*args):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr("trainer.serve.engine.choose", broken)
        with pytest.raises(EngineError, match="out of memory"):
            await served.reply(ask)
    assert len(await served.reply(ask)) == 4


async def test_closing_ends_what_runs(served):
    engine = Engine(served.engine.model, served.engine.tokenizer)
    stream = engine.generate(GenerationRequest(served.prompt(QUESTIONS[1]), 500, GREEDY, ignore_eos=True))
    engine.close()
    with pytest.raises(EngineError, match="shutting down"):
        async for _ in stream:
            pass
    with pytest.raises(EngineError):
        engine.generate(GenerationRequest((1,), 1))


# --- adapters that cannot be worn ---


@pytest.fixture
def folder(served, tmp_path):
    return shutil.copytree(served.adapters[0].path, tmp_path / "adapter")


def configured(folder, **values):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def changed(folder, change):
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def first(tensors, side="A"):
    return next(key for key in tensors if f"lora_{side}" in key)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda f: (f / "adapter_config.json").unlink(), "missing"),
        (lambda f: (f / "adapter_config.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "adapter_model.safetensors").unlink(), "only safetensors"),
        (lambda f: (f / "adapter_model.safetensors").write_bytes(b"x" * 99), "cannot be read"),
        (lambda f: (f / "manifest.json").write_text('{"format": 1, "files": {"no.json": "0"}}'), "not in the manifest"),
        (lambda f: configured(f, use_dora=True), "use_dora"),
        (lambda f: configured(f, peft_type="IA3"), "not the configuration of a LoRA"),
        (lambda f: configured(f, init_lora_weights="pissa_niter_4"), "changes the base model"),
        (lambda f: configured(f, r=5), "has rank 8"),
        (lambda f: configured(f, lora_alpha="much"), "no usable r and lora_alpha"),
        (lambda f: changed(f, lambda t: t[first(t)].fill_(torch.nan)), "not finite"),
        (lambda f: changed(f, lambda t: t.pop(first(t))), "only one of"),
        (lambda f: changed(f, lambda t: t.update({first(t): torch.zeros(8, 99)})), "does not fit this model"),
        (lambda f: changed(f, lambda t: t.update({"base_model.model.x.weight": torch.zeros(1)})), "not a LoRA matrix"),
        (
            lambda f: changed(
                f, lambda t: t.update({first(t).replace("layers.0.", "layers.77."): torch.zeros(8, 576)})
            ),
            "another model",
        ),
    ],
)
def test_an_adapter_that_cannot_be_worn_exactly_is_refused_with_the_reason(served, folder, spoil, reason):
    spoil(folder)
    with pytest.raises(AdapterError, match=reason):
        read_adapter("x", folder, served.engine.model)
