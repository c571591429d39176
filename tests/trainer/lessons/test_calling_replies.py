"""Replies with tool calls whose bytes the server did not tell: read off the prompt of the turn after them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.harness import tiny
from trainer.lessons.chat_template import Template
from trainer.lessons.line_members import BadLine
from trainer.lessons.prompts import with_calls
from trainer.lessons.samples import Sample, parse

# As Qwen's: calls in tags, and what tools say as a user's message.
CALLING = (
    "{% for m in messages %}{{ '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\n' + m.content }}"
    "{% for c in m.tool_calls or () %}{% set f = c.function %}{{ '<tool_call>\n' + ({'name': f.name, 'arguments': "
    "f.arguments} | tojson) + '\n</tool_call>' }}{% endfor %}{{ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"city":"Paris"}'}}
REPLY = {"role": "assistant", "content": "", "tool_calls": [CALL]}
WRITTEN = '<tool_call>\n{"name": "look", "arguments": {"city": "Paris"}}\n</tool_call>'
ASKED = [{"role": "user", "content": "Weather in Paris?"}]
PROMPT = "<|im_start|>user\nWeather in Paris?<|im_end|>\n<|im_start|>assistant\n"
AFTER = f"{PROMPT}{WRITTEN}<|im_end|>\n<|im_start|>user\nok<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def template() -> Template:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = CALLING
    return Template(tokenizer)


def line(**more: Any) -> dict[str, Any]:
    return {
        "version": 0, "reward": 1.0, "exact": False, "messages": ASKED, "text": "", "reply": REPLY, "as_sent": True,
        "finish_reason": "tool_calls", "sampling": {"temperature": 1.0}, "reply_tokens": len(WRITTEN) + 1, **more,
    }  # fmt: skip


def read(template: Template, **more: Any) -> Sample:
    return parse(line(**more), "rt-1", template, max_seq_len=4096)


def spelled(template: Template, sample: Sample) -> str:
    return str(template._tokenizer.decode(list(sample.tokens.reply)))


def test_the_call_as_the_weights_template_writes_it(template: Template) -> None:
    sample = read(template)
    assert spelled(template, sample) == f"{WRITTEN}<|im_end|>"
    assert not sample.compared and not sample.truncated and sample.flaw is None


def test_the_call_as_the_server_renders_it(template: Template) -> None:
    """Its server has another template: the words between the prompt and the end of the turn are the model's."""
    before, after = (text.replace("user", "human") for text in (PROMPT, AFTER))
    served = {"served": {"text": before, "ids": None}, "served_reply": {"text": after, "ids": None}}
    sample = read(template, **served, prompt_tokens=len(template.served(served["served"])))
    assert sample.prompt_by == "server" and spelled(template, sample) == f"{WRITTEN}<|im_end|>"


def test_words_before_a_call_belong_to_the_reply(template: Template) -> None:
    words = "I look it up. "
    sample = read(template, reply={**REPLY, "content": words}, text=words, reply_tokens=len(words) + len(WRITTEN) + 1)
    assert spelled(template, sample) == f"{words}{WRITTEN}<|im_end|>"


@pytest.mark.parametrize("count", [len(WRITTEN), len(WRITTEN) + 1])
def test_some_servers_do_not_count_the_end(template: Template, count: int) -> None:
    assert read(template, reply_tokens=count)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"reply_tokens": 99}, f"the template writes it in {len(WRITTEN) + 1} tokens, the server counted 99"),
        ({"reply_tokens": None}, "the server did not count"),
        (
            {"served": {"text": PROMPT, "ids": None}, "served_reply": {"text": "<|im_start|>other", "ids": None}},
            "the template writes the conversation otherwise once the call is in it",
        ),
        ({"reply": None}, "not exact and without text"),
    ],
)
def test_a_call_that_nobody_can_spell_trains_nothing(template: Template, more: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadLine, match=reason):
        read(template, **more)


def test_bytes_that_the_server_told_come_first(template: Template) -> None:
    pieces = list(WRITTEN.replace("Paris", "Paris, France"))
    told = {"pieces": pieces, "logprobs": [-0.1] * len(pieces), "logprobs_of": "model", "reply_tokens": len(pieces) + 1}
    assert "Paris, France" in spelled(template, read(template, **told))


def test_the_conversation_that_is_rendered_for_a_call() -> None:
    """Each call has its result, as some templates insist on; the prompt itself is not changed."""
    two = {**REPLY, "tool_calls": [CALL, {**CALL, "id": "c2"}]}
    chat = with_calls(ASKED, two)
    assert [m["role"] for m in chat] == ["user", "assistant", "tool", "tool"]
    assert [m.get("tool_call_id") for m in chat[2:]] == ["c1", "c2"] and len(ASKED) == 1
    assert json.loads(json.dumps(chat)) == chat
