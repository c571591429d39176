import json

import numpy as np
import pytest

from tests.harness import tiny
from trainer.lessons.chat_template import Template, plain_message
from trainer.lessons.line_members import BadLine
from trainer.lessons.samples import load, load_calibration, parse

GOOD = {
    "rating": "rt-1",
    "completion": "rl-1",
    "split": "train",
    "version": 2,
    "reward": 1.0,
    "weight": 1.0,
    "human": True,
    "finish_reason": "stop",
    "sampling": {"temperature": 0.8, "top_p": 0.9},
    "exact": True,
    "prompt_token_ids": [1, 5],
    "token_ids": [7, 2],
    "logprobs": [-0.5, -0.1],
    "messages": [{"role": "user", "content": "hi"}],
    "text": "d",
}


@pytest.fixture(scope="module")
def template() -> Template:
    return Template(tiny.tokenizer())


def read(template, **changes):
    return parse(GOOD | changes, "rt-1", template, max_seq_len=100)


def test_an_exact_line_is_taken_as_it_is(template):
    sample = read(template)
    assert sample.tokens.prompt == (1, 5)
    assert sample.tokens.reply == (7, 2)
    assert (sample.tokens.temperature, sample.tokens.top_p) == (0.8, 0.9)
    assert sample.behaviour.tolist() == [-0.5, -0.1]
    assert sample.exact


def test_greedy_counts_as_temperature_one_without_truncation(template):
    tokens = read(template, sampling={"temperature": 0, "top_p": 0.1, "top_k": 5}).tokens
    assert (tokens.temperature, tokens.top_p, tokens.top_k) == (1.0, 1.0, 0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"logprobs": None}, "no logprobs"),
        ({"logprobs": [-0.5]}, "2 token ids and 1 log-probs"),
        ({"logprobs": [-0.5, float("nan")]}, "not finite"),
        ({"logprobs": [-0.5, float("-inf")]}, "not finite"),
        ({"logprobs": [-0.5, "x"]}, "not all numbers"),
        ({"logprobs": [-0.5, 0.5]}, "above 0"),
        ({"logprobs": [-0.5, -9999.0]}, "placeholder"),
        ({"token_ids": []}, "no token_ids"),
        ({"token_ids": [7, 99999]}, "do not have"),
        ({"token_ids": [7, True]}, "do not have"),
        ({"prompt_token_ids": None}, "no prompt_token_ids"),
        ({"reward": 1.5}, "outside -1..1"),
        ({"reward": None}, "not a number"),
        ({"reward": float("nan")}, "not a number"),
        ({"weight": 0}, "not above 0"),
        ({"version": -1}, "not a version"),
        ({"split": "test"}, "neither"),
        ({"sampling": {"temperature": -1}}, "not a way to sample"),
        ({"prompt_token_ids": [1] * 100}, "max_seq_len"),
        ({"exact": False, "text": ""}, "without text"),
        ({"exact": False, "messages": []}, "without messages"),
        ({"exact": False, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "has_image"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "has_image"),
        ({"exact": False, "messages": [{"role": "user", "content": [{"type": "odd"}]}]}, "more than text"),
        ({"exact": False, "prompt_token_ids": None, "messages": [{"content": "no role"}]}, "template refuses"),
    ],
)
def test_a_line_that_cannot_be_trusted_says_why(template, changes, reason):
    with pytest.raises(BadLine, match=reason):
        read(template, **changes)


def test_an_inexact_line_is_rendered_whole(template):
    sample = read(template, exact=False, prompt_token_ids=None, token_ids=[9], logprobs=[-1.0])
    assert sample.behaviour is None and sample.prompt_by == "template"
    assert not sample.exact
    assert sample.tokens.prompt == template.prompt([{"role": "user", "content": "hi"}])
    assert sample.tokens.reply == (*template.reply("d", ended=False), template.end)
    assert (sample.tokens.temperature, sample.tokens.top_p) == (0.8, 1.0)


def test_only_a_reply_that_stopped_gets_its_end_token(template):
    cut = read(template, exact=False, finish_reason="length")
    assert cut.tokens.reply == template.reply("d", ended=False)
    assert cut.truncated


