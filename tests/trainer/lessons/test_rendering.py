"""Prompts as the server read them: three servers whose chat template is not that of the weights, and what they tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.harness import tiny
from trainer.io.run_folder import read_lines
from trainer.lessons import samples
from trainer.lessons.chat_template import Template
from trainer.lessons.line_members import BadLine, TooLong
from trainer.lessons.prompts import NEUTRAL, with_hint
from trainer.lessons.rendering import AS_IS, KnownPrompt, RenderingWay
from trainer.lessons.samples import parse

TURN = "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
TURNS = "{% for m in messages %}" + TURN + "{% endfor %}"
ANSWER = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
DEFAULT = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are Tiny.<|im_end|>\n' }}{% endif %}"
    "{% if tools %}{{ '<|im_start|>tools\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}"
)
WEIGHTS = DEFAULT + TURNS + ANSWER
WORDED = "{% if tools %}{{ '<|im_start|>system\nTools: ' + tools[0]['name'] + '<|im_end|>\n' }}{% endif %}"
ALPACA = (
    "{% for m in messages %}{{ '### ' + m['role'] + ':\n' + m['content'] + '\n\n' }}{% endfor %}{{ '### Response:\n' }}"
)
SERVERS = {
    "no default system text": TURNS + ANSWER,
    "other tool wording": WORDED + TURNS + ANSWER,
    "Alpaca's": ALPACA,
}
TALK = [
    {"role": "user", "content": "Hello there"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "And now?"},
]
TOOLS = [{"name": "clock"}]


def template_of(text: str) -> Template:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = text
    return Template(tokenizer)


@pytest.fixture
def weights() -> Template:
    return template_of(WEIGHTS)


def text_of(server: str, messages: Sequence[Any], tools: Any = None) -> str:
    tokenizer = tiny.tokenizer()
    return str(
        tokenizer.apply_chat_template(
            messages, tools=tools, chat_template=SERVERS[server], tokenize=False, add_generation_prompt=True
        )
    )


def line(server: str, messages: Any = TALK, *, served: bool = True, counted: bool = True, **more: Any) -> Any:
    """A sample of this server's, which gives no token ids."""
    text = text_of(server, messages, more.get("tools"))
    count = len(tiny.tokenizer()(text, add_special_tokens=False)["input_ids"])
    return {
        "rating": "rt-1", "version": 0, "reward": 1.0, "weight": 1.0, "exact": False, "finish_reason": "stop",
        "messages": messages, "text": "Noon.", "served": {"text": text, "ids": None} if served else None,
        "prompt_tokens": count if counted else None, **more,
    }  # fmt: skip


def said(template: Template, ids: Sequence[int]) -> str:
    return str(template._tokenizer.decode(list(ids)))


@pytest.mark.parametrize("server", SERVERS)
def test_a_sample_trains_after_the_prompt_that_its_server_renders(weights: Template, server: str) -> None:
    found = parse(line(server, tools=TOOLS), "rt-1", weights, max_seq_len=1000)
    assert said(weights, found.tokens.prompt) == text_of(server, TALK, TOOLS)
    assert found.prompt_by == "server"


def test_a_text_is_begun_as_the_server_begins_it() -> None:
    """Where the tokeniser puts a token before each text, the server does, too, unless the template has said it."""
    from tokenizers import processors

    tokenizer = tiny.tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    template = Template(tokenizer)
    plain = template.reply("hi", ended=False)
    assert template.served({"text": "hi"}) == (0, *plain)
    assert template.served({"text": "hi"}, len(plain)) == plain, "by what the server counted"
    tokenizer.bos_token = "<|endoftext|>"
    assert Template(tokenizer).served({"text": "<|endoftext|>hi"}) == (0, *plain)


def test_a_rendering_of_another_length_than_was_read_is_refused(weights: Template) -> None:
    changed = line("Alpaca's") | {"prompt_tokens": 7}
    with pytest.raises(BadLine, match=r"read 7 tokens, and it renders this prompt to \d+ now"):
        parse(changed, "rt-1", weights, max_seq_len=1000)


def chosen(weights: Template, lines: Sequence[Any], folder: Path, questions: Any = None) -> Template:
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return weights.as_served(samples.known_prompts((line for _, line in read_lines(path)), weights), questions)


@pytest.mark.parametrize(
    ("server", "tools", "way"),
    [
        ("no default system text", None, RenderingWay("none")),
        ("no default system text", TOOLS, RenderingWay("none", False)),
        ("other tool wording", None, RenderingWay("none")),
    ],
)
def test_where_only_tokens_are_counted_the_way_is_found_that_explains_them(
    weights: Template, tmp_path: Path, server: str, tools: Any, way: RenderingWay
) -> None:
    system = [{"role": "system", "content": "Be brief."}, *TALK]
    lines = [line(server, chat, served=False, tools=tools) for chat in (TALK, TALK[:1], system)]
    template = chosen(weights, lines, tmp_path)
    assert template.choice.way == way and template.choice.wrong is None
    for one in lines:
        found = parse(one, "rt-1", template, max_seq_len=1000)
        assert said(weights, found.tokens.prompt) == text_of(server, one["messages"], tools)
        assert found.prompt_by == "template"


