"""The built-in server's chat before templates that refuse what others let pass; rendered by real tokenizers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.trainer.serving import Served
from trainer.serve.http_api import make_app

pytestmark = pytest.mark.model

# What the templates of these families do with roles, in short.
QWEN = """{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning.') }}
{%- elif m.role not in ['system', 'user', 'assistant', 'tool'] %}{{ raise_exception('Unexpected message role.') }}
{%- endif %}
<|{{ m.role }}|>{{ m.content }}{%- endfor %}"""
MISTRAL = """{%- if messages[0].role == 'system' %}<|system|>{{ messages[0].content }}{%- set rest = messages[1:] %}
{%- else %}{%- set rest = messages %}{%- endif %}
{%- set ns = namespace(turn=0) %}
{%- for m in rest %}{%- if m.role in ['user', 'assistant'] and not m.tool_calls %}
{%- if (m.role == 'user') != (ns.turn % 2 == 0) %}{{ raise_exception('roles must alternate') }}{%- endif %}
{%- set ns.turn = ns.turn + 1 %}{%- elif m.role == 'system' %}{{ raise_exception('system only first') }}{%- endif %}
<|{{ m.role }}|>{{ m.content }}{%- endfor %}"""
GEMMA = """{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{%- endif %}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{%- endif %}
<|{{ m.role }}|>{{ m.content }}{%- endfor %}"""
GPT_OSS = "{%- for m in messages %}<|{{ 'dev' if m.role == 'developer' else m.role }}|>{{ m.content }}{%- endfor %}"
CHATML = "{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}{%- endfor %}"


def said(*messages: str) -> list[dict[str, str]]:
    roles = {"s": "system", "d": "developer", "u": "user", "a": "assistant"}
    return [{"role": roles[message[0]], "content": message} for message in messages]


@pytest.fixture
def tokenizer(served: Served) -> Iterator[Any]:
    """The engine's own, whose template a test may change."""
    given = served.engine.tokenizer.chat_template
    yield served.engine.tokenizer
    served.engine.tokenizer.chat_template = given


async def prompt(served: Served, template: str, messages: list[dict[str, str]]) -> tuple[int, str]:
    served.engine.tokenizer.chat_template = template
    async with TestClient(TestServer(make_app(served.engine, name="m", weights=served.weights))) as client:
        body = {"model": "m", "messages": messages}
        async with client.post("/tokenize", json=body) as response:
            answer = await response.json()
            if response.status != 200:
                return response.status, answer["error"]["message"]
        async with client.post("/v1/chat/completions", json={**body, "max_tokens": 1}) as response:
            assert response.status == 200
    return 200, served.engine.tokenizer.decode(answer["tokens"]).replace("\n", "")


@pytest.mark.parametrize(
    ("template", "messages", "text"),
    [
        (QWEN, said("d1", "u1"), "<|system|>d1<|user|>u1"),
        (QWEN, said("s1", "d2", "u1"), "<|system|>s1d2<|user|>u1"),
        (QWEN, said("s1", "u1", "a1", "s2", "u2"), "<|system|>s1s2<|user|>u1<|assistant|>a1<|user|>u2"),
        (MISTRAL, said("u1", "u2", "a1", "a2", "u3"), "<|user|>u1u2<|assistant|>a1a2<|user|>u3"),
        (MISTRAL, said("s1", "u1", "d2", "u2"), "<|system|>s1d2<|user|>u1u2"),
        (GEMMA, said("s1", "u1"), "<|user|>s1u1"),
        (GEMMA, said("d1", "s1", "u1", "a1", "u2"), "<|user|>d1s1u1<|assistant|>a1<|user|>u2"),
        (GEMMA, said("s1"), "<|user|>s1"),
        (GPT_OSS, said("s1", "d1", "u1"), "<|system|>s1<|dev|>d1<|user|>u1"),
        (CHATML, said("s1", "s2", "u1", "d1", "u2"), "<|system|>s1<|system|>s2<|user|>u1<|system|>d1<|user|>u2"),
    ],
    ids=[
        "developer", "system-and-developer", "system-in-the-middle", "same-speaker", "developer-in-the-middle",
        "no-system", "no-system-but-two", "system-alone", "knows-developers", "takes-all",
    ],
)  # fmt: skip
async def test_what_a_template_is_given(
    served: Served, tokenizer: Any, template: str, messages: list[dict[str, str]], text: str
) -> None:
    given = copy.deepcopy(messages)
    assert await prompt(served, template, messages) == (200, text)
    assert messages == given


async def test_what_no_form_helps_is_refused_in_the_templates_words(served: Served, tokenizer: Any) -> None:
    status, message = await prompt(served, "{{ raise_exception('no ' ~ messages|length) }}", said("s1", "s2", "u1"))
    assert (status, message) == (400, "The chat template refused the messages: no 3")


async def test_a_call_keeps_its_result_right_behind_it(served: Served, tokenizer: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    calls = [{"role": "assistant", "content": text, "tool_calls": [call]} for text in ("b", "c")]
    result = {"role": "tool", "tool_call_id": "c", "content": "42"}
    messages: list[Any] = [*said("u1"), calls[0], result, *said("s2"), result, calls[1], result, *said("a1", "a2")]
    _, text = await prompt(served, QWEN, messages)
    assert text == "<|system|>s2<|user|>u1<|assistant|>b<|tool|>42<|tool|>42<|assistant|>c<|tool|>42<|assistant|>a1a2"
