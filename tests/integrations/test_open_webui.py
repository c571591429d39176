"""The Open WebUI function, called as Open WebUI 0.12.4 calls it, against a whole proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from scripts.fakes.platforms.open_webui import USER, FakeOpenWebUI, running
from scripts.harness.in_process import Proxy
from store.records import Rating

CHAT = {"x-openwebui-chat-id": "chat-1", "x-openwebui-user-email": USER["email"]}


@pytest.fixture
async def ui(proxy: Proxy) -> AsyncIterator[FakeOpenWebUI]:
    with running(proxy.url) as fake:
        yield fake


async def answered(proxy: Proxy, ui: FakeOpenWebUI, text: str, *before: str, **more: Any) -> tuple[str, str]:
    """A question in the chat and its answer: the completion's and the message's id."""
    answer = await (await proxy.chat(*before, text, headers=CHAT)).json()
    ui.says("chat-1", text)
    return answer["id"], ui.answered("chat-1", answer["choices"][0]["message"]["content"], **more)


async def live(proxy: Proxy, id: str) -> list[tuple[str, float, str | None, str | None]]:
    ratings = await proxy.store.ratings.history(id)
    return [(one.rater, one.value, one.comment, one.correction) for one in ratings if one.live]


async def every(proxy: Proxy) -> list[Rating]:
    return [
        rating
        for one in await proxy.store.completions.page()
        for rating in await proxy.store.ratings.history(one.new.id)
    ]


async def test_a_click_rates_the_message_that_it_is_under(proxy: Proxy, ui: FakeOpenWebUI) -> None:
    first, shown = await answered(proxy, ui, "hello")
    await answered(proxy, ui, "another", "hello", "You said: hello")
    await ui.thumb("chat-1", shown, 1)
    assert await live(proxy, first) == [("ann@example.org", 1.0, None, None)]
    assert ui.notices == [("success", "Rated good in rlproxy: “You said: hello”")]
    (rating,) = await every(proxy)  # its tags came a second later, and are no second rating
    assert (rating.source, rating.scale) == ("open-webui", "thumb")


async def test_the_form_below_the_thumb(proxy: Proxy, ui: FakeOpenWebUI) -> None:
    id, shown = await answered(proxy, ui, "hello")
    await ui.thumb("chat-1", shown, -1)
    await ui.comment("chat-1", shown, reason="too_verbose", comment="half of it would do", details={"rating": 3})
    assert await live(proxy, id) == [("ann@example.org", -0.5556, "Too verbose: half of it would do", None)]
    assert ui.notices[-1] == ("success", "Rated 3 of 10 in rlproxy: “You said: hello”, with your comment")
    await ui.comment("chat-1", shown, reason="other", comment="", details={"rating": None})
    assert await live(proxy, id) == [("ann@example.org", -1.0, None, None)]


async def test_a_turned_thumb_leaves_its_comment_behind(proxy: Proxy, ui: FakeOpenWebUI) -> None:
    id, shown = await answered(proxy, ui, "hello")
    await ui.thumb("chat-1", shown, -1)
    await ui.comment("chat-1", shown, reason="too_verbose", comment="half of it would do", details={"rating": 3})
    await ui.thumb("chat-1", shown, 1)
    assert await live(proxy, id) == [("ann@example.org", 1.0, None, None)]
    await ui.comment("chat-1", shown, comment="now it is short", details={"rating": 10})
    assert await live(proxy, id) == [("ann@example.org", 1.0, "now it is short", None)]


async def test_a_deleted_feedback_is_taken_back(proxy: Proxy, ui: FakeOpenWebUI) -> None:
    id, shown = await answered(proxy, ui, "hello")
    other, below = await answered(proxy, ui, "another", "hello", "You said: hello")
    feedback = await ui.thumb("chat-1", shown, -1)
    await ui.thumb("chat-1", below, 1)
    await ui.delete(feedback)
    assert await live(proxy, id) == [] and len(await live(proxy, other)) == 1
    assert (await proxy.store.ratings.history(id))[0].retracted_at is not None


@pytest.mark.parametrize("user", [True, False])
async def test_all_feedback_is_deleted(proxy: Proxy, ui: FakeOpenWebUI, user: bool) -> None:
    id, shown = await answered(proxy, ui, "hello")
    await ui.thumb("chat-1", shown, -1)
    await proxy.rate(completion_id=id, rating="good", rater="bob")
    await ui.delete_all(user=user)
    assert await live(proxy, id) == [("bob", 1.0, None, None)]


async def test_an_edit_after_the_thumb_is_a_correction(proxy: Proxy, ui: FakeOpenWebUI) -> None:
    id, shown = await answered(proxy, ui, "hello")
    await ui.edit("chat-1", shown, "You said: hello")  # nothing rated, nothing changed
    await ui.thumb("chat-1", shown, -1)
    await ui.edit("chat-1", shown, "Good day to you.")
    assert await live(proxy, id) == [("ann@example.org", -1.0, None, "Good day to you.")]
    assert ui.notices[-1] == ("success", "Rated bad in rlproxy: “You said: hello”, with your correction")
    await ui.comment("chat-1", shown, comment="too stiff")  # with the edited text in its snapshot
    assert await live(proxy, id) == [("ann@example.org", -1.0, "too stiff", "Good day to you.")]
    await ui.edit("chat-1", shown, "You said: hello")
    assert await live(proxy, id) == [("ann@example.org", -1.0, "too stiff", None)]


async def test_an_edit_before_the_thumb(proxy: Proxy, ui: FakeOpenWebUI) -> None:
    """Where Open WebUI keeps what the answer was; else nobody knows which one it is."""
    id, shown = await answered(proxy, ui, "hello", output=None)
    await ui.edit("chat-1", shown, "Good day to you.")
    await ui.thumb("chat-1", shown, -1)
    assert await live(proxy, id) == [("ann@example.org", -1.0, None, "Good day to you.")]
    other, below = await answered(proxy, ui, "another", "hello", "You said: hello")
    await ui.edit("chat-1", below, "Something else.")
    await ui.thumb("chat-1", below, -1)
    assert await live(proxy, other) == []
    assert ui.notices[-1][0] == "error" and "was edited before it was rated" in ui.notices[-1][1]


async def test_what_goes_on_is_no_correction(proxy: Proxy, ui: FakeOpenWebUI) -> None:
    """`Continue Response` writes on below the same answer."""
    id, shown = await answered(proxy, ui, "hello")
    await ui.thumb("chat-1", shown, 1)
    await ui.edit("chat-1", shown, "You said: hello and it goes on")
    assert await live(proxy, id) == [("ann@example.org", 1.0, None, None)]


async def test_an_undo_in_rlproxy_stays(proxy: Proxy, ui: FakeOpenWebUI) -> None:
    """Whatever happens in the chat; a click is a new rating."""
    id, shown = await answered(proxy, ui, "hello")
    await ui.thumb("chat-1", shown, 1)
    await proxy.http.delete("/v1/feedback/last", params={"rater": USER["email"]})
    await ui.edit("chat-1", shown, "Good day to you.")
    assert await live(proxy, id) == []
    await ui.thumb("chat-1", shown, 1)
    assert await live(proxy, id) == [("ann@example.org", 1.0, None, "Good day to you.")]


async def test_a_message_of_several_answers(proxy: Proxy, ui: FakeOpenWebUI) -> None:
    """Open WebUI's own tools: one message, and what is rated is the answer at its end."""
    tool = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
    asked: list[dict[str, Any]] = [{"role": "user", "content": "what time is it?"}]
    body = {"model": "fake", "messages": asked, "tools": [tool]}
    async with proxy.http.post("/v1/chat/completions", json=body, headers=CHAT) as response:
        called = (await response.json())["choices"][0]["message"]
    asked += [called, {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "noon"}]
    async with proxy.http.post("/v1/chat/completions", json=body, headers=CHAT) as response:
        answer = await response.json()
    text = answer["choices"][0]["message"]["content"]
    function = called["tool_calls"][0]
    output = [
        {"type": "function_call", "call_id": function["id"], **function["function"]},
        {"type": "message", "content": [{"type": "output_text", "text": called["content"]}]},
        {"type": "function_call_output", "call_id": function["id"], "output": [{"type": "input_text", "text": "noon"}]},
        {"type": "reasoning", "content": [{"type": "output_text", "text": "hm"}]},
        {"type": "message", "content": [{"type": "output_text", "text": text}]},
    ]
    ui.says("chat-1", "what time is it?")
    shown = ui.answered("chat-1", f"{called['content']}\n{text}", output=output)
    await ui.thumb("chat-1", shown, 1)
    assert await live(proxy, answer["id"]) == [("ann@example.org", 1.0, None, None)]
    assert len(await every(proxy)) == 1