@pytest.mark.parametrize(("server", "tools"), [("Alpaca's", None), ("other tool wording", TOOLS)])
def test_what_no_way_explains_trains_nothing(weights: Template, tmp_path: Path, server: str, tools: Any) -> None:
    lines = [line(server, chat, served=False, tools=tools) for chat in (TALK, TALK[:1])]
    template = chosen(weights, lines, tmp_path)
    for one in (*lines, line(server, counted=False, served=False, tools=tools)):
        with pytest.raises(BadLine, match=r"the server read \d+ tokens where the weights' chat template makes \d+"):
            parse(one, "rt-1", template, max_seq_len=1000)
    assert template.question("Who?") and template.choice.way == AS_IS, "the gate asks its questions all the same"


def test_tools_that_are_worded_otherwise_refuse_no_prompt_without_tools(weights: Template, tmp_path: Path) -> None:
    """An older Ollama writes a tool as compact JSON. Half of an agent's requests have tools, or more."""
    plain = [line("other tool wording", chat, served=False) for chat in (TALK, TALK[:1])]
    with_tools = [line("other tool wording", chat, served=False, tools=TOOLS) for chat in (TALK, TALK[:1], TALK)]
    template = chosen(weights, [*plain, *with_tools], tmp_path)
    assert (template.choice.way, template.choice.wrong) == (RenderingWay("none"), None)
    assert (template.choice.prompts, template.choice.explained) == (5, 2)
    for one in plain:
        assert parse(one, "rt-1", template, max_seq_len=1000).prompt_by == "template"
    for one in with_tools:
        with pytest.raises(BadLine, match=r"the server read \d+ tokens where the weights' chat template makes \d+"):
            parse(one, "rt-1", template, max_seq_len=1000)


def test_a_prompt_that_was_cut_is_refused_alone_and_with_both_numbers(weights: Template, tmp_path: Path) -> None:
    cut = line("no default system text", served=False) | {"prompt_tokens": 11}
    lines = [line("no default system text", served=False), line("no default system text", TALK[:1], served=False), cut]
    template = chosen(weights, lines, tmp_path)
    assert (template.choice.prompts, template.choice.explained) == (3, 2)
    assert parse(lines[0], "rt-1", template, max_seq_len=1000).prompt_by == "template"
    with pytest.raises(
        BadLine, match=r"read 11 tokens where the weights' chat template makes \d+: .* it cut the prompt"
    ):
        parse(cut, "rt-1", template, max_seq_len=1000)


def test_where_all_prompts_were_cut_that_is_said_and_not_only_another_template(
    weights: Template, tmp_path: Path
) -> None:
    """Of conversations longer than its context an older Ollama reads the last message."""
    long = [{"role": "user", "content": "x " * 400}, *TALK[1:]]
    lines = [line("no default system text", long, served=False) | {"prompt_tokens": 11} for _ in range(3)]
    template = chosen(weights, lines, tmp_path)
    with pytest.raises(
        BadLine, match=r"read 11 tokens where the weights' chat template makes \d+: it cut the prompt, or"
    ):
        parse(lines[0], "rt-1", template, max_seq_len=2000)


def test_white_space_around_messages_is_not_kept_and_costs_no_sample(weights: Template, tmp_path: Path) -> None:
    """Agents end their messages with line breaks; the store has them without."""
    lines = [line("no default system text", chat, served=False) for chat in (TALK, TALK[:1])]
    for one in lines:
        one["prompt_tokens"] += len(one["messages"])
    template = chosen(weights, lines, tmp_path)
    assert template.choice.way == RenderingWay("none") and template.choice.explained == 2
    assert parse(lines[0], "rt-1", template, max_seq_len=1000).prompt_by == "template"
    served = line("Alpaca's")
    served["prompt_tokens"] += 2
    assert parse(served, "rt-1", weights, max_seq_len=1000).prompt_by == "server"


def test_what_nothing_is_known_of_is_rendered_by_the_weights_template(weights: Template, tmp_path: Path) -> None:
    one = line("Alpaca's", served=False, counted=False)
    template = chosen(weights, [one], tmp_path)
    assert (template.choice.way, template.choice.prompts) == (AS_IS, 0)
    assert parse(one, "rt-1", template, max_seq_len=1000).tokens.prompt == weights.prompt(TALK)


