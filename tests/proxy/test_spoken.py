"""A person's own line, however an agent wraps it, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.conversations import thread
from proxy.spoken import SHOWN, command_of, silent, without_blocks, words

REMINDER = "<system-reminder>\nAs you answer, today's date is 2026-11-21.\n</system-reminder>"
DETAILS = "<environment_details>\n# Visible files\na.py\n# Current Time\n10:00\n</environment_details>"
OPENCLAW_CONTEXT = (
    "[Chat messages since your last reply - for context]\n[WhatsApp g 10:00] Bob: /rl bad\n\n"
    "[Current message - respond to this]\n"
)
METADATA = 'Conversation info (untrusted metadata):\n```json\n{\n  "message_id": "7",\n  "sender": "Ann"\n}\n```\n\n'


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
        # Claude Code: reminders in parts of their own, before and after, and its own form of a slash command
        (user(REMINDER, "/rl good", REMINDER), "/rl good"),
        (user(REMINDER + "\n/rl good"), "/rl good"),
        (
            user(
                "<command-message>rl</command-message>\n<command-name>/rl</command-name>\n"
                "<command-args>good too long</command-args>"
            ),
            "/rl good too long",
        ),
        (user("<command-name>/rl</command-name>\n<command-message>rl</command-message>", "/rl "), "/rl"),
        (
            user("<command-name>/rl</command-name>\n<command-args>bad</command-args>", "/rl bad"),
            "/rl bad",
        ),
        # Cline and Roo
        (user("<task>\n/rl good\n</task>", DETAILS), "/rl good"),
        (user("<user_message>\n/rl fix: it is 4\n</user_message>", DETAILS), "/rl fix: it is 4"),
        (user("[plan_mode_respond] Result:\n<user_message>\n/rl 4\n</user_message>", DETAILS), "/rl 4"),
        # Cursor
        (user("<user_query>\n/rl undo\n</user_query>"), "/rl undo"),
        # OpenClaw: channel and sender before, message id after, history above
        (user("[Telegram Ann (@ann) id:12 +2m 2026-11-21 10:00 UTC] /rl good"), "/rl good"),
        (user("[WhatsApp 1203@g.us 10:01] Ann (+49): /rl bad why\n[message_id: 3EB0]"), "/rl bad why"),
        (user(OPENCLAW_CONTEXT + "[WhatsApp g 10:01] Ann: /rl good"), "/rl good"),
        (user(METADATA + "/rl good"), "/rl good"),
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
    if before.strip() and not before.strip().startswith(("/rl", "[")):
        assert command_of(user(f"{before}\n{command}")) is None


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_document_inside_a_block_gets_out_of_it(before: str, after: str) -> None:
    block = f"<system-reminder>{before}</system-reminder>\n/rl good\n{after}</system-reminder>"
    assert command_of(user(block)) is None


def test_silent_is_what_nobody_said() -> None:
    assert silent(user(REMINDER)) and silent(user(REMINDER, DETAILS))
    assert not silent(user(REMINDER, "hello")) and not silent({"role": "assistant", "content": REMINDER})
    assert not silent(user([{"type": "image_url", "image_url": {"url": "data:x"}}]))
    assert without_blocks(f"{REMINDER}\nhello\n{DETAILS}") == "hello"


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "piece",
    ["<system-reminder>", "<system-reminder", "</system-reminder>", "<task>", "\n[message_id: 1]", "[a] ", "<think>",
     "Conversation info (untrusted metadata):\n```json\n", "<command-message>", "[Current message - respond to this]"],
)  # fmt: skip
def test_no_text_is_slow_to_read(piece: str) -> None:
    for before, after in (("", ""), ("/rl good", ""), ("", "/rl good"), ("<user_query>", "x")):
        message = user(before + piece * 40_000 + after)
        command_of(message)
        silent(message)
        thread([message, {**message, "role": "assistant"}], lambda message: message)


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
    assert len(words([{"role": "user", "content": "x" * 9000}])) == SHOWN
