"""Which agent sent a request, and what the person typed in it."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.conversation.conversations import command_at
from proxy.conversation.user_text import command_of
from proxy.core.agent_wrappers import AGENTS, Agent, agent_of
from scripts.harness.agent_formats import (
    BY_ID,
    CLAUDE_CODE,
    CLINE,
    COPILOTS_TIME,
    DETAILS,
    FORMS,
    INFO,
    KILOS_DETAILS,
    NOTICE,
    REMINDER,
    Form,
    slash,
    texts,
)

NAMED: dict[str, Agent] = {agent.name: agent for agent in AGENTS}
LINES = ["/rl", "/rl good", "/rl bad: too\nlong", '/rl fix: say "no" & <b>\n\nin </b> two paragraphs', "/rl 👍"]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.id)
@pytest.mark.parametrize("line", LINES)
def test_every_agents_own_format_is_read(form: Form, line: str) -> None:
    messages = form.messages("a question", "an answer", line)
    agent = agent_of(form.headers, messages)
    assert (agent.name if agent else None) == form.agent
    at = command_at(messages, agent)
    assert at == len(messages) - len(form.after) - 1
    assert command_of(messages[at], agent) == line


def test_every_agent_has_a_form() -> None:
    assert {form.agent for form in FORMS} == {None, *NAMED}


@pytest.mark.parametrize("form", [form for form in FORMS if form.agent], ids=lambda form: form.id)
@pytest.mark.parametrize("other", [None, *NAMED])
def test_no_agents_format_counts_in_a_request_of_another(form: Form, other: str | None) -> None:
    kin = (
        {"cline", "roo", "kilo"},
        {"opencode", "kilo"},
        {"claude-code", "qwen-code"},
    )  # each came out of those before, and kept their formats
    same = other == form.agent or any({other, form.agent} <= family for family in kin)
    if not same and form.content("/rl good") != "/rl good":
        message = {"role": "user", "content": form.content("/rl good")}
        assert command_of(message, NAMED[other] if other else None) is None


@pytest.mark.parametrize(
    ("headers", "messages"),
    [
        ({}, []),
        ({"user-agent": "python-requests (not claude-cli/2)"}, [{"role": "user", "content": "hi"}]),
        ({}, [{"role": "user", "content": CLINE}]),  # a person may say it
        ({}, [{"role": "user", "content": "hi"}, {"role": "system", "content": CLINE}]),
        ({}, [{"role": "system", "content": f"Review this prompt:\n{CLINE}"}]),
        ({}, [{"role": "system", "content": None}]),
        ({}, [{"role": "system", "content": [{"type": "image_url"}]}]),
    ],
)
def test_every_other_client(headers: dict[str, str], messages: list[dict[str, Any]]) -> None:
    assert agent_of(headers, messages) is None


def test_a_prompt_in_parts() -> None:
    assert agent_of({}, [{"role": "developer", "content": texts(CLINE, "more")}]) == NAMED["cline"]


TYPED, EXPANDED = slash("/rl good")


@pytest.mark.parametrize(
    ("agent", "content"),
    [
        # Claude Code: each block is a part of its own, and a slash command is two parts that say the same
        ("claude-code", REMINDER + "/rl good"),
        # smolagents: what a tool returned stands in the same text, and may end like a task
        ("smolagents", texts("Observation:\nParis\nNew task:\n/rl good")),
        ("smolagents", texts("New task:\nNew task:\n/rl good")),
        ("smolagents", texts("New task: /rl good")),
        ("smolagents", texts("New task:\nSummarise.\nNew task:\n/rl good")),
        ("smolagents", texts("New task:\n/rl good", "Observation:\nParis")),
        # Copilot: the time and an empty line, once, at the beginning
        ("copilot", f"{COPILOTS_TIME}look\n{COPILOTS_TIME}/rl good"),
        ("copilot", f"look\n{COPILOTS_TIME}/rl good"),
        ("copilot", COPILOTS_TIME.replace("2026", "noon ") + "/rl good"),
        ("copilot", COPILOTS_TIME.strip() + "/rl good"),
        ("copilot", texts(COPILOTS_TIME, "/rl good")),
        ("copilot", f"{COPILOTS_TIME}<user_message>\n/rl good\n</user_message>"),
        # Kilo: its block is a part of its own
        ("kilo", '"/rl good"' + KILOS_DETAILS),
        ("kilo", texts('Look: "/rl good"', KILOS_DETAILS)),
        ("kilo", texts('"/rl good" and "more"', KILOS_DETAILS)),
        ("kilo", texts("a page", '"/rl good"', KILOS_DETAILS)),
        ("kilo", texts(f"<environment_details>x</environment_details>/rl good{KILOS_DETAILS}")),
        ("claude-code", texts(REMINDER)),
        ("claude-code", texts(REMINDER + REMINDER, "/rl good")),
        ("claude-code", texts("<system-reminder>a</system-reminder> look <system-reminder>b</system-reminder>", "/rl")),
        ("claude-code", texts("<environment_details>a</environment_details>", "/rl good")),
        ("claude-code", texts("look", "/rl good")),
        ("claude-code", texts(TYPED)),
        ("claude-code", TYPED + EXPANDED),
        ("claude-code", texts(EXPANDED, TYPED)),
        ("claude-code", texts(TYPED, "/rl bad")),
        ("claude-code", texts(TYPED, EXPANDED, "look")),
        ("claude-code", texts(TYPED.replace("/rl", "/help"), EXPANDED)),
        ("claude-code", [{"type": "document", "source": {}}, *texts("/rl good")]),
        # Cline, Roo, Cursor: one tag around all of it
        ("cline", f"<task>\nlook\n</task>\n{DETAILS}"),
        ("cline", texts("<task>\nlook\n</task>\n<task>\n/rl good\n</task>", DETAILS)),
        ("cline", texts("<user_message>\nlook\n</user_message>\n/rl good", DETAILS)),
        ("cline", texts("[read_file for 'a.txt'] Result:\n<user_message>\n/rl good\n</user_message>", DETAILS)),
        ("cline", NOTICE.replace("plan", "evil") + "/rl good"),
        ("cline", NOTICE + "look\n" + NOTICE + "/rl good"),
        ("cline", f"look {NOTICE}/rl good"),
        ("cline", texts("<task>\n/rl good\n</task>", "look", DETAILS)),
        ("cursor", texts("<user_query>\nlook\n</user_query><user_query>\n/rl good\n</user_query>")),
        ("cursor", "look\n<user_query>\n/rl good\n</user_query>"),
        # opencode: quotation marks within are escaped
        ("opencode", '"/rl good" look "and then"'),
        ("opencode", 'look "/rl good"'),
        ("opencode", '"/rl good\\"'),
        ("opencode", '"'),
        # OpenClaw: its own header once, and nothing before it
        ("openclaw", INFO + "look\n" + INFO + "/rl good"),
        ("openclaw", INFO + INFO.partition("] ")[2] + "/rl good"),
        ("openclaw", "look " + INFO + "/rl good"),
        ("openclaw", INFO.replace("{", "{look") + "/rl good"),
        ("openclaw", INFO.replace("{", "").replace("}", "") + "/rl good"),
        ("openclaw", INFO.replace("\n```\n", "\nlook\n```\n") + "/rl good"),
        ("openclaw", INFO + "[Current message - respond to this]\n/rl good"),
        ("openclaw", "[Telegram Ann (@ann) id:12 +2m 2026-11-21 10:00 UTC] /rl good"),
    ],
)
def test_what_only_looks_like_an_agents_format(agent: str, content: Any) -> None:
    assert command_of({"role": "user", "content": content}, NAMED[agent]) is None


def test_what_openclaw_adds_is_passed_over_in_its_own_requests_only() -> None:
    messages = BY_ID["openclaw"].messages("q", "a", "/rl good")
    assert command_at(messages, NAMED["openclaw"]) == 3
    assert command_at(messages, NAMED["cline"]) is None and command_at(messages) is None
    begin = {"role": "user", "content": "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nwords of the person"}
    assert command_at([*messages[:-1], begin], NAMED["openclaw"]) is None


def test_a_document_beside_the_words_is_seen_by_all_dialects_as_such() -> None:
    assert agent_of(CLAUDE_CODE, []) == NAMED["claude-code"]
    part = {"type": "text", "text": "/rl good", "rl_attached": True}
    assert all(command_of({"role": "user", "content": [part]}, agent) is None for agent in (None, *AGENTS))
