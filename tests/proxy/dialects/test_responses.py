"""The Responses API through the real OpenAI client: translated, and passed through."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from proxy.conversation.conversations import as_chat
from proxy.dialects import chat_tools
from proxy.dialects.responses import Responses
from proxy.relay import previous_response
from scripts.fakes import native
from scripts.harness.in_process import Proxy
from store.records import Completion, FinishedCompletion

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}


@pytest.fixture(params=["translated", "native"])
def way(request: pytest.FixtureRequest, proxy: Proxy) -> str:
    if request.param == "native":
        proxy.backend.speaks.add("responses")
    return str(request.param)


async def captured(proxy: Proxy, id: str) -> tuple[Completion, FinishedCompletion]:
    found = await proxy.store.completions.get(id)
    assert found is not None and found.end is not None
    return found, found.end


async def raw_stream(proxy: Proxy, **body: Any) -> list[dict[str, Any]]:
    async with proxy.http.post("/v1/responses", json={"model": "fake", "stream": True, **body}) as response:
        raw = await response.read()
        assert response.status == 200, raw
    events = []
    for block in raw.split(b"\n\n"):
        if block.startswith(b"event: "):
            name, data = block.split(b"\n", 1)
            event = json.loads(data.removeprefix(b"data: "))
            assert name == b"event: " + event["type"].encode()
            events.append(event)
    return events


async def test_whole(proxy: Proxy, client: AsyncOpenAI, way: str) -> None:
    answer = await client.responses.create(model="fake", input="one two", temperature=0.5)
    assert answer.output_text == "You said: one two " and answer.status == "completed" and answer.model == "fake"
    assert answer.id.startswith("rl-") and answer.usage is not None and answer.usage.output_tokens == 4
    found, end = await captured(proxy, answer.id)
    assert end.translated is (way == "translated") and found.new.dialect == "responses"
    assert end.exact and end.text == answer.output_text and end.finish_reason == "stop"
    assert end.prompt_token_ids == [1, 2, 3] and end.logprobs == pytest.approx([-0.4, -0.6, -0.4, -0.4])
    assert found.new.sampling["temperature"] == 0.5 and b"one two" not in found.new.request


async def test_streamed(proxy: Proxy, client: AsyncOpenAI, way: str) -> None:
    async with client.responses.stream(model="fake", input="one two") as stream:
        text = "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])
        final = await stream.get_final_response()
    assert text == final.output_text == "You said: one two "
    _, end = await captured(proxy, final.id)
    assert end.exact and end.text == text and end.translated is (way == "translated")
    assert end.usage is not None and end.usage["completion_tokens"] == 4


async def test_sync_client(proxy: Proxy) -> None:
    def ask() -> tuple[str, list[str]]:
        with OpenAI(base_url=proxy.url + "/v1", api_key="any", max_retries=0) as client:
            whole = client.responses.create(model="fake", input="hi")
            with client.responses.create(model="fake", input="hi", stream=True) as events:
                return whole.output_text, [event.type for event in events]

    text, types = await asyncio.to_thread(ask)
    assert text == "You said: hi " and types[0] == "response.created" and types[-1] == "response.completed"


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"tools": [LOOK]},
        {"max_output_tokens": 2},
        {"include": ["message.output_text.logprobs"]},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"tools": [{"type": "custom", "name": "patch"}], "instructions": "Be brief.", "metadata": {"a": "b"}},
        {"text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "object"}}}},
        {"tools": [{"type": "local_shell"}]},
        {"tools": [{"type": "shell"}]},
        {"tools": [{"type": "apply_patch"}]},
        {"tools": [{"type": "tool_search", "execution": "client"}]},
    ],
)
async def test_events_are_the_sdks_types_and_add_up(proxy: Proxy, more: dict[str, Any]) -> None:
    """Each event is valid; deltas add up to `done`, done items to the response; it equals the whole answer."""
    events = await raw_stream(proxy, input="one two", **more)
    for event in events:
        EVENT.validate_python(event)
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert [e["type"] for e in events[:2]] == ["response.created", "response.in_progress"]
    deltas: dict[tuple[str, str], str] = {}
    for event in events:
        kind, _, stage = event["type"].removeprefix("response.").rpartition(".")
        if stage == "delta":
            key = (event["item_id"], kind)
            deltas[key] = deltas.get(key, "") + event["delta"]
        elif stage == "done" and (event.get("item_id"), kind) in deltas:
            said = next(event[m] for m in ("text", "refusal", "arguments", "input") if m in event)
            assert said == deltas.pop((event["item_id"], kind))
    assert not deltas
    final = events[-1]["response"]
    done = {e["output_index"]: e["item"] for e in events if e["type"] == "response.output_item.done"}
    assert final["output"] == [done[i] for i in range(len(done))]
    assert final["id"].startswith("rl-")

    async with proxy.http.post("/v1/responses", json={"model": "fake", "input": "one two", **more}) as response:
        whole = await response.json()
    Response.model_validate(whole)
    for body in (whole, final):
        _without_ids(body)
    if "tools" in more:  # a stream tells of the call first, a whole answer of the text
        whole["output"].sort(key=lambda item: item["type"])
        final["output"].sort(key=lambda item: item["type"])
    assert whole == final


def _without_ids(body: dict[str, Any]) -> None:
    for key in ("id", "created_at", "completed_at"):
        body[key] = None
    for item in body["output"]:
        item["id"] = None


async def test_incomplete(proxy: Proxy, client: AsyncOpenAI) -> None:
    answer = await client.responses.create(model="fake", input="one two", max_output_tokens=2)
    assert answer.status == "incomplete" and answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    events = await raw_stream(proxy, input="one two", max_output_tokens=2)
    assert events[-1]["type"] == "response.incomplete"
    _, end = await captured(proxy, events[-1]["response"]["id"])
    assert end.finish_reason == "length" and end.status == "done"


async def test_reasoning_comes_before_the_text(proxy: Proxy, client: AsyncOpenAI) -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": True}}
    stream = await client.responses.create(model="fake", input="hi", stream=True, extra_body=extra)
    types = [event.type async for event in stream]
    assert "response.reasoning_text.delta" in types
    assert types.index("response.reasoning_text.done") < types.index("response.output_text.delta")
    answer = await client.responses.create(model="fake", input="hi", extra_body=extra)
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    _, end = await captured(proxy, answer.id)
    assert end.exact and end.text == "You said: hi " and len(end.token_ids or ()) == 6


async def test_tools_and_their_results(proxy: Proxy, client: AsyncOpenAI) -> None:
    asked: list[Any] = [{"role": "user", "content": "where?"}]
    first = await client.responses.create(model="fake", input=asked, tools=[LOOK])  # type: ignore[list-item]
    call = next(item for item in first.output if item.type == "function_call")
    assert call.name == "look" and json.loads(call.arguments) == {"a": 2, "b": 1}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "here"}
    history = [*asked, *(item.to_dict() for item in first.output), result]
    second = await client.responses.create(model="fake", input=history, tools=[LOOK])  # type: ignore[arg-type,list-item]
    assert second.output_text == "It is here"
    sent = proxy.backend.requests[-1]["messages"]
    assert [m["role"] for m in sent] == ["user", "assistant", "tool"]
    assert sent[1]["tool_calls"][0]["function"]["name"] == "look" and sent[1]["tool_calls"][0]["id"] == call.call_id
    # The assistant message sent back is the reply that was captured: one tree.
    one, _ = await captured(proxy, first.id)
    two, _ = await captured(proxy, second.id)
    assert one.new.prompt == two.new.prompt[:1]
    one_end = (await captured(proxy, first.id))[1]
    assert one_end.reply == two.new.prompt[1]


@pytest.mark.parametrize(("reason", "arguments"), [("tool_calls", "{}"), ("length", "")])
def test_a_function_called_without_arguments_has_an_empty_object(reason: str, arguments: str) -> None:
    """Servers stream no arguments as an empty text, which is not JSON. A call that was cut has what came of it."""
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}
    request = Responses().parse({"model": "m", "input": "x", "tools": [LOOK]})

    whole = Responses().renderer(id="rl-1", parsed=request, created=1)
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    answer = json.loads(whole.whole({"choices": [{"index": 0, "message": message, "finish_reason": reason}]}))
    assert [item["arguments"] for item in answer["output"]] == [arguments]

    streamed = Responses().renderer(id="rl-1", parsed=request, created=1)
    pieces = streamed.chunk({"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": reason}]})
    events = [json.loads(piece.partition(b"data: ")[2]) for piece in [*pieces, streamed.end()[1]]]
    deltas = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(deltas) == events[-1]["response"]["output"][0]["arguments"] == arguments


async def test_custom_and_namespaced_tools_come_back_as_such(proxy: Proxy, client: AsyncOpenAI) -> None:
    patch: dict[str, Any] = {"type": "custom", "name": "patch", "description": "Edits."}
    answer = await client.responses.create(model="fake", input="x", tools=[patch])  # type: ignore[list-item]
    call = next(item for item in answer.output if item.type == "custom_tool_call")
    assert call.name == "patch" and call.input == '{"b": 1, "a": 2}'  # it wrote no `input`: as it wrote it
    inner = {"type": "function", "name": "find", "parameters": {"type": "object"}}
    space = {"type": "namespace", "name": "files", "description": "…", "tools": [inner]}
    answer = await client.responses.create(model="fake", input="x", tools=[space])  # type: ignore[list-item]
    function = next(item for item in answer.output if item.type == "function_call")
    assert (function.namespace, function.name) == ("files", "find")
    assert proxy.backend.requests[-1]["tools"][0]["function"]["name"] == "files__find"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("local_shell", {"command": ["ls"], "working_directory": "/"}),
        ("shell", {"commands": ["ls", "pwd"], "timeout_ms": 9}),
        ("apply_patch", {"type": "update_file", "path": "a", "diff": "@@\n-x\n+y"}),
        ("apply_patch", {"type": "delete_file", "path": "a"}),
        ("tool_search", {"query": "pay"}),
    ],
)
async def test_a_tool_that_the_client_runs_goes_there_and_back(
    proxy: Proxy, tool: str, arguments: dict[str, Any], stream: bool
) -> None:
    """Its call is of the client's own kind; sent back with its result, it is the call that was captured: one tree."""
    proxy.backend.wants = tool, arguments
    body = {"model": "fake", "tools": [{"type": tool, "execution": "client"}], "tool_choice": {"type": tool}}
    asked = [{"role": "user", "content": "x"}]
    if stream:
        response = (await raw_stream(proxy, **body, input=asked))[-1]["response"]
    else:
        async with proxy.http.post("/v1/responses", json={**body, "input": asked}) as answer:
            response = await answer.json()
    call = next(item for item in response["output"] if item["type"] == f"{tool}_call")
    result = {"type": f"{tool}_call_output", "call_id": call["call_id"], "output": "done"}
    history = {**body, "input": [*asked, *response["output"], result]}
    async with proxy.http.post("/v1/responses", json=history) as answer:
        id = (await answer.json())["id"]
    function = proxy.backend.requests[-1]["messages"][1]["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == (tool, arguments)
    assert (await captured(proxy, response["id"]))[1].reply == (await captured(proxy, id))[0].new.prompt[1]


async def test_tools_between_the_messages_are_stored_with_the_others(proxy: Proxy, client: AsyncOpenAI) -> None:
    """A template shows them, and the messages of a capture have no place for them."""
    added = {"type": "additional_tools", "role": "developer", "tools": [{"type": "custom", "name": "exec"}]}
    asked: Any = [added, {"role": "user", "content": "x"}]
    answer = await client.responses.create(model="fake", input=asked, tools=[LOOK])  # type: ignore[list-item]
    found, _ = await captured(proxy, answer.id)
    assert [tool["name"] for tool in json.loads(found.new.request)["tools"]] == ["look", "exec"]
    names = [tool["function"]["name"] for tool in chat_tools("responses", found.new.request) or ()]
    assert names == [tool["function"]["name"] for tool in proxy.backend.requests[-1]["tools"]] == ["look", "exec"]


async def test_a_command_behind_added_tools_is_one(proxy: Proxy, client: AsyncOpenAI) -> None:
    one = await client.responses.create(model="fake", input="question")
    added = {"type": "additional_tools", "role": "developer", "tools": []}
    asked: Any = [
        {"role": "user", "content": "question"}, *(item.to_dict() for item in one.output),
        {"role": "user", "content": "/rl good"}, added,
    ]  # fmt: skip
    assert "rated good" in (await client.responses.create(model="fake", input=asked)).output_text


async def test_settings_behind_a_command_reach_the_backend(proxy: Proxy) -> None:
    """The command and its answer are taken out of the request; what changes its tools and its effort is neither's."""
    proxy.backend.speaks.add("responses")
    settings = [
        {"type": "additional_tools", "role": "developer", "tools": [LOOK]},
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
    ]
    before, after = {"role": "user", "content": "question"}, {"role": "user", "content": "next"}
    talk = [{"role": "user", "content": "/rl good"}, {"role": "assistant", "content": "rlproxy: rated good."}]
    async with proxy.http.post(
        "/v1/responses", json={"model": "fake", "input": [before, *talk, *settings, after]}
    ) as response:
        assert response.status == 200
    assert proxy.backend.asked[-1][1]["input"] == [before, *settings, after]


class Said(BaseModel):
    said: str


async def test_structured_output(proxy: Proxy, client: AsyncOpenAI) -> None:
    answer = await client.responses.parse(model="fake", input="hello", text_format=Said)
    assert answer.output_parsed == Said(said="hello")
    form = proxy.backend.requests[-1]["response_format"]
    assert form["type"] == "json_schema" and form["json_schema"]["schema"]["required"] == ["said"]


async def test_previous_response(proxy: Proxy, client: AsyncOpenAI, way: str) -> None:
    one = await client.responses.create(model="fake", input="first", instructions="Be brief.")
    two = await client.responses.create(model="fake", input="second", previous_response_id=one.id)
    assert two.previous_response_id == one.id
    three = await client.responses.create(
        model="fake", input="third", previous_response_id=two.id, instructions="Be long."
    )
    found, _ = await captured(proxy, three.id)
    said = [(m["role"], m["content"]) for m in map(as_chat, found.new.prompt)]
    assert said == [
        ("system", "Be long."), ("user", "first"), ("assistant", "You said: first"), ("user", "second"),
        ("assistant", "You said: second"), ("user", "third"),
    ]  # fmt: skip
    path, body = proxy.backend.asked[-1]
    assert path == ("/v1/responses" if way == "native" else "/v1/chat/completions")
    assert len(body["input" if way == "native" else "messages"]) == (5 if way == "native" else 6)
    assert not body.get("previous_response_id")


async def test_previous_that_is_not_known(proxy: Proxy, client: AsyncOpenAI) -> None:
    with pytest.raises(BadRequestError) as caught:
        await client.responses.create(model="fake", input="x", previous_response_id="resp_nowhere")
    assert caught.value.code == "previous_response_not_found" and caught.value.param == "previous_response_id"
    proxy.backend.speaks.add("responses")
    # It failed before anything was learnt, and a backend that has the format may know the id itself.
    answer = await client.responses.create(model="fake", input="x", previous_response_id="resp_nowhere")
    assert answer.previous_response_id == "resp_nowhere"


async def test_another_users_answer_is_not_gone_on_from(proxy: Proxy, client: AsyncOpenAI) -> None:
    one = await client.responses.create(model="fake", input="mine", extra_headers={"x-rl-user": "ann"})
    with pytest.raises(BadRequestError):
        await client.responses.create(
            model="fake", input="x", previous_response_id=one.id, extra_headers={"x-rl-user": "bob"}
        )


@pytest.fixture
async def keyed(proxy: Proxy, client: AsyncOpenAI) -> dict[str, AsyncOpenAI]:
    """Clients with a key each: ann, bob, and boss, who is an admin."""
    found = {}
    for name, role in (("ann", "use"), ("bob", "use"), ("boss", "admin")):
        headers = {"x-api-key": proxy.local}
        async with proxy.http.post("/rl/keys", json={"name": name, "role": role}, headers=headers) as response:
            found[name] = client.with_options(api_key=(await response.json())["key"])
    return found


async def test_another_keys_answer_is_not_read(keyed: dict[str, AsyncOpenAI]) -> None:
    one = await keyed["ann"].responses.create(model="fake", input="mine")
    with pytest.raises(NotFoundError):
        await keyed["bob"].responses.retrieve(one.id)
    assert (await keyed["ann"].responses.retrieve(one.id)).id == one.id
    assert (await keyed["boss"].responses.retrieve(one.id)).id == one.id


async def test_another_keys_answer_is_not_gone_on_from(proxy: Proxy, keyed: dict[str, AsyncOpenAI]) -> None:
    one = await keyed["ann"].responses.create(model="fake", input="mine")
    with pytest.raises(BadRequestError) as caught:
        await keyed["bob"].responses.create(model="fake", input="repeat it", previous_response_id=one.id)
    assert caught.value.code == "previous_response_not_found"
    with pytest.raises(BadRequestError):  # naming a user of one's own changes nothing
        await keyed["bob"].responses.create(model="fake", input="x", previous_response_id=one.id, user="bob")
    await keyed["ann"].responses.create(model="fake", input="next", previous_response_id=one.id)
    assert [m["content"] for m in proxy.backend.requests[-1]["messages"]] == ["mine", "You said: mine", "next"]


async def test_another_keys_answer_is_not_deleted(proxy: Proxy, keyed: dict[str, AsyncOpenAI]) -> None:
    one = await keyed["ann"].responses.create(model="fake", input="mine")
    with pytest.raises(NotFoundError):
        await keyed["bob"].responses.delete(one.id)
    assert await proxy.store.completions.get(one.id) is not None
    await keyed["ann"].responses.delete(one.id)
    assert await proxy.store.completions.get(one.id) is None


async def test_a_user_in_the_body_or_from_an_agent_keeps_nobody_from_their_own_chain(
    keyed: dict[str, AsyncOpenAI],
) -> None:
    ann, bob = keyed["ann"].responses, keyed["bob"].responses
    one = await ann.create(model="fake", input="one")  # as ann, by her key
    two = await ann.create(model="fake", input="two", previous_response_id=one.id, user="desk")
    three = await ann.create(model="fake", input="three", previous_response_id=two.id, user="desk")
    mail = {"x-openwebui-user-email": "a@b.c"}
    four = await ann.create(model="fake", input="four", extra_headers=mail)
    five = await ann.create(model="fake", input="five", previous_response_id=four.id, extra_headers=mail)
    assert (await ann.retrieve(three.id, extra_headers={"x-rl-user": "desk"})).id == three.id
    assert (await ann.retrieve(five.id, extra_headers=mail)).id == five.id
    with pytest.raises(NotFoundError):
        await bob.retrieve(three.id)


async def test_item_references(proxy: Proxy, client: AsyncOpenAI) -> None:
    one = await client.responses.create(model="fake", input="first")
    reference: Any = {"type": "item_reference", "id": one.output[0].id}
    asked: Any = [{"role": "user", "content": "first"}, reference, {"role": "user", "content": "second"}]
    await client.responses.create(model="fake", input=asked)
    assert [m["content"] for m in proxy.backend.requests[-1]["messages"]] == ["first", "You said: first", "second"]
    with pytest.raises(BadRequestError, match="not found"):
        await client.responses.create(model="fake", input=[{"type": "item_reference", "id": "msg_unknown"}])


async def test_a_command_above_a_reference_to_our_answer(proxy: Proxy, client: AsyncOpenAI, way: str) -> None:
    """As `@ai-sdk/openai` goes on after `/rl good`: it names our answer by its id, as it does with every answer."""
    one = await client.responses.create(model="fake", input="first")
    named: Any = {"type": "item_reference", "id": one.output[0].id}
    talk: Any = [{"role": "user", "content": "first"}, named, {"role": "user", "content": "/rl good"}]
    rated = await client.responses.create(model="fake", input=talk)
    assert "rated good" in rated.output_text
    talk += [{"type": "item_reference", "id": rated.output[0].id}, {"role": "user", "content": "second"}]
    await client.responses.create(model="fake", input=talk)
    path, body = proxy.backend.asked[-1]
    if way == "native":
        assert path == "/v1/responses" and body["input"] == [talk[0], named, talk[-1]]
    else:
        assert [m["content"] for m in body["messages"]] == ["first", "You said: first", "second"]


async def test_an_item_is_named_once(proxy: Proxy, client: AsyncOpenAI) -> None:
    """A small request that names a long answer a thousand times would be a very large one."""
    one = await client.responses.create(model="fake", input="first")
    before = len(proxy.backend.requests)
    reference: Any = {"type": "item_reference", "id": one.output[0].id}
    with pytest.raises(BadRequestError, match="Duplicate item found"):
        await client.responses.create(model="fake", input=[reference, reference])
    assert len(proxy.backend.requests) == before


async def test_many_references_are_looked_up_at_once(proxy: Proxy, client: AsyncOpenAI) -> None:
    """19,000 of them took 20 seconds: two looks into the store for each."""
    proxy.backend.speaks.add("responses")

    async def statements(count: int) -> int:
        named: Any = [{"type": "item_reference", "id": f"msg_rl-{n}_{n}"} for n in range(count)]
        seen: list[str] = []
        await proxy.store._reader._db.set_trace_callback(seen.append)
        await client.responses.create(model="fake", input=[*named, {"role": "user", "content": "hi"}])
        return len(seen)

    few = await statements(10)
    assert await statements(1000) <= few + 20  # what runs beside it looks into the store, too


async def test_more_answers_than_one_request_may_name_are_refused(
    proxy: Proxy, client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small request that names a thousand long answers would be a very large one."""
    monkeypatch.setattr(previous_response, "MOST_NAMED", 2)
    answers = [await client.responses.create(model="fake", input=f"question {n}") for n in range(3)]
    references: Any = [{"type": "item_reference", "id": answer.output[0].id} for answer in answers]
    says: Any = {"role": "user", "content": "hi"}
    before = len(proxy.backend.asked)
    with pytest.raises(BadRequestError, match=r"more than 2 earlier answers .* Send the items themselves"):
        await client.responses.create(model="fake", input=[*references, says])
    assert len(proxy.backend.asked) == before
    await client.responses.create(model="fake", input=[*references[:2], says])


async def test_a_chain_that_grows_beyond_the_largest_body_is_refused(proxy: Proxy) -> None:
    """A few bytes may name any number of long answers."""
    await proxy.stop()
    await proxy.start(server__max_body_bytes=20_000)

    async def grow(client: AsyncOpenAI) -> None:
        answer = await client.responses.create(model="fake", input=4000 * "x")
        for _ in range(9):
            answer = await client.responses.create(model="fake", input=1000 * "x", previous_response_id=answer.id)

    async with AsyncOpenAI(base_url=proxy.url + "/v1", api_key="any", max_retries=0) as client:
        with pytest.raises(APIStatusError, match="earlier answers that it names") as refusal:
            await grow(client)
    assert refusal.value.status_code == 413 and 1 < len(proxy.backend.asked) < 9


async def test_rl_good_in_a_chain(proxy: Proxy, client: AsyncOpenAI, way: str) -> None:
    one = await client.responses.create(model="fake", input="question", instructions="Today is Monday.")
    rated = await client.responses.create(model="fake", input="/rl good clear", previous_response_id=one.id)
    assert "rated good" in rated.output_text
    rating = await proxy.store.ratings.live(one.id, "owner")
    assert rating is not None and rating.comment == "clear"
    # The chain goes on from our answer, which the model never sees.
    two = await client.responses.create(model="fake", input="next", previous_response_id=rated.id)
    again = await client.responses.create(model="fake", input="/rl bad", previous_response_id=two.id)
    assert "rated bad" in again.output_text and await proxy.store.ratings.live(two.id, "owner") is not None
    found, _ = await captured(proxy, two.id)
    assert [as_chat(m)["content"] for m in found.new.prompt] == ["question", "You said: question", "next"]


async def test_a_local_answer_stands_for_a_history_only_where_it_can(proxy: Proxy, client: AsyncOpenAI) -> None:
    """Never a conversation that lost its beginning in silence."""
    one = await client.responses.create(model="fake", input="one")
    for more in ({}, {"previous_response_id": one.id}):
        asked: Any = [{"role": "user", "content": "two"}, {"role": "assistant", "content": "2"},
                      {"role": "user", "content": "/rl help"}]  # fmt: skip
        said = await client.responses.create(model="fake", input=asked, **more)  # type: ignore[call-overload]
        with pytest.raises(BadRequestError, match="not found"):
            await client.responses.create(model="fake", input="x", previous_response_id=said.id)


async def test_rl_as_items_and_as_the_first_word(proxy: Proxy, client: AsyncOpenAI) -> None:
    status = await client.responses.create(model="fake", input="/rl status")
    first = await client.responses.create(model="fake", input="hello", previous_response_id=status.id)
    assert [m["content"] for m in proxy.backend.requests[-1]["messages"]] == ["hello"]
    history: list[Any] = [{"role": "user", "content": "hello"}, *(item.to_dict() for item in first.output)]
    command = {"role": "user", "content": [{"type": "input_text", "text": "/rl good"}]}
    async with client.responses.stream(model="fake", input=[*history, command]) as stream:
        rated = await stream.get_final_response()
    assert "rated good" in rated.output_text
    after = [*history, command, *(item.to_dict() for item in rated.output), {"role": "user", "content": "go on"}]
    await client.responses.create(model="fake", input=after)
    assert [m["content"] for m in proxy.backend.requests[-1]["messages"]] == ["hello", "You said: hello ", "go on"]


async def test_get_and_delete(proxy: Proxy, client: AsyncOpenAI, way: str) -> None:
    one = await client.responses.create(model="fake", input="first", metadata={"k": "v"})
    two = await client.responses.create(model="fake", input="second", previous_response_id=one.id)
    got = await client.responses.retrieve(two.id)
    assert got.output_text.strip() == two.output_text.strip() and got.previous_response_id == one.id
    assert got.usage is not None and got.usage.output_tokens == 3
    assert (await client.responses.retrieve(one.id)).metadata == {"k": "v"}
    await proxy.rate(completion_id=one.id, rating="good")
    async with proxy.http.delete(f"/v1/responses/{one.id}") as response:
        assert response.status == 409
    await client.responses.delete(two.id)
    assert await proxy.store.completions.get(two.id) is None
    async with proxy.http.get("/v1/responses/resp_unknown") as response:
        assert response.status == 404  # the backend's own


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input": None}, "input"), ({"input": 3}, "input"), ({"input": [3]}, "input"), ({"input": [{}]}, "input"),
        ({"tools": {}}, "tools"), ({"tools": [3]}, "tools[0]"), ({"text": "x"}, "text"), ({"include": "x"}, "include"),
        ({"conversation": "conv_1"}, "conversation"), ({"background": True}, "background"),
        ({"tool_choice": {"type": "web_search"}, "tools": [{"type": "web_search"}]}, "tool_choice"),
        ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "tools"),
    ],
)  # fmt: skip
async def test_what_is_refused(proxy: Proxy, more: dict[str, Any], param: str) -> None:
    body = {"model": "fake", "input": "x", **more}
    async with proxy.http.post("/v1/responses", json=body) as response:
        error = (await response.json())["error"]
    assert response.status == 400 and error["param"] == param and error["type"] == "invalid_request_error"


async def test_built_in_tools_that_nobody_forces_are_left_out(proxy: Proxy, client: AsyncOpenAI) -> None:
    answer = await client.responses.create(model="fake", input="x", tools=[{"type": "web_search"}])
    assert answer.status == "completed" and "tools" not in proxy.backend.requests[-1]


async def test_developer_messages_join_the_instructions(proxy: Proxy, client: AsyncOpenAI) -> None:
    """As Codex sends them; many templates take one system message, and only at the beginning."""
    parts = [{"type": "input_text", "text": "Sandbox."}, {"type": "input_text", "text": "Skills."}]
    asked: Any = [{"role": "developer", "content": parts}, {"role": "user", "content": "x"}]
    extra = {"client_metadata": {"session_id": "s1"}}
    await client.responses.create(model="fake", input=asked, instructions="You are Codex.", extra_body=extra)
    sent = proxy.backend.requests[-1]["messages"]
    assert [m["role"] for m in sent] == ["system", "user"]
    assert sent[0]["content"] == "You are Codex.\n\nSandbox.\n\nSkills."
    assert "client_metadata" not in proxy.backend.requests[-1]


async def test_images(proxy: Proxy, client: AsyncOpenAI) -> None:
    parts = [{"type": "input_text", "text": "what?"}, {"type": "input_image", "image_url": "data:x", "detail": "low"}]
    asked: Any = [{"role": "user", "content": parts}]
    one = await client.responses.create(model="fake", input=asked)
    sent = proxy.backend.requests[-1]["messages"][0]["content"]
    assert sent[1] == {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}
    await client.responses.create(model="fake", input="and?", previous_response_id=one.id)
    assert proxy.backend.requests[-1]["messages"][0]["content"] == sent


@pytest.mark.parametrize("mood", ["error-event", "error-event-and-cut"])
@pytest.mark.parametrize(
    "said",
    [
        {"type": "error", "code": "server_error", "message": "out of memory", "param": None, "sequence_number": 6},
        {"type": "error", "error": {"type": "server_error", "message": "out of memory"}},
        native.GAVE_UP,
    ],
    ids=["as OpenAI", "typed", "bare"],
)
async def test_a_native_stream_that_the_backend_gives_up_is_an_error_and_ends_in_its_words_alone(
    proxy: Proxy, said: dict[str, Any], mood: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "GAVE_UP", said)
    proxy.backend.speaks.add("responses")
    proxy.backend.mood = mood
    body = {"model": "fake", "input": "a b c", "stream": True}
    async with proxy.http.post("/v1/responses", json=body) as response:
        raw, id = await response.read(), response.headers["x-rl-completion-id"]
    got = [json.loads(line.removeprefix(b"data: ")) for line in raw.split(b"\n") if line.startswith(b"data: ")]
    assert got[-1] == said and [event["type"] for event in got[:-1]].count("error") == 0
    _, end = await captured(proxy, id)
    assert (end.status, end.text, end.error) == ("error", "You said: ", "out of memory")


def test_the_words_that_a_stream_was_given_up_with_outlast_an_end_without_any() -> None:
    fold = Responses().fold()
    fold.add({"type": "error", "message": "out of memory"})
    fold.add({"type": "response.failed", "response": {"status": "failed", "error": None, "output": []}})
    assert fold.failed == "out of memory"


async def test_a_native_stream_is_passed_byte_for_byte(proxy: Proxy) -> None:
    proxy.backend.speaks.add("responses")
    body = {"model": "fake", "input": "one two", "stream": True}
    async with proxy.http.post(proxy.backend.url + "/v1/responses", json=body) as response:
        direct = await response.read()
    async with proxy.http.post("/v1/responses", json=body) as response:
        got, ours = await response.read(), response.headers["x-rl-completion-id"]
    assert got == direct.replace(b"resp_7", ours.encode())


async def test_what_only_we_asked_for_never_fails_a_request(proxy: Proxy, client: AsyncOpenAI, way: str) -> None:
    """As vLLM does for gpt-oss, which has no log-probs over Responses."""
    proxy.backend.mood = "refuse-logprobs"
    answer = await client.responses.create(model="fake", input="x")
    assert answer.output_text == "You said: x "
    _, end = await captured(proxy, answer.id)
    assert not end.exact and end.status == "done"
