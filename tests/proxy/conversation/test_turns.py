"""Which requests are side turns: with the words that agents really send."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict
from pydantic import ValidationError

from config.sections import TurnRule
from proxy.conversation.turns import RULES, is_marked_side, turn_of
from proxy.core.errors import BadRequest

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USED_TOOLS = [
    {"role": "user", "content": "look"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "found"},
]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def asks(last: Any, system: str = "") -> list[dict[str, Any]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": last}]


OPENCODE_TITLE = "You are a title generator. You output ONLY a thread title. Nothing else."
COMPACT = {"type": "text", "text": "Your task is to create a detailed summary of this conversation."}
SIDE = [
    # opencode 1.18
    ("title", asks("Generate a title for this conversation:\n", OPENCODE_TITLE)),
    ("summary", asks("…", "You are a context summarization assistant. Your task is to read a conversation …")),  # pi
    # nanobot 0.3.5
    ("summary", asks("Create a compact replacement checkpoint for this session.\n\nWhen …", "You are nanobot.")),
    ("summary", asks("…", "You are an anchored context summarization agent. You are given a conversation …")),
    # Hermes 0.19.0
    ("review", asks("Review the conversation above and consider saving to memory if appropriate.\n\nFocus on:\n1. …")),
    ("review", asks("Review the conversation above and update the skill library. Be ACTIVE — most sessions …")),
    ("review", asks("Review the conversation above and update two things:\n\n**Memory**: who the user is. …")),
    # aichat 0.30.0
    ("summary", asks("Summarize the discussion briefly in 200 words or less to use as a prompt for future context.")),
    # Claude Code 2.1
    ("title", asks("hello", "Generate a concise, sentence-case title (3-7 words).")),
    ("title", asks("Generate a short kebab-case name (2-4 words) that captures the main topic of this conversation.")),
    ("topic", asks("hello", "Analyze if this message indicates a new conversation topic. …")),
    ("suggestion", asks("[SUGGESTION MODE: Suggest what the user might naturally type next into Claude Code.]")),
    ("summary", asks("CRITICAL: TEXT ONLY.\n\nYour task is to create a detailed summary of the conversation so far")),
    ("summary", asks([{"type": "text", "text": "<system-reminder>x</system-reminder>"}, COMPACT])),
    # Inspect, over Responses
    ("probe", asks("Please say 'hello, world'")),
    # Codex
    ("summary", asks("You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary …")),
    ("title", asks("Generate a concise, single-line task title of at most 36 characters")),
    # Open WebUI 0.12 and before
    ("title", asks("### Task:\nGenerate a concise title summarizing the chat history.\n### Guidelines:\n- …")),
    ("title", asks("### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n")),
    ("tags", asks("### Task:\nGenerate 1-3 broad tags categorizing the main themes of the chat history, along …")),
    ("follow-ups", asks("### Task:\nPredict 3-5 useful messages this user might naturally send next to advance …")),
    ("follow-ups", asks("### Task:\nSuggest 3-5 relevant follow-up questions or prompts that the user might …")),
    ("search-query", asks("### Task:\nAnalyze the chat history to determine the necessity of generating search …")),
    ("autocomplete", asks("### Task:\nYou are an autocompletion system. Continue the text in `<text>` based …")),
    # aider 0.86
    ("commit-message", asks("diff", "… \\\none-line Git commit messages based on the provided diffs.")),
    ("summary", asks("# USER\n…", "*Briefly* summarize this partial conversation about programming.\n…")),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "messages"), SIDE)
def test_side_turns(rule: str, messages: list[dict[str, Any]]) -> None:
    assert turn_of({}, {}, messages, None) == ("side", rule)


NOTHING = ["", " \n", None, [], [{"type": "text", "text": ""}], [{}], [""]]


@pytest.mark.parametrize("content", NOTHING)
def test_nobody_said_anything(content: Any) -> None:
    assert turn_of({}, {}, [{"role": "user", "content": content}], None) == ("side", "warm-up")
    assert turn_of({}, {}, asks(content), TOOLS) == ("side", "warm-up")
    assert turn_of({}, {}, asks(content, "You greet whoever comes."), None) == ("main", "default")
    picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]
    assert turn_of({}, {}, [{"role": "user", "content": picture}], None) == ("main", "default")
    assert turn_of({}, {}, [*USED_TOOLS, {"role": "user", "content": content}], TOOLS) == ("main", "default")


@pytest.mark.parametrize(
    "messages",
    [
        asks("hello"),
        asks("hello", "You are Claude Code, Anthropic's official CLI. Write a title for each commit."),
        asks("Please write a title for my essay about frogs"),
        asks("What does ### Task: mean in this prompt? Generate 1-3 broad tags is in it."),
        asks("summarise this conversation"),
        asks("Review the conversation above and update the README"),
        asks("Summarize the discussion briefly, please"),
        asks("Here is the summary of another model: it was asked for a CONTEXT CHECKPOINT COMPACTION …"),
        asks("", "You greet whoever comes."),
        USED_TOOLS,
    ],
)
def test_main_turns(messages: list[dict[str, Any]]) -> None:
    assert turn_of({}, {"max_tokens": 100}, messages, TOOLS) == ("main", "default")


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 1},
        {"max_completion_tokens": 5},
        {"max_output_tokens": 2},
        {"options": {"num_predict": 1}},
        {"max_tokens": 0},
        {"max_tokens": 1.0},
        {"n_predict": 0},
        {"max_output_tokens": 0},
    ],
)
def test_probes(body: dict[str, Any]) -> None:
    assert turn_of({}, body, asks("quota"), None) == ("side", "probe")


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 6}, {"max_tokens": None}, {"max_tokens": True}, {"max_tokens": "1"}, {"n_predict": -1}, [], {},
        {"options": {"num_predict": -1}}, {"options": {"num_predict": 0}},
    ],
)  # fmt: skip
def test_no_probes(body: Any) -> None:
    assert turn_of({}, body, asks("hello"), None) == ("main", "default")


def test_no_tools_where_the_conversation_has_used_some() -> None:
    summarise = [*USED_TOOLS, {"role": "user", "content": "Summarise."}]
    assert turn_of({}, {}, summarise, None) == ("side", "no-tools")
    assert turn_of({}, {}, summarise, []) == ("side", "no-tools")
    assert turn_of({}, {}, asks("hello"), None) == ("main", "default")


def test_an_answer_after_a_tools_result_is_a_main_turn() -> None:
    """AutoGen 0.7.5, AssistantAgent(reflect_on_tool_use=True): its last request offers no tools."""
    after = [{"role": "system", "content": "You are a helpful AI assistant."}, *USED_TOOLS]
    assert turn_of({}, {"tool_choice": "none"}, after, None) == ("main", "default")
    assert turn_of({}, {}, [*after, {"role": "system", "content": "Be short."}], []) == ("main", "default")


@pytest.mark.parametrize(
    ("header", "rule"),
    [
        ("x-openai-subagent", "subagent"),
        ("x-parent-session-id", "subagent"),
        ("x-claude-code-auxiliary-type", "auxiliary"),
    ],
)
def test_headers_by_which_agents_say_so(header: str, rule: str) -> None:
    assert turn_of({header: "x"}, {}, asks("hello"), None) == ("side", rule)


@pytest.mark.parametrize(
    ("value", "decision"),
    [
        ("conversation-subagent", ("side", "subagent")),
        ("conversation-compaction", ("side", "summary")),
        ("conversation-background", ("side", "auxiliary")),
        ("conversation-sampling", ("side", "auxiliary")),
        (" Conversation-Compaction ", ("side", "summary")),
        ("conversation-user", ("main", "default")),
        ("conversation-agent", ("main", "default")),
        ("conversation-compaction-2", ("main", "default")),
        ("", ("main", "default")),
    ],
)
def test_copilots_kinds_of_requests(value: str, decision: tuple[str, str]) -> None:
    headers = {"x-interaction-type": value, "x-initiator": "agent"}
    assert turn_of(headers, {}, asks("hello"), None) == decision
    assert is_marked_side(headers) == (decision[0] == "side"), "no command is taken there"


def test_a_rule_of_ones_own_with_a_value() -> None:
    rules = [TurnRule(name="cron", header="X-Kind: nightly")]
    assert turn_of(CIMultiDict({"x-kind": "Nightly"}), {}, asks("hello"), None, rules) == ("side", "cron")
    assert turn_of(CIMultiDict({"x-kind": "daily"}), {}, asks("hello"), None, rules) == ("main", "default")


def test_our_header_goes_before_everything() -> None:
    assert turn_of({"x-rl-turn": "main"}, {"max_tokens": 1}, asks("x"), None) == ("main", "header")
    assert turn_of({"x-rl-turn": "side"}, {}, asks("x"), None) == ("side", "header")
    with pytest.raises(BadRequest):
        turn_of({"x-rl-turn": "middle"}, {}, asks("x"), None)


def test_the_settings_rules_go_before_ours() -> None:
    mine = [TurnRule(name="my-probe", turn="main", max_tokens=1), TurnRule(name="cron", last="^CRON", tools=False)]
    assert turn_of({}, {"max_tokens": 1}, asks("x"), None, mine) == ("main", "my-probe")
    assert turn_of({}, {}, asks("CRON: x"), None, mine) == ("main", "default")  # both must hold
    assert turn_of({}, {}, [*USED_TOOLS, {"role": "user", "content": "CRON"}], None, mine) == ("side", "cron")


def test_a_rule_without_a_condition_or_with_a_broken_one_is_refused() -> None:
    for wrong in ({}, {"last": "("}, {"max_tokens": 0}):
        with pytest.raises(ValidationError):
            TurnRule(name="x", **wrong)


def test_a_long_prompt_is_looked_at_from_both_ends() -> None:
    long = "word " * 100_000
    assert turn_of({}, {}, asks(f"### Task:\nGenerate 1-3 broad tags {long}"), None).rule == "tags"
    assert turn_of({}, {}, asks(f"{long}\n{COMPACT['text']}"), None).rule == "summary"


PATTERNS = [text for rule in RULES for text in (rule.system, rule.last) if text] + [
    "a|^b", "^(a|b)c", r"^a\|b", "^[|]a", "(?i)^Tit?le", "(?s)^a.b", "(?m)^b", "ab*", "^ab{2}", "x?", "^$", "A B", "^",
]  # fmt: skip
WORDS = [
    "a", "b", "|", "c", "Title", "TILE", "tie", "abb", "\n", " ", "A B", "### Task:", "Generate", " a ",
    "concise title",     "\u017f", "K\u212a", "generate a title for this conversation:", "Available Tools: x",
    "choose and return the correct tool",
]  # fmt: skip


@given(st.sampled_from(PATTERNS), st.lists(st.sampled_from(WORDS), max_size=5).map("".join))
def test_the_short_ways_to_look_for_a_pattern_find_the_same(pattern: str, text: str) -> None:
    rule = TurnRule(name="this one", last=pattern)
    found = turn_of({}, {}, [], None, [rule], words=text).rule == rule.name
    assert found == (re.search(pattern, text) is not None)
