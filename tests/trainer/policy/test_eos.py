"""Server and trainer must end a reply at the same tokens, else the trainer judges replies that nobody would get."""

import asyncio
import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.harness import tiny
from trainer.policy.eos import of_replies, of_turn
from trainer.serve.engine import Engine, GenerationRequest
from trainer.serve.sampling import Sampling

TURN_END, TEXT_END = 2, 0
PROMPT = tuple(range(20, 30))


@pytest.fixture(params=["<|im_end|>", "<|endoftext|>"])
def finetune(request, tmp_path):
    """As many ChatML fine-tunes are: the base model's end in its config; the turn's in its tokenizer, or nowhere."""
    model = tiny.make_model(tmp_path / "m")
    for name in ("config.json", "generation_config.json"):
        about = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps(about | {"eos_token_id": TEXT_END}))
    tokenizer = tiny.tokenizer()
    tokenizer.eos_token = request.param
    tokenizer.save_pretrained(model)
    return model


async def served(model, count):
    engine = Engine(AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model))
    ask = GenerationRequest(PROMPT, 300, Sampling(temperature=1.5, seed=3))
    replies = [[] for _ in range(count)]
    try:
        async for choice, delta in engine.generate(ask, count):
            replies[choice].append(delta.token)
    finally:
        engine.close()
    return replies


def test_replies_end_where_the_turn_ends(finetune):
    drawn = tiny.policy(finetune).generate([PROMPT] * 16, max_tokens=300, temperature=1.5, seed=3)
    for replies in (drawn, asyncio.run(served(finetune, 16))):
        assert {TURN_END, TEXT_END} == {reply[-1] for reply in replies if len(reply) < 300}
        assert not any({TURN_END, TEXT_END} & {*reply[:-1]} for reply in replies)


@pytest.mark.parametrize(("configured", "expected"), [(None, [2]), (7, [2, 7]), ([9, 7], [2, 7, 9])])
def test_all_who_name_an_end_are_heard(configured, expected):
    assert of_replies(configured, tiny.tokenizer()) == expected


def test_a_tokenizer_that_names_none_adds_none():
    tokenizer = tiny.tokenizer()
    tokenizer.eos_token = None
    tokenizer.chat_template = None
    assert of_replies([7], tokenizer) == [7]


@pytest.mark.parametrize(
    ("template", "end"),
    [
        ("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|><|endoftext|>{% endfor %}", "<|im_end|>"),
        # A prompt that ends before what the template puts around a whole reply, as Harmony's does.
        ("{% for m in messages %}a<|im_start|>{{ m.content }}<|endoftext|>{% endfor %}", "<|endoftext|>"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "<|im_end|>"),
        ("{{ raise_exception('no') }}", "<|im_end|>"),
    ],
)
def test_a_turn_ends_with_the_first_special_token_after_the_reply(template, end):
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = template
    assert of_turn(tokenizer) == tokenizer.convert_tokens_to_ids(end)
