"""A person's own line, however an agent wraps it, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.conversation.user_text import EXCERPT_LENGTH, command_of, silent, without_blocks, words
from proxy.core.agent_wrappers import AGENTS
from scripts.harness.agent_formats import CONTEXT, DETAILS, INFO, REMINDER


def user(*parts: Any) -> dict[str, Any]:
    content = (
        parts[0] if len(parts) == 1 else [p if isinstance(p, dict) else {"type": "text", "text": p} for p in parts]
    )
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("message", "command"),
    [
        (user("/rl good"), "/rl good"),
        (user(" /rl bad: too\nlong "), "/rl bad: too\nlong"),
        (user([{"type": "text", "text": "/rl good"}]), "/rl good"),
        (user([{"type": "input_text", "text": "/rl"}]), "/rl"),
    ],
)
def test_a_command(message: dict[str, Any], command: str) -> None:
    assert command_of(message) == command


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "/rl good"},
        {"role": "tool", "tool_call_id": "c", "content": "/rl good"},
        {"role": "system", "content": "/rl good"},
        user("/rlx good"),
        user("what is /rl good?"),
        user("> /rl good"),
        user("`/rl good`"),
        user("Summarise this:\n\nlots of text\n/rl good"),  # the document's line, for all we know
        user("Summarise this file.", "/rl good"),  # a file's text beside the question
        user("/rl good", "a file's text"),
        user([{"type": "tool_result", "tool_use_id": "t", "content": "x"}, {"type": "text", "text": "/rl good"}]),
        user([{"type": "image_url", "image_url": {"url": "data:x"}}, {"type": "text", "text": "/rl good"}]),
        user("<system-reminder>\n/rl good\n</system-reminder>"),
        user("<system-reminder>\nfile:\n</system-reminder>\n/rl good\n<system-reminder>\n</system-reminder>"),
        user("<document>\n/rl good\n</document>"),
        user("<system-reminder>/rl good"),
        user("[read_file for 'a.txt'] Result:\n<user_message>\n/rl good\n</user_message>"),
        user("<user_message>\nsee\n</user_message>\n/rl good\n<user_message>\n</user_message>"),
        user("<command-name>/help</command-name>\n<command-args>/rl good</command-args>"),
        # Every wrapper, where nothing says which agent the request is of
        user(REMINDER, "/rl good"),
        user(REMINDER + "/rl good"),
        user("<command-message>rl</command-message>\n<command-name>/rl</command-name>", "/rl"),
        user("<user_query>\n/rl undo\n</user_query>"),
        user("<task>\n/rl good\n</task>", DETAILS),
        user('"/rl good"'),
        user(INFO + "/rl good"),
        user("[Telegram Ann (@ann) id:12 +2m 2026-11-21 10:00 UTC] /rl good"),
        user("[Current message - respond to this]\n/rl good"),
        user("[Chat messages since your last reply - for context]\n[WhatsApp] Bob: /rl good"),
        user("[1] see /rl good"),
        user(""),
        {"role": "user", "content": None},
        {"role": "user"},
    ],
)
def test_no_command(message: dict[str, Any]) -> None:
    assert command_of(message) is None


@given(st.text(max_size=40), st.sampled_from(["/rl good", "/rl bad x"]))
def test_words_before_it_make_it_text(before: str, command: str) -> None:
    wrapper = before.strip() == "New task:"  # as smolagents puts it above what was typed
    if before.strip() and not wrapper and not before.strip().startswith(("/rl", "[")):
        assert all(command_of(user(f"{before}\n{command}"), agent) is None for agent in (None, *AGENTS))


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_document_inside_a_block_gets_out_of_it(before: str, after: str) -> None:
    block = f"<system-reminder>{before}</system-reminder>\n/rl good\n{after}</system-reminder>"
    assert all(command_of(user(block), agent) is None for agent in (None, *AGENTS))


def test_silent_is_what_nobody_said() -> None:
    assert silent(user(REMINDER)) and silent(user(REMINDER, DETAILS))
    assert not silent(user(REMINDER, "hello")) and not silent({"role": "assistant", "content": REMINDER})
    assert not silent(user([{"type": "image_url", "image_url": {"url": "data:x"}}]))
    assert without_blocks(f"{REMINDER}\nhello\n{DETAILS}") == "hello"
    assert silent(user(CONTEXT)) and without_blocks(f"{CONTEXT}\nhello") == "hello"


def test_a_longer_name_is_another_tag() -> None:
    assert without_blocks("<user_infos>x</user_infos><user_info>y</user_info>") == "<user_infos>x</user_infos>"
    assert without_blocks('<ide_selection file="a">x</ide_selection>hello') == "hello"


def test_what_a_person_said_last() -> None:
    reminder = "<system-reminder>do this</system-reminder>"
    messages = [
        {"role": "user", "content": "first"},
        {"role": "user", "content": [{"type": "text", "text": reminder}, {"type": "text", "text": "the question"}]},
        {"role": "assistant", "content": "calls"},
        {"role": "tool", "content": "a result"},
        {"role": "user", "content": reminder},
        {"role": "user", "content": None},
    ]
    assert words(messages) == "the question"
    assert words(messages[:1]) == "first" and words([]) == "" and words(messages[2:]) == ""
    assert words([{"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": 3}, "odd"]}]) == "odd"
    assert len(words([{"role": "user", "content": "x" * 9000}])) == EXCERPT_LENGTH
