"""The built-in backend over HTTP: through the official SDK, as vLLM answers, and as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import openai
import pytest
from aiohttp.test_utils import TestClient, TestServer

from scripts.harness.lora import random_adapter
from tests.trainer.serving import QUESTIONS, Served, until
from trainer.idle_cores import openmp_environment
from trainer.serve.http_api import make_app

pytestmark = pytest.mark.model
ROOT = Path(__file__).parents[3]


@pytest.fixture
async def client(served: Served):
    app = make_app(served.engine, name="smollm2", weights=served.weights)
    # TestServer cancels the handler of a client that hangs up, as trainer.serve does.
    async with TestClient(TestServer(app)) as client:
        yield client


@pytest.fixture
async def sdk(client):
    async with openai.AsyncOpenAI(base_url=str(client.make_url("/v1")), api_key="none", max_retries=0) as sdk:
        yield sdk


def asked(question=QUESTIONS[0], **fields):
    return {"model": "smollm2", "temperature": 0, "messages": [{"role": "user", "content": question}], **fields}


async def post(client, path, body):
    async with client.post(path, json=body) as response:
        text = await response.text()
        return response.status, json.loads(text) if text.startswith("{") else text


async def chunks(client, body):
    async with client.post("/v1/chat/completions", json=body) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        events = [line.removeprefix(b"data: ").strip() async for line in response.content if line.strip()]
    assert events[-1] == b"[DONE]"
    return [json.loads(event) for event in events[:-1]]


async def idle(served):
    await until(lambda: served.engine.load == (0, 0))


# --- through the official SDK ---


async def test_the_sdk_gets_a_whole_answer(sdk, served):
    out = await sdk.chat.completions.create(**asked(logprobs=True, top_logprobs=3))
    assert out.id.startswith("chatcmpl-")
    assert (out.object, out.model) == ("chat.completion", "smollm2")
    (choice,) = out.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == "The capital of France is Paris."
    assert choice.finish_reason == "stop"
    assert out.usage.prompt_tokens == len(served.prompt(QUESTIONS[0]))
    assert out.usage.completion_tokens == len(choice.logprobs.content) == 8
    for entry in choice.logprobs.content:
        assert entry.bytes == list(entry.token.encode())
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token


async def test_the_sdk_gets_the_same_answer_streamed(sdk):
    text, finish, usage = "", None, None
    stream = await sdk.chat.completions.create(**asked(), stream=True, stream_options={"include_usage": True})
    async for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
        usage = chunk.usage or usage
    assert (text, finish) == ("The capital of France is Paris.", "stop")
    assert usage.completion_tokens == 8


async def test_the_sdk_raises_what_the_error_is(sdk):
    with pytest.raises(openai.NotFoundError, match="`gpt-9` does not exist; there is `"):
        await sdk.chat.completions.create(**asked() | {"model": "gpt-9"})
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.chat.completions.create(**asked(top_p=7))
    assert caught.value.param == "top_p"


# --- the wire, as vLLM's ---


async def test_a_stream_carries_the_ids_of_its_own_tokens(client, served):
    body = asked(QUESTIONS[1], max_tokens=9, n=2, temperature=1.0, seed=3, logprobs=True, return_token_ids=True)
    status, whole = await post(client, "/v1/chat/completions", body)
    assert status == 200
    events = await chunks(client, {**body, "stream": True})
    opening = events[0]
    assert opening["prompt_token_ids"] == whole["prompt_token_ids"] == list(served.prompt(QUESTIONS[1]))
    assert [choice["delta"] for choice in opening["choices"]] == [
        {"role": "assistant", "content": "", "refusal": None}
    ] * 2
    assert not any("prompt_token_ids" in event for event in events[1:])
    assert len({event["id"] for event in events}) == 1
    for choice in whole["choices"]:
        own = [c for event in events[1:] for c in event["choices"] if c["index"] == choice["index"]]
        assert [c["token_ids"] for c in own] == [[i] for i in choice["token_ids"]]
        assert "".join(c["delta"]["content"] for c in own) == choice["message"]["content"]
        logprobs = [c["logprobs"]["content"][0]["logprob"] for c in own]
        assert logprobs == pytest.approx([e["logprob"] for e in choice["logprobs"]["content"]], abs=1e-4)
        assert [c["finish_reason"] for c in own] == [None] * (len(own) - 1) + [choice["finish_reason"]]


async def test_without_asking_there_are_no_ids_and_no_log_probs(client):
    _, body = await post(client, "/v1/chat/completions", asked(max_tokens=2))
    assert "prompt_token_ids" not in body
    assert "token_ids" not in body["choices"][0]
    assert body["choices"][0]["logprobs"] is None
    assert body["choices"][0]["finish_reason"] == "length"


async def test_a_stop_string_is_named(client):
    _, body = await post(client, "/v1/chat/completions", asked(stop=" France", return_token_ids=True))
    (choice,) = body["choices"]
    assert choice["message"]["content"] == "The capital of"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", " France")
    assert len(choice["token_ids"]) == 4


async def test_parts_tools_and_old_tool_calls_are_understood(client, served):
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "What is the"}, {"type": "text", "text": "time?"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
    ]
    tool = {"type": "function", "function": {"name": "clock", "parameters": {}}}
    body = asked(max_tokens=1, tools=[tool], return_token_ids=True) | {"messages": messages}
    status, out = await post(client, "/v1/chat/completions", body)
    assert status == 200
    prompt = served.engine.tokenizer.decode(out["prompt_token_ids"])
    assert "user\nWhat is the\ntime?<|im_end|>" in prompt
    assert prompt.endswith("tool\nnoon<|im_end|>\n<|im_start|>assistant\n")


async def test_tokens_are_counted_as_an_answer_would_read_them(client, served):
    body = asked(max_tokens=1, tools=[{"type": "function", "function": {"name": "clock", "parameters": {}}}])
    _, answer = await post(client, "/v1/chat/completions", body | {"return_token_ids": True})
    status, counted = await post(client, "/tokenize", {"model": "smollm2", "messages": body["messages"]})
    assert status == 200 and counted["tokens"] == answer["prompt_token_ids"]
    assert counted["count"] == answer["usage"]["prompt_tokens"] == len(counted["tokens"])
    assert counted["max_model_len"] == served.engine.context
    assert (await post(client, "/tokenize", {"model": "other", "messages": body["messages"]}))[0] == 404
    assert (await post(client, "/tokenize", {"messages": []}))[0] == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": "hello"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "no role"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": "x " * 9000}]}, "messages"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 9}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"n": 9}, "n"),
        ({"stop": ["ok", ""]}, "stop"),
        ({"stop": 3}, "stop"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"stop": "a" * 1001}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"seed": 1.5}, "seed"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs"),
    ],
)
async def test_a_bad_field_is_named(client, fields, param):
    status, body = await post(client, "/v1/chat/completions", asked() | fields)
    assert status == 400
    assert body["error"]["param"] == param
    assert body["error"]["type"] == "BadRequestError"
    assert isinstance(body["error"]["code"], str | None)
    assert body["error"]["message"]


async def test_fields_that_change_nothing_are_accepted(client):
    neutral = {
        "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "response_format": {"type": "text"},
        "tool_choice": "auto", "user": "me", "store": False, "stop": None, "tools": None, "n": None,
    }  # fmt: skip
    status, _ = await post(client, "/v1/chat/completions", asked(max_tokens=1) | neutral)
    assert status == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"temperature": NaN, "messages": [{}]}'])
async def test_what_is_no_json_object_is_refused(client, body):
    headers = {"Content-Type": "application/json"}
    for path in ("/v1/chat/completions", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        async with client.post(path, data=body, headers=headers) as response:
            assert response.status == 400
            assert isinstance((await response.json())["error"]["code"], str | None)


async def test_other_routes_methods_and_types_get_the_same_error_shape(client):
    async with client.get("/v1/nothing") as response:
        assert (response.status, (await response.json())["error"]["type"]) == (404, "NotFoundError")
    async with client.get("/v1/chat/completions") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (405, None)
    async with client.post("/v1/chat/completions", data="{}", headers={"Content-Type": "text/plain"}) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (415, None)


async def test_a_client_that_hangs_up_frees_its_rows(client, served):
    body = asked(QUESTIONS[1], n=2, max_tokens=4000, ignore_eos=True)
    async with client.post("/v1/chat/completions", json={**body, "stream": True}) as response:
        await response.content.readline()
    await idle(served)
    with pytest.raises(asyncio.TimeoutError):
        await post_within(client, body, 0.5)
    await idle(served)


async def post_within(client, body, seconds):
    async with client.post("/v1/chat/completions", json=body, timeout=aiohttp.ClientTimeout(seconds)) as response:
        await response.read()


async def test_a_key_covers_all_but_health(served):
    app = make_app(served.engine, name="smollm2", weights=served.weights, key="sesame")
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/health")).status == 200
        assert (await client.get("/v1/models")).status == 401
        assert (await client.post("/v1/load_lora_adapter", json={})).status == 401
        assert (await client.get("/v1/models", headers={"Authorization": "Bearer sesame"})).status == 200


# --- adapters ---


async def test_adapters_come_go_and_are_chosen_by_name(client, served):
    one = str(served.adapters[0].path)
    assert await post(client, "/v1/load_lora_adapter", {"lora_name": "smollm2@v1", "lora_path": one}) == (
        200,
        "Success: LoRA adapter 'smollm2@v1' added successfully.",
    )
    async with client.get("/v1/models") as response:
        models = (await response.json())["data"]
    assert [(m["id"], m["parent"], m["root"]) for m in models] == [
        ("smollm2", None, str(served.weights)),
        ("smollm2@v1", "smollm2", one),
    ]
    bodies = [asked(QUESTIONS[1], max_tokens=12) | {"model": name} for name in ("smollm2", "smollm2@v1")]
    (_, base), (_, worn) = await asyncio.gather(*(post(client, "/v1/chat/completions", body) for body in bodies))
    assert worn["model"] == "smollm2@v1"
    assert base["choices"][0]["message"]["content"] != worn["choices"][0]["message"]["content"]
    assert (await post(client, "/v1/unload_lora_adapter", {"lora_name": "smollm2@v1"}))[0] == 200
    assert (await post(client, "/v1/chat/completions", bodies[1]))[0] == 404


async def test_a_running_stream_ends_on_the_weights_it_began_with(client, served):
    load = {"lora_name": "v", "lora_path": str(served.adapters[0].path)}
    body = asked(QUESTIONS[1], max_tokens=30, ignore_eos=True, stream=True) | {"model": "v"}
    assert (await post(client, "/v1/load_lora_adapter", load))[0] == 200
    alone = await chunks(client, body)
    await idle(served)
    running = asyncio.create_task(chunks(client, body))
    await until(lambda: served.engine.load[0] > 0)
    assert (await post(client, "/v1/unload_lora_adapter", {"lora_name": "v"}))[0] == 200
    load["lora_path"] = str(served.adapters[1].path)
    assert (await post(client, "/v1/load_lora_adapter", load))[0] == 200
    assert not running.done(), "all of this happened while it ran"
    assert [e["choices"] for e in await running] == [e["choices"] for e in alone]
    assert [e["choices"] for e in await chunks(client, body)] != [e["choices"] for e in alone]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"lora_name": "x", "lora_path": "/nowhere"}, 404, "/nowhere"),
        ({"lora_name": "x", "lora_path": str(ROOT)}, 400, "adapter_config.json is missing"),
        ({"lora_name": "x"}, 400, "lora_path"),
        ({"lora_path": "/nowhere"}, 400, "lora_name"),
        ({"lora_name": 3, "lora_path": "/nowhere"}, 400, "lora_name"),
        ({"lora_name": "smollm2", "lora_path": "/nowhere"}, 400, "already been loaded"),
    ],
)
async def test_an_adapter_that_cannot_be_loaded_says_why(client, body, status, says):
    got, answer = await post(client, "/v1/load_lora_adapter", body)
    assert got == status
    assert says in answer["error"]["message"]


async def test_a_name_is_loaded_once_even_when_asked_twice_at_once(client, served):
    load = {"lora_name": "v", "lora_path": str(served.adapters[0].path)}
    answers = await asyncio.gather(*(post(client, "/v1/load_lora_adapter", load) for _ in range(3)))
    assert sorted(status for status, _ in answers) == [200, 400, 400]
    assert (await post(client, "/v1/unload_lora_adapter", {"lora_name": "w"}))[0] == 404


# --- as a process ---


@contextlib.contextmanager
def process(weights, *more):
    command = [sys.executable, "-m", "trainer.serve", "--weights", str(weights), "--name", "m", "--threads", "1", *more]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as p:
        try:
            yield p
        finally:
            p.kill()


async def told_ready(server):
    """The line that says so; those before it tell how far the start is."""
    while (told := json.loads(await asyncio.to_thread(server.stdout.readline)))["event"] != "ready":
        pass
    return told


async def test_a_process_answers_then_ends_when_its_stdin_closes(weights, tmp_path):
    adapter = random_adapter(weights, tmp_path / "a", seed=1, r=2)
    with process(weights, "--watch-stdin") as server:
        ready = await told_ready(server)
        assert ready == {
            "event": "ready",
            "url": ready["url"],
            "model": "m",
            "weights": str(weights),
            "why": "the folder that was named",
        }
        if sys.platform == "linux":
            environment = Path(f"/proc/{server.pid}/environ").read_bytes().decode().split("\0")
            assert {f"{k}={v}" for k, v in openmp_environment(1).items()} <= set(environment)
        async with aiohttp.ClientSession(ready["url"]) as client:
            load = {"lora_name": "v", "lora_path": str(adapter)}
            assert (await post(client, "/v1/load_lora_adapter", load))[0] == 200
            body = asked(max_tokens=2) | {"model": "v"}
            assert (await post(client, "/v1/chat/completions", body))[0] == 200
            endless = asked(ignore_eos=True) | {"model": "v"}
            running = asyncio.create_task(post(client, "/v1/chat/completions", endless))
            await asyncio.sleep(0.3)
            server.stdin.close()
            assert await asyncio.to_thread(server.wait, 10) == 0
            with contextlib.suppress(aiohttp.ClientError):
                assert (await running)[0] == 503
        assert server.stdout.read() == b""
        assert server.stderr.read() == b""


async def test_sigterm_lets_a_running_reply_finish(weights):
    with process(weights) as server:
        ready = await told_ready(server)
        async with aiohttp.ClientSession(ready["url"]) as client:
            body = asked(QUESTIONS[1], max_tokens=20, ignore_eos=True) | {"model": "m"}
            running = asyncio.create_task(post(client, "/v1/chat/completions", body))
            await asyncio.sleep(0.3)
            server.send_signal(signal.SIGTERM)
            status, answer = await running
            assert (status, answer["usage"]["completion_tokens"]) == (200, 20)
            assert await asyncio.to_thread(server.wait, 10) == 0


@pytest.mark.parametrize(
    ("more", "status", "says"),
    [
        (("--host", "0.0.0.0"), 2, "not loopback"),
        (("--weights", "/nowhere"), 1, "There is no folder /nowhere"),
    ],
)
def test_what_cannot_start_says_why(weights, more, status, says):
    with process(weights, *more) as server:
        out, error = server.communicate(timeout=60)
        assert (server.returncode, out) == (status, b"")
        assert says in error.decode()
        assert error.count(b"\n") == 1