async def test_reasoning_in_the_text(proxy: Proxy, ui: FakeOpenWebUI) -> None:
    id, shown = await answered(proxy, ui, "hello", output=None)
    message = ui.chats["chat-1"]["history"]["messages"][shown]
    message["content"] = '<details type="reasoning" done="true">\n> hm\n</details>\nYou  said: **hello**'
    await ui.thumb("chat-1", shown, 1)
    assert await live(proxy, id) == [("ann@example.org", 1.0, None, None)]


async def test_of_two_answers_to_one_question_the_one_below_the_thumb(proxy: Proxy, ui: FakeOpenWebUI) -> None:
    first, shown = await answered(proxy, ui, "hello")
    question = ui.chats["chat-1"]["history"]["messages"][shown]["parentId"]
    proxy.backend.says = "Hi there"
    second = (await (await proxy.chat("hello", headers=CHAT)).json())["id"]
    again = ui.answered("chat-1", "Hi there", parent=question)
    await ui.thumb("chat-1", again, 1)
    await ui.thumb("chat-1", shown, -1)
    assert (await live(proxy, first))[0][1] == -1.0 and (await live(proxy, second))[0][1] == 1.0


async def test_the_same_words_in_another_chat_are_another_answer(proxy: Proxy, ui: FakeOpenWebUI) -> None:
    await answered(proxy, ui, "hello")
    ui.says("chat-2", "hello")
    await ui.thumb("chat-2", ui.answered("chat-2", "You said: hello"), 1)
    assert await every(proxy) == [] and ui.notices[-1][0] == "error"


