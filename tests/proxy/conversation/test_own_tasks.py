"""What clients ask for their own sake, in the words of those that were recorded; and what people ask."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.conversation.own_tasks import asks_own_task, is_made_otherwise, is_too_soon, manner_of
from proxy.conversation.side_requests import may_be_own_task

CLIENTS = [
    "Please create a detailed summary of the conversation so far. The history is being compacted",  # Copilot
    "CRITICAL: Respond with text only.\n\nYou are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff",  # vibe
    "Review the conversation above and consider saving to memory if appropriate.",  # Hermes
    "Review the conversation above and update the skill library. Be ACTIVE",
    "You are a summarization agent creating a context checkpoint. Treat the conversation turns below",
    "Context budget has been reached — produce a structured checkpoint before history is compacted.",  # gptme
    "Your task: Create a 2-4 word title for this conversation.",
    "Summarize this session for continuation. Be concise and factual.",  # Cline
    "You are maintaining a context-aware state summary for an interactive agent.",  # OpenHands
    "Summarize the discussion briefly in 200 words or less to use as a prompt for future context.",  # aichat
    "Create a compact replacement checkpoint for this session.",  # nanobot
    "Scan the recent conversation history in your context and update durable managed memory.",  # Qwen Code
    "x" * 3000 + "\n\nNow write a title for this chat.",
]
PEOPLE = [
    "Review the session handling in auth.py, please.",
    "What is the name of the exchange where this context is checked?",
    "Summarize this article: the king is dead.",
    "Remember to close the session.",
    "Write a title for my essay about frogs.",
    "Compress the images in assets.",
    "Why is the history of messages empty?",
    "",
]


@pytest.mark.parametrize("text", CLIENTS)
def test_what_clients_ask(text: str) -> None:
    assert asks_own_task(text)


@pytest.mark.parametrize("text", PEOPLE)
def test_what_people_ask(text: str) -> None:
    assert not asks_own_task(text)


def made(is_streamed: bool = True, **members: Any) -> Any:
    return manner_of(json.dumps(members).encode(), is_streamed=is_streamed)


CHAT = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
NAMED = [{"type": "function", "name": "f"}]


@pytest.mark.parametrize(
    ("above", "manner"),
    [
        ({"tools": CHAT}, {}),
        ({"tools": CHAT}, {"tools": CHAT, "tool_choice": "none"}),
        ({"tools": NAMED}, {"tools": NAMED, "tool_choice": {"type": "none"}}),
        ({"tools": CHAT}, {"tools": CHAT, "max_tokens": 80_000}),
        ({"max_tokens": 100}, {"max_tokens": 8192}),
        ({}, {"max_output_tokens": 500}),
        ({}, {"options": {"num_predict": 500}}),
        ({}, {"is_streamed": False}),
    ],
)
def test_a_request_that_is_made_otherwise(above: dict[str, Any], manner: dict[str, Any]) -> None:
    assert is_made_otherwise(made(**manner), made(**above))


@pytest.mark.parametrize(
    ("above", "manner"),
    [
        ({}, {}),
        ({"tools": CHAT}, {"tools": CHAT, "tool_choice": "auto"}),
        ({"tools": CHAT, "max_tokens": 5000}, {"tools": CHAT, "max_tokens": 5000, "temperature": 1}),
        ({"tools": CHAT}, {"tools": [*CHAT, *NAMED, {"type": "web_search"}]}),  # it may use more
        ({"max_tokens": 100}, {}),
        ({"is_streamed": False}, {}),
        ({"tools": "odd"}, {"tools": [1, {"function": 2}]}),
    ],
)
def test_a_request_that_is_made_as_before(above: dict[str, Any], manner: dict[str, Any]) -> None:
    assert not is_made_otherwise(made(**manner), made(**above))


def test_what_is_too_soon() -> None:
    assert is_too_soon("x" * 200, 2.9)
    assert not is_too_soon("x" * 199, 0.1), "it may have been typed before, and pasted"
    assert not is_too_soon("x" * 5000, 3.1)
    assert manner_of(b"[]", is_streamed=True).limit is None


@pytest.mark.parametrize(
    "text",
    [
        "Fasse unsere Unterhaltung kurz zusammen, als Zusammenfassung für später.",
        "Schreib einen Titel für diese Unterhaltung.",
        "Resume la conversación anterior en 200 palabras.",
        "Résume cette conversation en quelques phrases.",
        "Riassumi questa conversazione.",
        "Resuma a conversa acima.",
        "Podsumuj tę rozmowę.",
        "Кратко резюмируй этот разговор.",
        "简要总结一下对话内容，用作后续的上下文提示",
        "你需要将用户的会话总结为 10 个字以内的标题",
        "この会話を要約してください。",
        "이 대화를 요약해 주세요.",
        "Sammanfatta det här samtalet.",
    ],
)
def test_what_clients_ask_in_other_languages(text: str) -> None:
    assert asks_own_task(text)


@pytest.mark.parametrize(
    "text",
    [
        "Fasse diesen Artikel zusammen: der König ist tot.",
        "Resume este artículo.",
        "Résume ce livre.",
        "总结一下这篇文章。",
        "この記事を要約してください。",
        "Wie heißt der Titel des Buches?",
        "对话框怎么关闭？",
    ],
)
def test_what_people_ask_in_other_languages(text: str) -> None:
    assert not asks_own_task(text)


def test_of_a_script_without_spaces_nobody_writes_half_as_much_at_once() -> None:
    assert is_too_soon("总结对话" * 25, 1.0) and not is_too_soon("总结对话" * 20, 1.0)
    assert may_be_own_task("简要总结一下对话内容，用作后续的上下文提示 prompt，控制在 200 字以内")
    assert not may_be_own_task("总结一下对话")
