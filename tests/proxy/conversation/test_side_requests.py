"""Side turns by their structure, in the words of the clients that send them; `last` passes them over."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.conversation.side_requests import goes_on_aside, is_subagent, may_quote
from scripts.harness.in_process import Proxy
from store.records import RepeatedReply
from tests.proxy.conversation.test_answer_on_screen import Messages, ask, says

Q = "how do I list files that changed in the last hour?"
TOOLS = [{"type": "function", "function": {"name": "read_file", "parameters": {}}}]


def gptme(q: str, a: str) -> Messages:
    """0.35.1, util/auto_naming.py: the last four messages, cut after 200 characters."""
    cut = a[:200] + "..." if len(a) > 200 else a
    prompt = (
        "Your task: Create a 2-4 word title for this conversation.\n\nRules:\n- Respond with ONLY the title, nothing "
        'else\n\nExamples of GOOD titles:\n- "Python debugging help"\n\nConversation:\n'
    )
    return [
        says("system", "Generate concise conversation titles."),
        says("user", f"{prompt}User: {q}\nAssistant: {cut}\n"),
    ]


def vibe(q: str, a: str) -> Messages:
    """3.0.2, vibe/_title.py: build_title_transcript."""
    system = "You name coding-agent sessions so the user can find one in a narrow sidebar. Given a transcript of a …"
    return [says("system", system), says("user", f"user: {q}\n\ntool(bash): find .\n\nassistant: {a}")]


def pi(q: str, a: str) -> Messages:
    """0.73.1, core/compaction: serializeConversation, with other words for its own system prompt."""
    text = f"<conversation>\n[User]: {q}\n\n[Assistant]: {a}\n\n[Tool result]: x\n</conversation>\n\nCreate a summary."
    return [says("system", "Shorten what you are given."), says("user", [{"type": "text", "text": text}])]


def as_json(q: str, a: str) -> Messages:
    return [
        says("user", f'Name this: [{{"role": "user", "content": "{q}"}}, {{"role": "assistant", "content": "{a}"}}]')
    ]


@pytest.mark.parametrize("form", [gptme, vibe, pi, as_json])
@pytest.mark.parametrize("question", [Q, "hi"])
async def test_a_quoted_exchange(proxy: Proxy, form: Any, question: str) -> None:
    system = says("system", "You are a coding agent.")
    answer, id = await ask(proxy, [system, says("user", question)])
    _, side = await ask(proxy, form(question, answer.strip()))
    found = await proxy.store.completions.get(side)
    assert found is not None and (found.new.turn, found.new.turn_rule) == ("side", "quotation")
    status, body = await proxy.rate(completion_id="last", rating="good")
    assert (status, body["completion_id"]) == (201, id)


async def test_a_title_that_is_asked_for_before_there_is_an_answer(proxy: Proxy) -> None:
    """mistral-vibe asks after the first steps: of the question and its calls of tools."""
    system = says("system", "You are a coding agent.")
    proxy.backend.says = ""
    _, id = await ask(proxy, [system, says("user", Q)], tools=TOOLS)
    _, side = await ask(proxy, [says("system", "You name sessions."), says("user", f"user: {Q}\n\ntool(bash): x")])
    found = await proxy.store.completions.get(side)
    assert found is not None and found.new.turn_rule == "quotation"
    assert (await proxy.rate(completion_id="last", rating="good"))[1]["completion_id"] == id


@pytest.mark.parametrize(
    "messages",
    [
        [says("user", f"I asked you: {Q} and you answered: You said: … Is that right?")],
        [says("user", "User: something that nobody asked\nAssistant: You said: something")],
        [says("user", f"User: {Q}\nAssistant: You said: {Q} \nUser: and in the last day?\nAssistant:")],
        [says("user", Q)],
        [says("user", Q), says("assistant", f"You said: {Q} "), says("user", f"user: {Q}\nassistant: You said: {Q}")],
    ],
)
async def test_what_a_person_writes_is_a_main_turn(proxy: Proxy, messages: Messages) -> None:
    await ask(proxy, [says("user", Q)])
    _, id = await ask(proxy, messages)
    found = await proxy.store.completions.get(id)
    assert found is not None and found.new.turn == "main"


async def test_another_persons_exchange_makes_no_side_turn(proxy: Proxy) -> None:
    answer, _ = await ask(proxy, [says("user", Q)], {"x-rl-user": "ann"})
    _, id = await ask(proxy, gptme(Q, answer), {"x-rl-user": "bob"})
    found = await proxy.store.completions.get(id)
    assert found is not None and found.new.turn == "main"


MAIN = "You are Qwen Code, an interactive CLI agent.\n" + "\n".join(f"Rule {n} of the house." for n in range(40))
MEMORY = (
    "You are now acting as the managed memory extraction subagent for an AI coding assistant.\n\nThe recent "
    "conversation history is already in your context. Analyze only that recent conversation and use it to update "
    "persistent managed memory.\n\nRules:\n- Read existing memory files first to avoid creating duplicates."
)
TASK = (
    "Managed memory directory: `/m`\n\nScan the recent conversation history in your context and update durable "
    "managed memory.\n\n## Existing memory files\n\n(none yet)"
)


async def test_qwen_codes_memory_subagent(proxy: Proxy) -> None:
    """0.15.10, packages/core/src/memory/extractionAgentPlanner.ts: the history as messages, a prompt of its own."""
    said: Messages = [says("user", "remember that I like tea")]
    answer, id = await ask(proxy, [says("system", MAIN), *said], tools=TOOLS, tool_choice="none")
    # The fake calls a tool whenever there are some: a person goes on after it.
    call = {"id": "call-1", "type": "function", "function": {"name": "read_file", "arguments": '{"b": 1, "a": 2}'}}
    said += [{**says("assistant", answer), "tool_calls": [call]}]
    said += [{**says("tool", "tea"), "tool_call_id": "call-1"}]
    answer, id = await ask(proxy, [says("system", MAIN), *said], tools=TOOLS)
    said += [says("assistant", answer)]
    side: Messages = [says("system", MEMORY), *said, says("user", TASK)]
    answer, first = await ask(proxy, side, tools=TOOLS)
    side += [{**says("assistant", answer), "tool_calls": [call]}, {**says("tool", "none"), "tool_call_id": "call-1"}]
    _, second = await ask(proxy, side, tools=TOOLS)
    for one in (first, second):
        found = await proxy.store.completions.get(one)
        assert found is not None and (found.new.turn, found.new.turn_rule) == ("side", "subagent")
    assert (await proxy.rate(completion_id="last", rating="good"))[1]["completion_id"] == id
    _, next = await ask(proxy, [says("system", MAIN), *said, says("user", "and now coffee")], tools=TOOLS)
    found = await proxy.store.completions.get(next)
    assert found is not None and found.new.turn == "main"


def system(*texts: str) -> tuple[str, ...]:
    return tuple(f'{{"content":"{text}"}}' for text in texts)


def test_what_is_a_subagent() -> None:
    main, side = (
        RepeatedReply("main", "default", system("one\\ntwo\\nthree")),
        RepeatedReply("side", "subagent", system("four")),
    )
    other = system("four\\nfive")
    assert is_subagent([main], other, tools=True)
    assert not is_subagent([main], other, tools=False), "a persona, in a chat"
    assert not is_subagent([main], system("one\\ntwo\\nthree\\nfour"), tools=True), "it grew"
    assert not is_subagent([main], (), tools=True)
    assert not is_subagent([side], other, tools=True), "nothing is known of its conversation"
    assert not is_subagent([], other, tools=True)
    assert goes_on_aside([side]) == "subagent"
    assert goes_on_aside([main, side]) is None, "the next step of a main turn"
    assert goes_on_aside([RepeatedReply("side", "title", ())]) is None
    assert goes_on_aside([]) is None


def test_only_what_names_a_speaker_is_looked_up() -> None:
    """Each request would else read the newest answers: that took three times the CPU of all the rest."""
    for text in ("What is 7 plus 5?", "x" * 1000, "If you like, say so", '{"role": 1}'):
        assert not may_quote([{"role": "user", "content": text}]), text
    for text in ("Title this:\nUser: hi\nAssistant: hello", "**Human:** hi", '[{"role": "user", "content": "hi"}]'):
        assert may_quote([{"role": "user", "content": text}]), text
    assert not may_quote([{"role": "user", "content": "User: hi"}, {"role": "assistant", "content": "a"}])


# Condensers whose transcript has the `/rl` exchange in it, or a part of what was said only.

RATED = "rlproxy: rated good. It begins: “You said”. `/rl undo` takes it back."


def gptmes_title(q: str, a: str) -> Messages:
    """0.35.1, after `rl:good`."""
    text = f"Your task: Create a 2-4 word title for this conversation.\n\nConversation:\nUser: {q}\nAssistant: {a}\n"
    return [
        says("system", "Generate concise conversation titles."),
        says("user", f"{text}User: rl:good\nAssistant: {RATED}\n"),
    ]


def gptmes_summary(q: str, a: str) -> Messages:
    """0.35.1, `/summarize`; of the command alone."""
    return [
        says("system", "You are a helpful assistant that helps summarize messages into bullet format."),
        says("user", f"Summarize this:\nUser: rl:good\nAssistant: {RATED}"),
    ]


def vibes_title(q: str, a: str) -> Messages:
    """3.0.2, after `rl:good`."""
    system = "You name coding-agent sessions so the user can find one in a narrow sidebar. Given a transcript of a …"
    return [says("system", system), says("user", f"user: {q}\n\nassistant: {a}\n\nuser: rl:good\n\nassistant: {RATED}")]


def clines_summary(q: str, a: str) -> Messages:
    """3.0.65, `/compact`: a tag between the label and the words."""
    text = f'[User]: <user_input mode="act">{q}</user_input>\n\n[Bot]: {a}\n[Bot tool calls]: run_commands(x)'
    more = '[User]: <user_input mode="act">rl:bad too long</user_input>'
    head = "Summarize this session for continuation. Be concise and factual.\n\n## Goal\n…"
    return [says("user", f"{head}\n\n{text}\n\n{more}")]


def openhands_condenser(q: str, a: str) -> Messages:
    """SDK 1.21.0: it ends before the answer."""
    ours = f"<EVENT>\nMessageEvent (agent)\n  agent: {RATED}\n</EVENT>"
    asked = f"<EVENT>\nMessageEvent (user)\n  user: {q}\n</EVENT>"
    head = "You are maintaining a context-aware state summary for an interactive agent.\nYou will be given a list of …"
    return [says("user", f"{head}\n\n{ours}\n\n{asked}\n\n\nNow summarize the events using the rules above.")]


def hermes_compression(q: str, a: str) -> Messages:
    """0.19.0: the middle of a conversation, which begins with an answer."""
    head = "You are a summarization agent creating a context checkpoint. Treat the conversation turns below as source"
    turns = f"TURNS TO SUMMARIZE:\n[ASSISTANT]: {a}\n\n[USER]: rl:good\n\n[ASSISTANT]: {RATED}"
    return [says("user", f"{head}\n\n{turns}\n\nUse this exact structure:\n\n## Goal\n…")]


CONDENSERS = [
    gptmes_title,
    gptmes_summary,
    vibes_title,
    clines_summary,
    openhands_condenser,
    hermes_compression,
]


@pytest.mark.parametrize("form", CONDENSERS)
@pytest.mark.parametrize("question", [Q, "hi"])
async def test_a_quoted_exchange_with_commands_in_it(proxy: Proxy, form: Any, question: str) -> None:
    answer, id = await ask(proxy, [says("system", "You are a coding agent."), says("user", question)])
    _, side = await ask(proxy, form(question, answer.strip()))
    found = await proxy.store.completions.get(side)
    assert found is not None and (found.new.turn, found.new.turn_rule) == ("side", "quotation")
    assert (await proxy.rate(completion_id="last", rating="bad"))[1]["completion_id"] == id


@pytest.mark.parametrize("form", CONDENSERS[1:])
async def test_a_quoted_exchange_that_a_person_goes_on_with(proxy: Proxy, form: Any) -> None:
    """In the same forms: with words in it that nobody has asked yet, each is a main turn."""
    answer, _ = await ask(proxy, [says("system", "You are a coding agent."), says("user", Q)])
    *system, message = form(Q, answer.strip())
    more = "\n\nUser: and in the last day?\nAssistant:"
    _, id = await ask(proxy, [*system, says("user", message["content"] + more)])
    found = await proxy.store.completions.get(id)
    assert found is not None and found.new.turn == "main"


@pytest.mark.parametrize(
    "text",
    [
        "User: {q}\nAssistant: {a}\n\nIs that right?",
        "User: {q}\nAssistant: {a}\n\nSummarize this conversation, please.",
        "User: rl:good\nAssistant: rlproxy: rated good.\n\nWhy is the summary of this conversation so short?",
    ],
)
async def test_what_a_person_pastes_into_the_same_client(proxy: Proxy, text: str) -> None:
    """Under its system prompt, with its tools: what a client asks on the side has neither."""
    system = says("system", MAIN)
    answer, _ = await ask(proxy, [system, says("user", Q)], tools=TOOLS, tool_choice="none")
    pasted = text.format(q=Q, a=answer.strip())
    _, id = await ask(proxy, [system, says("user", pasted)], tools=TOOLS, tool_choice="none")
    found = await proxy.store.completions.get(id)
    assert found is not None and found.new.turn == "main"


@pytest.mark.parametrize("question", [Q, "hi", "and in the last day?"])
async def test_a_program_that_sends_all_of_it_in_one_text(proxy: Proxy, question: str) -> None:
    """Also where the person asks the same again."""
    said = ""
    for words in (Q, "hi", question):
        said += f"User: {words}\nAssistant:"
        answer, id = await ask(proxy, [says("system", "You are a bot."), says("user", said)])
        found = await proxy.store.completions.get(id)
        assert found is not None and (found.new.turn, found.new.turn_rule) == ("main", "default")
        said += f" {answer.strip()}\n"