async def test_without_forwarded_names_it_is_known_by_its_conversation(proxy: Proxy, ui: FakeOpenWebUI) -> None:
    id = (await (await proxy.chat("hello, who are you?")).json())["id"]
    ui.says("chat-1", "hello, who are you?")
    await ui.thumb("chat-1", ui.answered("chat-1", "You said: hello, who are you?"), 1)
    assert await live(proxy, id) == [("ann@example.org", 1.0, None, None)]


async def test_rlproxys_own_answer_is_not_rated(proxy: Proxy, ui: FakeOpenWebUI) -> None:
    await answered(proxy, ui, "hello")
    ui.says("chat-1", "/rl status")
    await ui.thumb("chat-1", ui.answered("chat-1", "rlproxy: all is well"), 1)
    assert await every(proxy) == [] and "rlproxy's own answer" in ui.notices[-1][1]


async def test_anothers_answer_is_not_rated(proxy: Proxy, ui: FakeOpenWebUI) -> None:
    await proxy.chat("hello", headers={**CHAT, "x-openwebui-user-email": "bob@example.org"})
    ui.says("chat-1", "hello")
    await ui.thumb("chat-1", ui.answered("chat-1", "You said: hello"), 1)
    assert await every(proxy) == []


async def test_what_cannot_be_rated_is_said(proxy: Proxy, ui: FakeOpenWebUI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlproxy_thumbs.TRIES_S", (0, 0))
    _, shown = await answered(proxy, ui, "hello")
    await ui.thumb("chat-1", ui.answered("chat-1", "An answer of another model"), 1)
    assert ui.notices[-1][0] == "error" and "has not captured this answer" in ui.notices[-1][1]
    ui.function.valves.url = "http://127.0.0.1:9"
    await ui.thumb("chat-1", shown, 1)
    assert ui.notices[-1][0] == "error" and ui.notices[-1][1].startswith("Not rated in rlproxy: Cannot connect")
    ui.function.valves.url = f"{proxy.url}/somewhere/else"
    await ui.thumb("chat-1", shown, -1)
    assert ui.notices[-1][0] == "error"


async def test_a_deletion_that_was_not_heard_is_sent_with_the_next(
    proxy: Proxy, ui: FakeOpenWebUI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlproxy_thumbs.TRIES_S", (0,))
    id, shown = await answered(proxy, ui, "hello")
    feedback, url = await ui.thumb("chat-1", shown, 1), ui.function.valves.url
    ui.function.valves.url = "http://127.0.0.1:9"
    await ui.delete(feedback)
    assert len(await live(proxy, id)) == 1
    ui.function.valves.url = url
    await ui.delete_all(user=True)
    assert await live(proxy, id) == []


async def test_behind_a_key(proxy: Proxy) -> None:
    """The one by which Open WebUI asks, which is no admin's."""
    await proxy.stop()
    await proxy.start(server__api_key="k" * 20, server__admin_key="a" * 20)
    asked = {**CHAT, "authorization": f"Bearer {'k' * 20}"}
    id = (await (await proxy.chat("hello", headers=asked)).json())["id"]
    for key, rated in (("k" * 20, 1), ("a" * 20, -1), ("wrong", None)):
        with running(proxy.url, key) as ui:
            ui.says("chat-1", "hello")
            feedback = await ui.thumb("chat-1", ui.answered("chat-1", "You said: hello"), rated or 1)
            if rated is not None:
                assert await live(proxy, id) == [("ann@example.org", float(rated), None, None)]
                await ui.delete(feedback)
                assert await live(proxy, id) == []
            else:
                assert "needs a key" in ui.notices[-1][1]