def test_a_shortened_prompt_is_the_servers_too_or_there_is_none(weights: Template, tmp_path: Path) -> None:
    """Only the template can render what was never asked: where it does as the server in all else."""
    long = [{"role": "user", "content": "x" * 400}, {"role": "assistant", "content": "Hi."}, TALK[0]]
    fits = line("no default system text", long)
    template = chosen(weights, [fits, line("no default system text")], tmp_path)
    found = parse(fits, "rt-1", template, max_seq_len=300)
    assert "shortened" in found.flags and found.hinted is None
    assert said(weights, found.tokens.prompt) == text_of("no default system text", TALK[:1])
    other = line("Alpaca's", long)
    with pytest.raises(TooLong, match="how its server renders it without its oldest turns is not known"):
        parse(other, "rt-1", chosen(weights, [other], tmp_path), max_seq_len=300)


def test_comments_and_the_gate_ask_as_the_server_renders(weights: Template, tmp_path: Path) -> None:
    with_comment = with_hint(TALK, "shorter")
    assert with_comment is not None
    hint = {"text": text_of("Alpaca's", with_comment), "ids": None}
    one = line("Alpaca's", reward=-1.0, comment="shorter", hinted=hint)
    asked = {NEUTRAL[0]: {"text": text_of("Alpaca's", [{"role": "user", "content": NEUTRAL[0]}]), "ids": None}}
    template = chosen(weights, [one], tmp_path, questions=asked)
    found = parse(one, "rt-1", template, max_seq_len=1000)
    assert found.hinted is not None and said(weights, found.hinted) == hint["text"]
    assert said(weights, template.question(NEUTRAL[0])) == asked[NEUTRAL[0]]["text"]
    liked = parse(one | {"reward": 1.0}, "rt-1", template, max_seq_len=1000)
    assert liked.hinted is None, "praise teaches nothing"


def test_ids_of_the_prompt_are_the_prompt_whatever_else_is_missing(weights: Template) -> None:
    one = line("Alpaca's") | {"prompt_token_ids": [5, 6, 7], "token_ids": None}
    found = parse(one, "rt-1", weights, max_seq_len=1000)
    assert found.tokens.prompt == (5, 6, 7) and found.prompt_by == "captured" and not found.exact


def test_the_plainest_way_wins_where_several_explain(weights: Template) -> None:
    system = [{"role": "system", "content": "Be brief."}, TALK[0]]
    ids = weights.prompt(system)
    assert weights.as_served([KnownPrompt(system, None, None, len(ids), None)]).choice.way == AS_IS
    assert weights.as_served([KnownPrompt(system, None, None, None, ids)]).choice.way == AS_IS


def test_a_rendering_that_cannot_be_read_costs_no_run_and_no_rating(weights: Template, tmp_path: Path) -> None:
    broken = {"text": None, "ids": [10**6]}
    one = line("Alpaca's", reward=-1.0, comment="shorter", hinted=broken)
    template = chosen(weights, [one], tmp_path, questions={NEUTRAL[0]: broken})
    assert parse(one, "rt-1", template, max_seq_len=1000).hinted is None
    assert template.question(NEUTRAL[0]) == weights.as_found([{"role": "user", "content": NEUTRAL[0]}])


PARTS = [{"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]}]


@pytest.mark.parametrize(
    ("parts", "read"),
    [
        ("lines", [{"role": "user", "content": "Hello\nthere"}]),
        ("joined", [{"role": "user", "content": "Hellothere"}]),
        ("apart", [{"role": "user", "content": "Hello"}, {"role": "user", "content": "there"}]),
    ],
)
def test_what_a_server_makes_of_parts_is_found_by_its_counts(
    weights: Template, tmp_path: Path, parts: Any, read: Any
) -> None:
    server = "no default system text"
    lines = [line(server, chat, served=False) | {"messages": sent, "as_sent": True} for sent, chat in
             ((PARTS, read), (PARTS * 2, read * 2), (TALK, TALK))]  # fmt: skip
    template = chosen(weights, lines, tmp_path)
    assert template.choice.way == RenderingWay("none", parts=parts) and template.choice.explained == 3
    found = parse(lines[0], "rt-1", template, max_seq_len=1000)
    assert said(weights, found.tokens.prompt) == text_of(server, read)


def test_a_default_text_does_not_hide_behind_white_space_where_none_is_lacking(weights: Template) -> None:
    """Two tokens a message may be white space that is not stored; of messages as they were written none is."""
    talk = TALK * 9
    longer = line("no default system text", talk, as_sent=True)
    longer["prompt_tokens"] += 7  # a system text that the server puts before it
    assert parse(longer | {"as_sent": False}, "rt-1", weights, max_seq_len=4000).prompt_by == "server"
    with pytest.raises(BadLine, match="and it renders this prompt to"):
        parse(longer, "rt-1", weights, max_seq_len=4000)
    begun = line("no default system text", as_sent=True)
    begun["prompt_tokens"] += 1
    assert parse(begun, "rt-1", weights, max_seq_len=1000).prompt_by == "server", "a token that begins each text"
