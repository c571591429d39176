"""`/rl good` and `last` rate the answer that was on screen, or say that they cannot tell. As clients really send it."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from scripts.harness.agent_formats import AIDER as PROMPT
from scripts.harness.agent_formats import AIDERS_RULES
from scripts.harness.in_process import Proxy

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
Messages = list[dict[str, Any]]


def says(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


async def ask(proxy: Proxy, messages: Messages, headers: dict[str, str] | None = None, **more: Any) -> tuple[str, str]:
    """What is answered in chat completions, and the completion's id."""
    body = {"model": "fake", "messages": messages, **more}
    async with proxy.http.post("/v1/chat/completions", json=body, headers=headers) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return str(answer["choices"][0]["message"]["content"]), response.headers.get("x-rl-completion-id", "")


async def respond(proxy: Proxy, items: list[Any], **more: Any) -> tuple[dict[str, Any], str]:
    body = {"model": "fake", "input": items, **more}
    async with proxy.http.post("/v1/responses", json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return answer, response.headers.get("x-rl-completion-id", "")


async def rated(proxy: Proxy) -> dict[str, float]:
    """All ratings that count, by their completions."""
    found = [(one.new.id, rating.value) for one in await proxy.store.completions.page() for rating in one.ratings]
    return dict(found)


# Items by reference: @ai-sdk/openai 3.0.141, convert-to-openai-responses-input.ts


@pytest.fixture
async def native(proxy: Proxy) -> Proxy:
    proxy.backend.speaks.add("responses")
    proxy.backend.counts_items = True
    return proxy


async def tool_round_trip(proxy: Proxy) -> tuple[list[Any], str, str]:
    """The items up to the last answer, as the AI SDK sends them next time; the id of that and of the tool call."""
    said: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "weather?"}]}]
    called, call_id = await respond(proxy, said, tools=[WEATHER])
    text, call = called["output"]
    said += [
        {"type": "item_reference", "id": text["id"]},
        {k: call[k] for k in ("type", "call_id", "name", "arguments")},
        {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"},
    ]
    answered, id = await respond(proxy, said, tools=[WEATHER])
    assert answered["output"][0]["content"][0]["text"] == "It is rain"
    return [*said, {"type": "item_reference", "id": answered["output"][0]["id"]}], id, call_id


async def test_an_answer_that_is_named_by_its_backends_id_is_rated(native: Proxy) -> None:
    items, id, _ = await tool_round_trip(native)
    told, _ = await respond(native, [*items, says("user", "/rl good")], tools=[WEATHER])
    assert "rated good" in str(told) and "It is rain" in str(told)
    assert await rated(native) == {id: 1.0}


async def test_the_backend_gets_its_references_and_the_store_what_they_stand_for(native: Proxy) -> None:
    items, _, _ = await tool_round_trip(native)
    _, id = await respond(native, [*items, says("user", "and now?")], tools=[WEATHER])
    assert native.backend.asked[-1][1]["input"] == [*items, says("user", "and now?")]
    found = await native.store.completions.get(id)
    assert found is not None and found.new.untrainable is None
    assert [m.role for m in found.new.prompt] == ["user", "assistant", "tool", "assistant", "user"]
    assert b"It is rain" in found.new.prompt[3].body and b"weather" in found.new.prompt[1].body
    # And with a command in the history, which the backend does not get.
    rest = [*items, says("user", "/rl good"), says("assistant", "rlproxy: rated good."), says("user", "and now?")]
    _, again = await respond(native, rest, tools=[WEATHER])
    assert native.backend.asked[-1][1]["input"] == [*items, says("user", "and now?")]
    other = await native.store.completions.get(again)
    assert other is not None and other.prompt_hash == found.prompt_hash


async def test_a_reference_that_is_not_known_never_rates_an_older_answer(native: Proxy) -> None:
    items, _, _ = await tool_round_trip(native)
    for unknown in ("msg_from_elsewhere", "msg_rl-000000000000000000000000"):
        asked = [*items[:-1], {"type": "item_reference", "id": unknown}, says("user", "/rl good")]
        told, _ = await respond(native, asked)
        assert "a reference to an id that I do not know" in str(told)
    assert await rated(native) == {}


async def test_a_reference_that_two_answers_may_have_had_is_none(native: Proxy) -> None:
    """A backend that counts from one after each start."""
    items, id, _ = await tool_round_trip(native)
    native.backend.asked.clear()
    _, other, _ = await tool_round_trip(native)
    told, _ = await respond(native, [*items, says("user", "/rl good")])
    assert "a reference to an id that I do not know" in str(told) and await rated(native) == {}
    assert id != other


async def test_what_holds_an_unknown_reference_does_not_train(native: Proxy) -> None:
    _, id = await respond(native, [{"type": "item_reference", "id": "msg_x"}, says("user", "hi")])
    found = await native.store.completions.get(id)
    assert found is not None and found.new.untrainable == "has_reference"


# Chat completions, as clients rewrite them

# aider 0.86.2, edit format "whole": coders/base_coder.py format_chat_chunks, coders/wholefile_prompts.py
REMINDER = AIDERS_RULES
AIDER = says("system", PROMPT)
NO_FILES = [says("user", "I am not sharing any files that you can edit yet."), says("assistant", "Ok.")]
FILES = [
    says(
        "user", "I have *added these files to the chat* so you can go ahead and edit them.\n\na.py\n```\nx = 1\n```\n"
    ),
    says("assistant", "Ok, any changes I propose will be to those files."),
]


def now(text: str) -> dict[str, Any]:
    return says("user", f"{text}\n\n{REMINDER}")


@pytest.mark.parametrize("line", ["/rl good", "rl:good"])
async def test_aider_before_and_after_an_edit(proxy: Proxy, line: str) -> None:
    proxy.backend.says = "Done."
    one, first = await ask(proxy, [AIDER, *NO_FILES, now("make it faster")])
    # No file was changed: question and answer stay in the messages of this turn, without the reminder.
    said, _ = await ask(proxy, [AIDER, *NO_FILES, says("user", "make it faster"), says("assistant", one), now(line)])
    assert "rated good" in said and "because" not in said and "“Done.”" in said
    assert await rated(proxy) == {first: 1.0}
    # One was changed: they move above the files, and what aider did is said below them.
    before = [says("user", "make it faster"), says("assistant", one)]
    two, second = await ask(proxy, [AIDER, *before, *FILES, now("and smaller")])
    before += [says("user", "and smaller"), says("assistant", two)]
    before += [says("user", "I committed the changes with git hash 1234 & commit msg: fix"), says("assistant", "Ok.")]
    said, _ = await ask(proxy, [AIDER, *before, *FILES, now("/rl bad too long")])
    assert "rated bad, because “too long”." in said
    assert await rated(proxy) == {first: 1.0, second: -1.0}


async def test_aiders_reminder_is_no_reason_and_no_words_after_an_admins_act(proxy: Proxy) -> None:
    said, _ = await ask(proxy, [AIDER, now("/rl reset")])
    assert "nothing is deleted" in said
    # What is no copy of the prompt's end was typed, or pasted.
    said, _ = await ask(proxy, [AIDER, says("user", f"/rl reset\n\n{REMINDER.upper()}")])
    assert "takes no words after it" in said
    said, _ = await ask(proxy, [AIDER, now(f"/rl reset\n\n{REMINDER}")])
    assert "takes no words after it" in said


async def test_the_oldest_turn_is_dropped(proxy: Proxy) -> None:
    history: Messages = []
    ids = []
    for n in range(3):
        history.append(says("user", f"question {n}"))
        text, id = await ask(proxy, history, {"x-rl-session": "s"})
        history.append(says("assistant", text))
        ids.append(id)
    for line in ("/rl good", "/rl good again"):
        said, _ = await ask(proxy, [*history[2:], says("user", line)], {"x-rl-session": "s"})
        assert "rated good" in said, said
        assert await rated(proxy) == {ids[2]: 1.0}
    said, _ = await ask(proxy, [*history[2:4], says("user", "/rl bad")])  # and without a session
    assert "rated bad" in said and await rated(proxy) == {ids[2]: 1.0, ids[1]: -1.0}


async def test_retrieved_context_is_in_the_live_message_only(proxy: Proxy) -> None:
    proxy.backend.says = "Paris."
    live = "Use this context:\n<doc>France has a capital.</doc>\n\nQuestion: what is it?"
    text, id = await ask(proxy, [says("user", live)])
    said, _ = await ask(proxy, [says("user", "what is it?"), says("assistant", text), says("user", "/rl good")])
    assert "rated good" in said and await rated(proxy) == {id: 1.0}


async def test_white_space_and_marks_are_normalised(proxy: Proxy) -> None:
    proxy.backend.says = "**Yes**, it is.\n\n- one"
    _, id = await ask(proxy, [says("user", "is\n\nit  so?")])
    for shown in ("**Yes**, it is. - one", "Yes, it is. one"):
        said, _ = await ask(proxy, [says("user", "is it so?"), says("assistant", shown), says("user", "/rl good")])
        assert "rated good" in said and await rated(proxy) == {id: 1.0}, shown


async def test_of_several_answers_none_is_chosen(proxy: Proxy) -> None:
    """The same short words to the same question in two conversations, and the history that told them apart is gone."""
    proxy.backend.says = "Yes."
    for first in ("may I water the cactus in the coldest winter?", "may I water the roses?"):
        await ask(proxy, [says("user", first), says("assistant", "Yes."), says("user", "sure?")])
    said, _ = await ask(proxy, [says("user", "sure?"), says("assistant", "Yes."), says("user", "/rl good")])
    assert "reads like several" in said and await rated(proxy) == {}
    one = [says("user", "may I water the cactus  in the coldest winter?"), says("assistant", "Yes.")]
    one += [says("user", "sure?"), says("assistant", "Yes.")]
    said, _ = await ask(proxy, [says("user", "a summary"), says("assistant", "0"), *one, says("user", "/rl good")])
    assert "rated good" in said, "more of the conversation tells them apart again"


async def test_a_short_answer_that_was_not_captured_is_not_taken_for_another(proxy: Proxy) -> None:
    proxy.backend.says = "Done."
    await ask(proxy, [says("user", "fix the bug")])
    elsewhere = [says("user", "delete it all"), says("assistant", "Done."), says("user", "/rl bad")]
    said, _ = await ask(proxy, elsewhere)
    assert "have not captured the answer above" in said and await rated(proxy) == {}


SHOWN = "> @FunctionCall `look()`\n\n"  # shell-gpt 1.5.1, before the answer


async def shown_as_one(proxy: Proxy, **more: Any) -> tuple[Messages, str]:
    """A turn with a call, kept as shell-gpt keeps it: what its screen showed of the turn is the answer's message."""
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    call = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": '{"b": 1, "a": 2}'}}
    talk = [says("system", "You are ShellGPT"), says("user", "weather?")]
    await ask(proxy, talk, tools=[tool])
    talk += [{**says("assistant", None), "tool_calls": [call]}, {**says("tool", "rain"), "tool_call_id": "call-1"}]
    text, id = await ask(proxy, talk, tools=[tool], **more)
    return [*talk, says("assistant", f"Let me look. \n{SHOWN}{text}")], id


async def test_a_turn_that_its_client_keeps_as_it_was_shown(proxy: Proxy) -> None:
    talk, id = await shown_as_one(proxy)
    told, _ = await ask(proxy, [*talk, says("user", "/rl good")])
    assert "rated good" in told and "It is rain" in told
    assert await rated(proxy) == {id: 1.0}


async def test_such_a_turn_whose_answer_is_not_captured_rates_none(proxy: Proxy) -> None:
    """Another answer ends in the same way, but nobody asked for it here."""
    await ask(proxy, [says("user", "what is it?"), says("assistant", "well"), says("user", "say: It is rain")])
    talk, _ = await shown_as_one(proxy, headers={"x-rl-capture": "off"})
    told, _ = await ask(proxy, [*talk, says("user", "/rl good")])
    assert "nothing was rated" in told and await rated(proxy) == {}


@pytest.mark.parametrize("session", [True, False], ids=["session", "system"])
async def test_what_is_left_of_a_conversation_reads_like_another_one(proxy: Proxy, session: bool) -> None:
    """The oldest turn is dropped; another conversation, of another session or prompt, is all of what is left."""
    proxy.backend.says = "Yes."
    pirate, helper = says("system", "You are a pirate."), says("system", "You are a helpful assistant.")
    here, there = ({"x-rl-session": "s2"}, {"x-rl-session": "s1"}) if session else (None, None)
    system = pirate if session else helper
    await ask(proxy, [system, says("user", "why?")], there)
    _, id = await ask(proxy, [pirate, says("user", "one"), says("assistant", "two"), says("user", "why?")], here)
    talk = [pirate, says("user", "why?"), says("assistant", "Yes."), says("user", "/rl good")]
    await ask(proxy, talk, here)
    assert await rated(proxy) == {id: 1.0}


async def test_another_key_or_person_is_never_looked_at(proxy: Proxy) -> None:
    text, _ = await ask(proxy, [says("user", "hers " * 20)], {"x-rl-user": "ann"})
    for user in ({"x-rl-user": "bob"}, {}):
        said, _ = await ask(proxy, [says("user", "x"), says("assistant", text), says("user", "/rl good")], user)
        assert "have not captured" in said
    assert await rated(proxy) == {}


async def test_a_client_that_sends_no_history_is_told_so(proxy: Proxy) -> None:
    await ask(proxy, [says("user", "one")])
    for sent in ([says("system", "x")], []):
        said, _ = await ask(proxy, [*sent, says("user", "/rl good")])
        assert "your client sent no answer with this command" in said and "not captured" not in said
    said, _ = await ask(proxy, [says("user", "never sent"), says("user", "/rl good")])
    assert "no answer right above this command" in said


# Under way, or broken off


async def begun(proxy: Proxy, messages: Messages, headers: dict[str, str] | None = None) -> Any:
    """A stream of which two words have come, and no more will; read so that its row is there."""
    proxy.backend.pause_s = 30.0
    body = {"model": "fake", "messages": messages, "stream": True}
    response = await proxy.http.post("/v1/chat/completions", json=body, headers=headers)
    got = b""
    while b"You" not in got:
        got += await response.content.readany()
    id = response.headers["x-rl-completion-id"]
    while await proxy.store.answers.get(id) is None:
        await asyncio.sleep(0.01)
    proxy.backend.pause_s = 0.0
    return response


async def broken_off(proxy: Proxy, messages: Messages, headers: dict[str, str] | None = None) -> str:
    """As Esc does it."""
    response = await begun(proxy, messages, headers)
    id = str(response.headers["x-rl-completion-id"])
    response.close()
    while (found := await proxy.store.answers.get(id)) is None or found.status == "pending":
        await asyncio.sleep(0.01)
    assert found.status == "partial" and found.text.startswith("You")
    return id


@pytest.mark.parametrize("headers", [{}, {"x-rl-session": "s"}])
async def test_oterm_sends_a_command_while_an_answer_streams(proxy: Proxy, headers: dict[str, str]) -> None:
    """Its history has the newest question only once that is answered (oterm 0.26.1, app/widgets/chat.py)."""
    text, older = await ask(proxy, [says("user", "one")], headers)
    history = [says("user", "one"), says("assistant", text)]
    stream = await begun(proxy, [*history, says("user", "two")], headers)
    said, _ = await ask(proxy, [*history, says("user", "/rl bad")], headers)
    assert "rated bad" in said and "“You" in said
    stream.close()
    assert await rated(proxy) == {stream.headers["x-rl-completion-id"]: -1.0} and older not in await rated(proxy)


async def test_nothing_of_the_newest_has_come_yet(proxy: Proxy) -> None:
    text, _ = await ask(proxy, [says("user", "one")])
    history = [says("user", "one"), says("assistant", text)]
    proxy.backend.hold.clear()
    waiting = asyncio.create_task(ask(proxy, [*history, says("user", "two")]))
    while (newest := await proxy.store.answers.newest()) is None or newest.status != "pending":
        await asyncio.sleep(0.01)
    said, _ = await ask(proxy, [*history, says("user", "/rl bad")])
    assert "nothing of it has come yet" in said
    status, body = await proxy.rate(completion_id="last", rating="good")
    assert status == 409 and "nothing of it has come yet" in body["error"]["message"]
    assert await rated(proxy) == {}
    proxy.backend.hold.set()
    await waiting
    assert (await proxy.rate(completion_id="last", rating="good"))[0] == 201


async def test_another_answer_of_the_same_session_is_under_way(proxy: Proxy) -> None:
    headers = {"x-rl-session": "s"}
    text, _ = await ask(proxy, [says("user", "one")], headers)
    stream = await begun(proxy, [says("user", "something else")], headers)
    said, _ = await ask(proxy, [says("user", "one"), says("assistant", text), says("user", "/rl good")], headers)
    assert "another answer of this session is not finished" in said and await rated(proxy) == {}
    stream.close()


async def test_another_conversation_under_way_is_nobodys_affair(proxy: Proxy) -> None:
    text, id = await ask(proxy, [says("user", "one")])
    stream = await begun(proxy, [says("user", "something else")])
    said, _ = await ask(proxy, [says("user", "one"), says("assistant", text), says("user", "/rl good")])
    assert "rated good" in said and await rated(proxy) == {id: 1.0}
    stream.close()


async def test_cline_keeps_no_answer_that_was_broken_off(proxy: Proxy) -> None:
    text, _ = await ask(proxy, [says("user", "one")])
    history = [says("user", "one"), says("assistant", text), says("user", "two")]
    id = await broken_off(proxy, history)
    said, _ = await ask(proxy, [*history, says("user", "/rl bad")])
    assert "rated bad" in said and "“You" in said and await rated(proxy) == {id: -1.0}


async def test_an_answer_that_was_broken_off_and_is_not_even_asked_for_in_the_history(proxy: Proxy) -> None:
    """It may be on the screen, or its client may have taken it away: nothing is chosen."""
    text, older = await ask(proxy, [says("user", "one")])
    history = [says("user", "one"), says("assistant", text)]
    id = await broken_off(proxy, [*history, says("user", "two")])
    said, _ = await ask(proxy, [*history, says("user", "/rl bad")])
    assert "reads like several" in said and id in said and older in said and await rated(proxy) == {}


async def test_a_client_that_keeps_what_was_shown_of_it(proxy: Proxy) -> None:
    id = await broken_off(proxy, [says("user", "a b c d")])
    for shown in ("You", "You [interrupted]"):
        said, _ = await ask(proxy, [says("user", "a b c d"), says("assistant", shown), says("user", "/rl bad")])
        assert "rated bad" in said and await rated(proxy) == {id: -1.0}


async def test_last_is_what_was_on_screen_also_where_it_was_broken_off(proxy: Proxy) -> None:
    await ask(proxy, [says("user", "one")], {"x-rl-session": "another"})
    id = await broken_off(proxy, [says("user", "two")])
    status, body = await proxy.rate(completion_id="last", rating="bad")
    assert (status, body["completion_id"]) == (201, id) and body["answer"].startswith("“You")


async def test_last_while_it_streams(proxy: Proxy) -> None:
    await ask(proxy, [says("user", "one")])
    stream = await begun(proxy, [says("user", "two")])
    status, body = await proxy.rate(completion_id="last", rating="good")
    assert (status, body["completion_id"]) == (201, stream.headers["x-rl-completion-id"])
    stream.close()


async def streaming(proxy: Proxy, *messages: dict[str, Any], **more: Any) -> tuple[aiohttp.ClientResponse, str]:
    """A stream whose first words have come, and whose row may not be there yet; and its id."""
    proxy.backend.pause_s = 5.0
    body = {"model": "fake", "messages": list(messages), "stream": True, **more}
    response = await proxy.http.post("/v1/chat/completions", json=body)
    got = b""
    while b"You" not in got:
        got += await response.content.readany()
    return response, str(response.headers["x-rl-completion-id"])


async def test_the_first_moments_of_a_stream_count_too(proxy: Proxy) -> None:
    """Its row is stored a second after the question: `last` was the answer before it until then."""
    _, older = await ask(proxy, [says("user", "one")])
    stream, id = await streaming(proxy, says("user", "two"))
    assert await proxy.store.answers.get(id) is None, "the case that is meant"
    status, body = await proxy.rate(completion_id="last", rating="bad")
    assert (status, body["completion_id"]) == (201, id)
    assert body["answer"] == "“You”, still streaming" and older not in await rated(proxy)
    stream.close()


async def test_the_first_moments_of_a_stream_count_in_the_chat_too(proxy: Proxy) -> None:
    text, older = await ask(proxy, [says("user", "one")], {"x-rl-session": "s"})
    history = [says("user", "one"), says("assistant", text)]
    proxy.backend.pause_s = 5.0
    stream, id = await streaming(proxy, *history, says("user", "two"))
    assert await proxy.store.answers.get(id) is None
    said, _ = await ask(proxy, [*history, says("user", "two"), says("user", "/rl bad")])
    assert "rated bad" in said and "It begins: “You”, still streaming." in said
    assert await rated(proxy) == {id: -1.0} and older not in await rated(proxy)
    stream.close()


async def test_last_of_several_streams_is_the_one_asked_last(proxy: Proxy) -> None:
    first, _ = await streaming(proxy, says("user", "one"))
    second, id = await streaming(proxy, says("user", "two"))
    side, _ = await streaming(proxy, says("user", "a title"), max_tokens=1)
    status, body = await proxy.rate(completion_id="last", rating="good")
    assert (status, body["completion_id"]) == (201, id)
    for stream in (first, second, side):
        stream.close()


async def test_a_stream_rated_by_its_id_is_said_to_be_one(proxy: Proxy) -> None:
    proxy.backend.hold.clear()
    waiting = asyncio.create_task(ask(proxy, [says("user", "one")], {"x-rl-completion-id": "mine"}))
    while await proxy.store.answers.get("mine") is None:
        await asyncio.sleep(0.01)
    status, body = await proxy.rate(completion_id="mine", rating="good")
    assert (status, body["answer"]) == (201, "no words yet, still streaming")
    proxy.backend.hold.set()
    await waiting
    status, body = await proxy.rate(completion_id="mine", rating="bad")
    assert (status, body["answer"]) == (201, "“You said: one”")


async def test_last_just_after_it_was_broken_off(proxy: Proxy) -> None:
    """Also in the moment in which its end is being stored."""
    _, older = await ask(proxy, [says("user", "one")])
    stream, id = await streaming(proxy, says("user", "two"))
    stream.close()
    status, body = await proxy.rate(completion_id="last", rating="bad")
    assert (status, body["completion_id"]) == (201, id) and body["answer"].startswith("“You")
    assert older not in await rated(proxy)


async def test_last_was_broken_off_before_it_said_anything(proxy: Proxy) -> None:
    await ask(proxy, [says("user", "one")])
    proxy.backend.hold.clear()
    waiting = asyncio.create_task(ask(proxy, [says("user", "two")]))
    while (newest := await proxy.store.answers.newest()) is None or newest.status != "pending":
        await asyncio.sleep(0.01)
    waiting.cancel()
    while (newest := await proxy.store.answers.newest()) is None or newest.status == "pending":
        await asyncio.sleep(0.01)
    status, body = await proxy.rate(completion_id="last", rating="good")
    assert status == 409 and "broken off before it said anything" in body["error"]["message"]
    proxy.backend.hold.set()


# Which one it was


async def test_the_first_words_are_harmless(proxy: Proxy) -> None:
    proxy.backend.says = "\x1b[2Jred \u202eand very, " + "very " * 40 + "long"
    text, id = await ask(proxy, [says("user", "one")])
    said, _ = await ask(proxy, [says("user", "one"), says("assistant", text), says("user", "/rl good")])
    assert "“\\x1b[2Jred \\u202eand very, very" in said and "…”" in said
    assert not {"\x1b", "\u202e"} & set(said)
    _, body = await proxy.rate(completion_id=id, rating="bad")
    assert body["answer"].startswith("“\\x1b[2Jred")


async def test_the_first_words_of_a_call(proxy: Proxy) -> None:
    proxy.backend.says = ""
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    _, id = await ask(proxy, [says("user", "one")], tools=tools)
    _, body = await proxy.rate(completion_id=id, rating="good")
    assert body["answer"] == "a call of look"
