"""How a message was written, told apart from what it says, and put together again."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from proxy.conversation.as_sent import DEEPEST, as_sent, form_of, forms_of
from proxy.conversation.conversations import as_chat, canonical
from proxy.core.agent_wrappers import ATTACHED
from proxy.dialects.chat_form import text_part
from scripts.harness.in_process import Proxy


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def calls(*arguments: Any) -> dict[str, Any]:
    functions = [{"name": "f", "arguments": one} for one in arguments]
    made = [{"id": f"c{n}", "type": "function", "function": function} for n, function in enumerate(functions)]
    return {"role": "assistant", "content": "", "tool_calls": made}


def again(*messages: dict[str, Any], newest: int = -1) -> list[dict[str, Any]]:
    """As they are after they were stored."""
    forms = orjson.loads(orjson.dumps(forms_of([form_of(m) for m in messages], newest)))
    return as_sent([as_chat(canonical(m)) for m in messages], forms)


@pytest.mark.parametrize(
    "message",
    [
        user("hi"), user("  hi\n\n"), user(""), user(" \n\t "), user("\u2028a\u00a0"),
        user([text_part("one"), text_part(" two ")]), user([text_part("one")]), user([text_part("  "), text_part("")]),
        user([text_part("\n one"), text_part("Gr\u00f6\u00dfe 日本語 🙂 ")]),
        {"role": "assistant", "content": "\n\nYes.", "reasoning": "Hm, \u2026"},
        {"role": "assistant", "content": "x", "reasoning_content": " a ", "reasoning": "a"},
        calls({"b": 1, "a": 2}), calls({"a": 1}, {"z": [{"y": 1, "x": 2}, 3, []], "é": {"b": {}, "a": None}}),
        calls({}), calls([{"b": 1, "a": 2}]), calls("no JSON"),
        {"role": "tool", "content": " 42\n", "tool_call_id": "c1"},
    ],
)  # fmt: skip
def test_what_was_written_is_what_comes_back(message: dict[str, Any]) -> None:
    (found,) = again(message)
    assert found == message
    given, back = ([call["function"]["arguments"] for call in one.get("tool_calls", ())] for one in (message, found))
    assert orjson.dumps(given) == orjson.dumps(back), "in their order"


def test_arguments_that_come_as_a_text_come_back_as_an_object_in_its_order() -> None:
    (found,) = again(calls('{"b": 1,\n "a": [2]}', "not { JSON"))
    said = [call["function"]["arguments"] for call in found["tool_calls"]]
    assert list(said[0].items()) == [("b", 1), ("a", [2])] and said[1] == "not { JSON"


def test_most_messages_have_nothing_that_is_left_out() -> None:
    assert form_of(user("hi")) is None and form_of(calls({"a": 1, "b": [1]})) is None
    assert forms_of([None, form_of(user("x "))], 0) == {"1": ["", " ", None, None, None]}


def test_reasoning_is_kept_of_the_turn_that_goes_on_alone() -> None:
    """Templates leave out the rest, and each turn would keep it once more."""
    thinks = {"role": "assistant", "content": "a ", "reasoning": "Secretly."}
    forms = forms_of([form_of(m) for m in (user("1"), thinks, user("2"), thinks)], 2)
    assert forms == {"1": ["", " ", None, None, None], "3": ["", " ", None, None, {"reasoning": "Secretly."}]}
    assert form_of({"role": "user", "content": "x", "reasoning": "not the model's"}) is None


def test_what_is_no_text_and_what_nobody_wrote_stays_as_it_is_stored() -> None:
    picture = [{"type": "image_url", "image_url": {"url": "data:x"}}, text_part(" y ")]
    assert form_of(user(picture)) is None and again(user(picture)) == [user(picture)]
    document = user([{**text_part(" said in a file"), ATTACHED: True}])
    assert again(document) == [user(" said in a file")], "servers get it as a string"
    assert form_of({"role": "assistant", "content": "", "reasoning": "\ud83d"}) is None
    for odd in (5, {"a": 1}, [1, "x"], [None]):
        assert form_of(user(odd)) is None


def test_arguments_of_any_depth_can_be_stored() -> None:
    for depth in (1, DEEPEST - 2, DEEPEST, 120):
        value: Any = {"b": 1, "a": 2}
        for _ in range(depth):
            value = {"z": value, "y": [0]}
        orjson.dumps(forms_of([form_of(calls(value))], -1))


async def test_a_secret_in_reasoning_that_is_sent_back_is_taken_out_everywhere(proxy: Proxy) -> None:
    """The prompt's token ids would spell it out, too."""
    secret = "sk-proj-" + "aB3dE5gH7jK9mN1pQ3sT5vX7zA9cE1gI3kM5oQ7sU9wY1bD3fH5jL7nP9rT1vX3z"
    thinks = {"role": "assistant", "content": "Done.", "reasoning": f"The key is {secret}."}
    body = {"model": "fake", "messages": [user("x"), thinks]}
    async with proxy.http.post("/v1/chat/completions", json=body) as response:
        id = response.headers["x-rl-completion-id"]
    found = await proxy.store.completions.get(id)
    assert found is not None and found.end is not None
    assert found.new.redacted and found.new.forms is None
    assert found.end.prompt_token_ids is None and not found.end.exact


async def test_what_is_forgotten_is_gone_from_here_as_well(proxy: Proxy) -> None:
    word = b"quincunx-in-reasoning"
    thinks = {"role": "assistant", "content": "Done.", "reasoning": word.decode()}
    body = {"model": "fake", "messages": [user("x"), thinks]}
    async with proxy.http.post("/v1/chat/completions", json=body) as response:
        id = response.headers["x-rl-completion-id"]
    whole = await proxy.store.completions.get(id)
    assert whole is not None and word.decode() in str(whole.new.forms)
    async with proxy.http.post("/rl/forget", json={"completion": id}) as response:
        assert response.status == 200, await response.text()
    files = [file for file in proxy.home.rglob("*") if file.is_file()]
    assert files and not [file for file in files if word in file.read_bytes()]