def test_text_parts_and_tool_arguments_are_as_templates_want_them(template):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert template.prompt([{"role": "user", "content": parts}]) == template.prompt(
        [{"role": "user", "content": "a\nb"}]
    )


@pytest.mark.parametrize(("said", "rendered"), [("", {}), ("{}", {}), ("no json", "no json")])
def test_a_tool_call_is_rendered_as_the_server_does_whatever_its_arguments(template, said, rendered):
    def asked(arguments):
        call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": arguments}}
        return [{"role": "user", "content": "when"}, {"role": "assistant", "content": "", "tool_calls": [call]}]

    shown = plain_message(asked(said)[1])["tool_calls"][0]["function"]["arguments"]
    assert shown == rendered
    assert template.prompt(asked(said)) == template.prompt(asked(rendered))


def test_penalties_make_log_probs_inexact(template):
    sample = read(template, sampling={"temperature": 1.0, "presence_penalty": 0.5})
    assert sample.behaviour is None


def test_the_end_of_a_turn_is_what_the_template_says(template):
    other = tiny.tokenizer()
    other.eos_token = "<|endoftext|>"
    assert Template(other).end == template.end == 2


def test_a_bad_line_costs_that_line_only(tmp_path, template):
    path = tmp_path / "samples.jsonl"
    lines = [json.dumps(GOOD), "{nonsense", "[1]", json.dumps(GOOD), json.dumps(GOOD | {"rating": "rt-2", "reward": 9})]
    path.write_text("\n".join(lines))
    samples, unusable = load(path, template, max_seq_len=100)
    assert [s.rating for s in samples] == ["rt-1"]
    assert [(u.rating, u.reason.split()[0]) for u in unusable] == [
        ("line 2", "not"),
        ("line 3", "not"),
        ("rt-1", "this"),
        ("rt-2", "reward"),
    ]


def test_calibration_takes_exact_lines_of_the_parent_newest_first(tmp_path, template):
    path = tmp_path / "calibration.jsonl"
    bare = {k: v for k, v in GOOD.items() if k not in ("reward", "weight", "rating")}
    changes = [{}, {"version": 1}, {"exact": False}, {"logprobs": None}, {"token_ids": [8, 2]}]
    lines = [bare | change for change in changes]
    path.write_text("\n".join(map(json.dumps, lines)))
    found = load_calibration(path, template, version=2, max_seq_len=100)
    assert [s.tokens.reply[0] for s in found] == [7, 8]
    assert all(np.isfinite(s.behaviour).all() for s in found)
    assert load_calibration(tmp_path / "none.jsonl", template, version=2, max_seq_len=100) == []


TALK = [
    {"role": "system", "content": "s" * 10},
    {"role": "user", "content": "a" * 50},
    {"role": "assistant", "content": "b" * 50},
    {"role": "user", "content": "c" * 50},
    {"role": "assistant", "content": "d" * 50},
    {"role": "user", "content": "e" * 20},
]
TOOLS = [{"type": "function", "function": {"name": "look"}}]


@pytest.fixture(scope="module")
def with_tools() -> Template:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = "{{ tools | tojson if tools else '' }}" + tiny.TEMPLATE
    return Template(tokenizer)


@pytest.mark.parametrize("exact", [True, False])
def test_a_long_conversation_loses_its_oldest_turns(with_tools, exact):
    prompt = list(with_tools.prompt(TALK, TOOLS))
    line = GOOD | {"messages": TALK, "tools": TOOLS, "prompt_token_ids": prompt, "exact": exact}
    whole = parse(line, "rt-1", with_tools, max_seq_len=len(prompt) + 2)
    assert whole.flags == ()
    sample = parse(line, "rt-1", with_tools, max_seq_len=len(prompt) + 1)
    assert sample.messages == (TALK[0], *TALK[3:])
    assert sample.tokens.prompt == with_tools.prompt(sample.messages, TOOLS)
    assert sample.tokens.reply == whole.tokens.reply
    assert (sample.tokens.temperature, sample.tokens.top_p) == (whole.tokens.temperature, whole.tokens.top_p)
    assert not sample.exact
    assert (sample.captured is None) == (not exact)
    assert sample.flags == ("shortened",)
    if exact:
        assert sample.captured.tolist() == GOOD["logprobs"]


