"""Constrained answers over HTTP: JSON by a schema, forced calls, penalties, and what is refused while others stream."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import openai
import pytest
import torch
from aiohttp.test_utils import TestClient, TestServer
from pydantic import BaseModel, ConfigDict

from tests.trainer.serving import QUESTIONS, Served, forward_logprobs, peft_model, until
from trainer.serve.constraints import Compiler, SchemaPart
from trainer.serve.engine import GenerationRequest
from trainer.serve.http_api import make_app
from trainer.serve.sampling import RULED_OUT, Sampling

pytestmark = pytest.mark.model

ANIMAL = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["cat", "dog"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "of a pet", "parameters": ANIMAL}}
    for name in ("adopt", "feed")
]


class Animal(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    legs: int


@pytest.fixture
async def sdk(served: Served):
    app = make_app(served.engine, name="smollm2", weights=served.weights)
    async with TestClient(TestServer(app)) as client:
        base_url = str(client.make_url("/v1"))
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as sdk:
            yield sdk


@pytest.fixture(scope="module")
def constraint(served: Served):
    compiler = Compiler(served.engine.tokenizer, served.engine.vocabulary, sorted(served.engine.ends))
    return compiler.compile([[SchemaPart(ANIMAL)]])


def asked(question="Describe a pet as JSON.", **fields):
    return {"model": "smollm2", "messages": [{"role": "user", "content": question}], "seed": 3, **fields}


def by_schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": schema}}


async def test_the_sdk_parses_what_its_own_schema_made(sdk):
    out = await sdk.chat.completions.parse(**asked(max_tokens=60), response_format=Animal)
    message = out.choices[0].message
    if out.choices[0].finish_reason == "stop":
        assert isinstance(message.parsed, Animal)
    assert message.refusal is None


async def test_each_choice_follows_the_schema_with_two_log_probs_a_token(sdk):
    ask = asked(n=3, max_tokens=80, temperature=1.2, top_p=0.9, logprobs=True, top_logprobs=2)
    out = await sdk.chat.completions.create(
        **ask, response_format=by_schema(ANIMAL), extra_body={"return_token_ids": True}
    )
    texts = [choice.message.content for choice in out.choices]
    assert all(json.loads(text)["kind"] in ("cat", "dog") for text in texts) and len(set(texts)) == 3
    for choice in out.choices:
        entries, numbers = choice.logprobs.content, choice.model_extra
        assert len(numbers["unconstrained_logprobs"]) == len(numbers["token_ids"]) == len(entries)
        assert all(isinstance(number, float) for number in numbers["unconstrained_logprobs"])
        assert choice.logprobs.refusal is None
        assert entries[0].logprob > numbers["unconstrained_logprobs"][0], "no reply of this model begins with JSON"


async def test_any_json_object(sdk):
    out = await sdk.chat.completions.create(**asked(max_tokens=50), response_format={"type": "json_object"})
    text = out.choices[0].message.content
    assert text.startswith("{")
    assert out.choices[0].finish_reason == "length" or isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    ("choice", "names", "finish"),
    [
        ("required", {"adopt", "feed"}, "tool_calls"),
        ({"type": "function", "function": {"name": "feed"}}, {"feed"}, "stop"),
    ],
)
async def test_a_forced_call_whole_and_streamed(sdk, choice, names, finish):
    ask = asked(max_tokens=120, tools=TOOLS, tool_choice=choice)
    out = (await sdk.chat.completions.create(**ask)).choices[0]
    (call,) = out.message.tool_calls
    assert out.message.content is None and out.finish_reason == finish
    assert call.function.name in names and set(json.loads(call.function.arguments)) == {"name", "kind"}
    name = arguments = ""
    ids, finishes = [], []
    async for chunk in await sdk.chat.completions.create(**ask, stream=True):
        (part,) = chunk.choices
        finishes += [part.finish_reason] if part.finish_reason else []
        assert not part.delta.content
        for piece in part.delta.tool_calls or ():
            ids += [piece.id] if piece.id else []
            name, arguments = name + (piece.function.name or ""), arguments + piece.function.arguments
    assert (name, arguments, finishes) == (call.function.name, call.function.arguments, [finish])
    assert len(ids) == 1


async def test_penalties_and_biases_change_what_is_said(sdk, served):
    ask = asked(QUESTIONS[0], temperature=0, max_tokens=24)
    plain = (await sdk.chat.completions.create(**ask)).choices[0].message.content
    paris = served.engine.tokenizer.encode(" Paris")[0]
    biased = await sdk.chat.completions.create(**ask, logit_bias={str(paris): -100})
    assert "Paris" in plain and "Paris" not in biased.choices[0].message.content
    loops = asked("Say yes yes yes yes yes.", temperature=0, max_tokens=40)
    calm = await sdk.chat.completions.create(**loops, frequency_penalty=2, presence_penalty=2)
    assert calm.choices[0].message.content != (await sdk.chat.completions.create(**loops)).choices[0].message.content


async def test_the_bytes_of_half_a_character_are_its_own(sdk):
    ask = asked("Say it.", max_tokens=12, logprobs=True, response_format=by_schema({"const": "漢字 😀"}))
    out = (await sdk.chat.completions.create(**ask)).choices[0]
    entries = out.logprobs.content
    assert json.loads(out.message.content) == "漢字 😀"
    assert any("\ufffd" in entry.token for entry in entries)
    joined = b"".join(bytes(entry.bytes) for entry in entries)
    assert joined.removesuffix(b"<|im_end|>").decode() == out.message.content


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"const": "x" * 1_000_000}, ""),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, ""),
        ({"enum": []}, ""),
        ({"$ref": "https://example.com/schema"}, ".$ref"),
        ({"properties": {"a": {"not": {"type": "null"}}}}, ".properties.a.not"),
    ],
)
async def test_a_bad_schema_is_refused_while_another_stream_goes_on(sdk, schema, place):
    stream = await sdk.chat.completions.create(**asked(QUESTIONS[1], max_tokens=30), stream=True)
    chunks = stream.__aiter__()
    await chunks.__anext__()
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.chat.completions.create(**asked(), response_format=by_schema(schema))
    assert caught.value.param == f"response_format.json_schema.schema{place}"
    assert caught.value.code == "invalid_json_schema"
    finishes = [choice.finish_reason async for chunk in stream for choice in chunk.choices]
    assert finishes[-1] in ("stop", "length")


async def test_a_tools_schema_is_named_in_its_place(sdk):
    tools = [TOOLS[0], {"type": "function", "function": {"name": "b", "parameters": {"not": {}}}}]
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.chat.completions.create(**asked(tools=tools, tool_choice="required"))
    assert caught.value.param == "tools.1.function.parameters.not"


# --- in the engine: beside others, and against plain transformers ---


async def test_beside_others_a_constrained_reply_is_what_it_is_alone(served, constraint):
    asks = [
        GenerationRequest(
            served.prompt(question), 40, Sampling(temperature=0.9, seed=n), adapter=adapter, constraint=form
        )
        for n, question in enumerate(QUESTIONS[:2])
        for adapter in (None, *served.adapters)
        for form in (None, constraint)
    ]
    together = await asyncio.gather(*(served.reply(ask) for ask in asks))
    for ask, reply in list(zip(asks, together, strict=True))[1::2]:
        alone = await served.reply(ask)
        assert [d.token for d in reply] == [d.token for d in alone]
        assert [d.unconstrained for d in reply] == pytest.approx([d.unconstrained for d in alone], abs=1e-3)
        text = "".join(d.text for d in reply)
        assert reply[-1].finish == "length" or set(json.loads(text)) == {"name", "kind"}
    assert all(d.unconstrained is None for reply in together[::2] for d in reply)


async def test_both_log_probs_are_those_of_transformers_under_the_mask(served, constraint):
    adapter = served.adapters[0]
    ask = GenerationRequest(served.prompt(QUESTIONS[2]), 40, Sampling(temperature=0.7, seed=5), adapter=adapter)
    reply = await served.reply(replace(ask, constraint=constraint))
    tokens = [d.token for d in reply]
    rows = forward_logprobs(peft_model(served, adapter), ask.prompt, tokens, 0.7)
    state = constraint.start()
    for delta, row in zip(reply, rows, strict=True):
        mask = state.mask()
        assert delta.unconstrained == pytest.approx(max(float(row[delta.token]), RULED_OUT), abs=2e-3)
        expected = float(row[delta.token] - row[mask].logsumexp(-1))
        assert delta.logprob == pytest.approx(expected, abs=2e-3)
        if delta.token not in served.engine.ends:
            state.take(delta.token)
    assert max(float(torch.tensor(d.logprob - d.unconstrained)) for d in reply) > 1, "the mask had a say"


async def test_stops_and_a_client_that_leaves_free_the_rows(served, constraint):
    ask = GenerationRequest(served.prompt(QUESTIONS[0]), 40, Sampling(seed=1), stop=('"kind"',), constraint=constraint)
    reply = await served.reply(ask)
    assert reply[-1].stopped_by == '"kind"' and "".join(d.text for d in reply).startswith('{"name": "')
    stream = served.engine.generate(replace(ask, stop=()), 2)
    await anext(stream.__aiter__())
    stream.cancel()
    await until(lambda: served.engine.load == (0, 0))