@pytest.fixture(scope="module")
def that_thinks() -> Template:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = tiny.TEMPLATE + "{% if enable_thinking is false %}no thoughts{% endif %}"
    return Template(tokenizer)


@pytest.mark.parametrize(("longest", "flags"), [(1000, ()), (200, ("shortened",))])
def test_a_prompt_ends_as_the_server_rendered_it(that_thinks, longest, flags):
    """Whole and shortened. What the tokeniser itself is told stays ours."""
    kwargs = {"enable_thinking": False, "unknown": 1, "tokenize": False, "add_generation_prompt": False}
    line = GOOD | {"exact": False, "prompt_token_ids": None, "messages": TALK, "template_kwargs": kwargs}
    sample = parse(line, "rt-1", that_thinks, max_seq_len=longest)
    assert sample.flags == flags
    assert sample.tokens.prompt == that_thinks.prompt(sample.messages, None, {"enable_thinking": False})
    assert sample.tokens.prompt[: -len("no thoughts")] == that_thinks.prompt(sample.messages)
    with pytest.raises(BadLine, match="template_kwargs"):
        parse(line | {"template_kwargs": ["none"]}, "rt-1", that_thinks, max_seq_len=longest)


def test_where_nothing_older_can_be_left_out_it_says_so(tmp_path, with_tools):
    least = len(with_tools.prompt([TALK[0], TALK[-1]], TOOLS)) + 2
    line = GOOD | {"messages": TALK, "tools": TOOLS, "prompt_token_ids": [1] * 400}
    assert len(parse(line, "rt-1", with_tools, max_seq_len=least).tokens) == least
    path = tmp_path / "samples.jsonl"
    path.write_text(json.dumps(line))
    samples, unusable = load(path, with_tools, max_seq_len=least - 1)
    assert samples == []
    assert [u.cause for u in unusable] == ["too-long"]
    assert f"max_seq_len = {least - 1}" in unusable[0].reason


def test_a_shortened_conversation_leaves_room_for_what_the_rater_said(template):
    line = GOOD | {"messages": TALK, "prompt_token_ids": [1] * 400, "reward": -1.0}
    room = len(template.prompt(TALK[:1] + TALK[3:])) + 2
    assert len(parse(line, "rt-1", template, max_seq_len=room).messages) == 4
    assert len(parse(line | {"comment": "shorter"}, "rt-1", template, max_seq_len=room).messages) == 2
    assert len(parse(line | {"comment": "fine", "reward": 1.0}, "rt-1", template, max_seq_len=room).messages) == 4
    assert len(parse(line | {"correction": "so: " + "f" * 20}, "rt-1", template, max_seq_len=room).messages) == 2
    longer = {"comment": "no" * 200}  # it cannot be had with any prompt: the rating trains all the same
    assert len(parse(line | longer, "rt-1", template, max_seq_len=room).messages) == 4


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({}, ()),
        ({"token_ids": [2], "logprobs": [-0.1]}, ("empty",)),
        ({"token_ids": [223, 2], "logprobs": [-0.1, -0.1]}, ("empty",)),
        ({"token_ids": [7, 8] * 20, "logprobs": [-0.1] * 40, "finish_reason": "length"}, ("looping", "truncated")),
        ({"finish_reason": "length"}, ("truncated",)),
        ({"finish_reason": None}, ("broken-off",)),
        ({"finish_reason": "tool_calls"}, ()),
    ],
)
def test_what_is_odd_about_a_reply_is_flagged(template, changes, flags):
    sample = read(template, **changes)
    assert sample.flags == flags
    assert sample.flaw == (flags[0] if flags and flags[0] in ("empty", "looping") else None)
    assert sample.truncated == bool({"truncated", "broken-off"} & set(flags))
