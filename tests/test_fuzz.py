"""Broken answers and broken requests by the thousand: nothing of ours ever becomes a broken stream.

1,000 in the fast suite, most of them without sockets; `make fuzz` runs 10,000 (RLPROXY_FUZZ=10). RLPROXY_FUZZ_SEED=n
runs one seed of each kind alone.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.dialects import DIALECTS, Dialect, dialect_at
from scripts.fakes.recorded import http_answer
from scripts.fakes.socketless import Answering, Socketless
from scripts.fuzz.mutating import mutated, on_the_wire, pieces
from scripts.golden.corpus import Answer, Case, recordings, written
from store.records import Completion
from tests.harness.polling import Polls
from tests.harness.replaying import Replaying

TIMES = int(os.environ.get("RLPROXY_FUZZ", "1"))
PASSED, TRANSLATED, REQUESTS, WIRED, HALF = 400 * TIMES, 250 * TIMES, 200 * TIMES, 130 * TIMES, 20 * TIMES
BREAKS = 100 * TIMES
AT_ONCE = 16  # they share a commit
CASES = [c for c in (*recordings(), *written()) if c.best("stream").status == c.best("whole").status == 200]
# Those that carry token ids. No answer in Ollama's own format: a vllm home asks for chat completions and reads those.
EXACT = [c for c in CASES if ("asked", "stream") in c.answers and not c.dialect.startswith("ollama")]
PLAIN = [c for c in CASES if ("plain", "whole") in c.answers and c.server not in ("vllm", "vllm-reasoning", "builtin")]
CHATS = [c for c in CASES if c.dialect == "chat"]
OURS = ("logprobs", "top_logprobs", "token_ids", "prompt_token_ids", "input_messages", "output_messages")


def seeds(count: int) -> Iterator[int]:
    only = os.environ.get("RLPROXY_FUZZ_SEED")
    return iter([int(only)] if only else range(count))


async def every(count: int, one: Any) -> None:
    """`one(seed)` for each; the seed that failed is in the message."""
    todo = seeds(count)

    async def some() -> None:
        for seed in todo:
            try:
                await one(seed)
            except Exception as error:
                raise AssertionError(f"RLPROXY_FUZZ_SEED={seed}: {error!r}") from error

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(some())


async def socketless(home: Path, kind: str) -> AsyncIterator[Socketless]:
    proxy = Socketless(home, kind)
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
async def openai(tmp_path: Path) -> AsyncIterator[Socketless]:
    async for proxy in socketless(tmp_path / "openai", "openai"):
        yield proxy


@pytest.fixture
async def vllm(tmp_path: Path) -> AsyncIterator[Socketless]:
    async for proxy in socketless(tmp_path / "vllm", "vllm"):
        yield proxy


@pytest.fixture(scope="module")
def wired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replaying]:
    with pytest.MonkeyPatch.context() as patch:  # nothing here is worth waiting for
        patch.setattr("proxy.relay.exchange.KEEPALIVE_S", 0.2)
        with Replaying(tmp_path_factory.mktemp("fuzz"), "openai") as proxy:
            yield proxy


async def ended(proxy: Socketless, id: str) -> Completion | None:
    """The row, when what is stored in the background has been."""
    async for _ in Polls():
        row = await proxy.store.completions.get(id)
        if row is None or row.status != "pending":
            return row
    return row


# --- what must hold


def named(answer: Answer, case: Case, id: str) -> bytes:
    """The answer as if the backend had chosen our id: then a client gets every byte, but for what is ours."""
    return answer.body.replace(answer.id(case.dialect), id.encode())


def same(got: bytes, sent: bytes) -> bool:
    """Byte-equal, event by event; one that differs says the same but for what is ours to change."""
    if got == sent:
        return True
    ours, theirs = _events(got), _events(sent)
    return len(ours) == len(theirs) and all(
        a == b or _meaning(a) == _meaning(b) for a, b in zip(ours, theirs, strict=True)
    )


def _events(raw: bytes) -> list[bytes]:
    return [line for line in raw.replace(b"\r", b"\n").split(b"\n") if line]


def _meaning(event: bytes) -> Any:
    at = event.find(b"{")
    try:
        return _without(json.loads(event[at:].decode("utf-8", "replace")), top=True)
    except (ValueError, RecursionError):
        return event


def _without(value: Any, *, top: bool = False) -> Any:
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if k not in OURS and not (top and k in ("id", "model"))}
        return {k: _without(v, top=top and k in ("response", "message")) for k, v in kept.items()}
    return [_without(one) for one in value] if isinstance(value, list) else repr(value)


def check_error(case: Case, body: bytes) -> None:
    """An error of ours or the backend's, in the form of the dialect."""
    said = json.loads(body)
    if case.dialect.startswith("ollama"):
        assert isinstance(said["error"], str), said
    elif case.dialect == "messages":
        assert said["type"] == "error" and isinstance(said["error"]["message"], str), said
    else:
        assert isinstance(said["error"]["message"], str), said


def check_got(case: Case, kind: str, status: int, got: bytes, sent: bytes) -> None:
    """All that the backend sent and, where that is no whole answer, an error event after it."""
    if status != 200:
        check_error(case, got)
    elif kind == "whole":
        assert got == sent or _meaning(got) == _meaning(sent) or same(got, sent)  # or events and lines, unasked for
    elif not same(got, sent):
        dialect = dialect_at(case.route)
        assert dialect is not None
        end = (
            b'{"error"'
            if dialect.framing == "ndjson"
            else b"event: error"
            if case.dialect in _NAMED
            else b'data: {"error"'
        )
        at = got.rindex(end)
        lines = sent.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        blank = b"\n" if dialect.framing == "ndjson" else b"\n\n"
        whole = lines[: lines.rfind(blank) + 1]  # half an event is not put before our own words
        assert same(got[:at], sent) or same(got[:at], whole), "neither the backend's bytes nor those and an error"
        assert b"broke off" in got[at:], got[at:]


_NAMED = ("responses", "messages")


def check_row(row: Completion | None, sent: bytes) -> None:
    """Stored, ended, and exact only where ids and log-probs are one for one and all of the stream was understood."""
    assert row is not None and row.status != "pending" and row.end is not None
    if row.end.exact:
        assert row.end.token_ids is not None and row.end.logprobs is not None
        assert len(row.end.token_ids) == len(row.end.logprobs) and row.end.prompt_token_ids is not None
        if row.new.streamed:
            for line in sent.replace(b"\r\n", b"\n").split(b"data: [DONE]")[0].split(b"\n\n"):
                if line.startswith(b"data:") and line[5:].strip() and line.count(b"\n") == 0 and b"\r" not in line:
                    json.loads(line[5:])  # what was not understood makes it inexact


# --- what it has found


CHUNK = b'data: {"id": "c", "model": "golden", "choices": [{"index": 0, "delta": {"content": "Hi"}, %s}]}\n\n'
FOUND = {
    "an event that is no object": (b'data: "id": 7}\n\n', "could not be understood"),
    "JSON that is none": (b'data: {"id": "c", "logprobs"\x1anull,"finish_reason":"stop"}\n\n', "could not be"),
    "an index that is no number": (CHUNK.replace(b"0", b'"a"') % b'"finish_reason": null', None),
    "nested too deeply": (b'data: {"id": "c", "x": ' + b"[" * 3000 + b"]" * 3000 + b"}\n\n", "could not be understood"),
    "a finish reason that is none": (CHUNK % b'"finish_reason": {"a": 1}', None),
    "a usage that no store takes": (
        b'data: {"id": "c", "choices": [], "usage": {"prompt_tokens": 99999999999999999999999}}\n\n', None,
    ),
    "half an emoji": (CHUNK.replace(b"Hi", b"\\ud83d") % b'"finish_reason": null', None),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
async def test_what_the_fuzz_found(openai: Socketless, name: str) -> None:
    """The client gets it as it was sent, and the end after it; the completion is stored and says what is wrong."""
    broken, reason = FOUND[name]
    sent = CHUNK % b'"finish_reason": null' + broken + CHUNK % b'"finish_reason": "stop"' + b"data: [DONE]\n\n"
    request = {"model": "golden", "messages": [{"role": "user", "content": "x"}], "stream": True}
    backend = Answering(200, "text/event-stream", [sent])
    _, got = await openai.ask(
        "/v1/chat/completions", json.dumps(request).encode(), backend, **{"x-rl-completion-id": "c"}
    )
    assert got == sent
    row = await openai.store.completions.get("c")
    assert row is not None and row.end is not None and row.status in ("done", "partial", "error") and not row.end.exact
    assert reason is None or reason in (row.end.inexact_reason or "")


@pytest.mark.parametrize("kind", ["stream", "whole"])
@pytest.mark.parametrize("bad", [b"zz\r\nab\r\n", b"\r\n", b"-1\r\n\r\n"])
def test_a_bad_chunk_ends_in_an_error_and_not_in_silence(wired: Replaying, kind: str, bad: bytes) -> None:
    case = next(c for c in PLAIN if c.id == "llama.cpp-chat-text")
    answer = case.best(kind)
    headers = {"content-type": answer.headers["content-type"], "transfer-encoding": "chunked"}
    sound = http_answer(200, headers, [answer.body[:50], answer.body[50:]])
    got = wired.run(wired.ask(case.route, {**case.request, "stream": kind == "stream"}, [*sound[:2], bad, *sound[2:]]))
    assert b'"error"' in got.body


@pytest.mark.parametrize("bad", [b"zz\r\nab\r\n", b"\r\n", b"-1\r\n\r\n"])
def test_a_bad_chunk_of_what_passes_through_ends_it(wired: Replaying, bad: bytes) -> None:
    """There is no place for words of ours in it: it breaks off, as the backend's own connection would have."""
    sound = http_answer(200, {"content-type": "text/plain", "transfer-encoding": "chunked"}, [b"one", b"two"])

    async def ask() -> None:
        async with asyncio.timeout(20):
            await wired.ask("/v1/unknown", {}, [*sound[:2], bad, *sound[2:]])

    with pytest.raises(aiohttp.ClientPayloadError):
        wired.run(ask())
    alive(wired, PLAIN[0])


@pytest.mark.parametrize("head", [b"HTTP/9.9 nonsense\r\n\r\n", b"\x00\xff", b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n"])
@pytest.mark.parametrize("route", ["/v1/unknown", "/v1/chat/completions", "/v1/messages/count_tokens"])
def test_an_answer_that_is_no_http(wired: Replaying, route: str, head: bytes) -> None:
    got = wired.run(wired.ask(route, {"model": "m", "messages": [{"role": "user", "content": "x"}]}, [head]))
    assert got.status in (502, 503) and b"is a bug" not in got.body


async def test_half_an_emoji_in_a_request(openai: Socketless) -> None:
    """JavaScript sends it where an agent has cut a text; the backend gets it as it is."""
    request = b'{"model": "golden", "messages": [{"role": "user", "content": "cut \\ud83d"}]}'
    case = next(c for c in PLAIN if c.id == "llama.cpp-chat-text")
    backend = Answering(200, "application/json", [case.best("whole").body])
    response, _ = await openai.ask("/v1/chat/completions", request, backend)
    assert response.status == 200
    row = await openai.store.completions.get(response.headers["x-rl-completion-id"])
    assert row is not None and b"\xef\xbf\xbd" in row.new.prompt[0].body


async def test_an_agents_tool_call_that_is_none(openai: Socketless) -> None:
    """What a call's function is, is the backend's affair; here it only has to be kept."""
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"function": "look"}]}]
    case = next(c for c in PLAIN if c.id == "llama.cpp-chat-text")
    backend = Answering(200, "application/json", [case.best("whole").body])
    request = json.dumps({"model": "golden", "messages": turns}).encode()
    response, _ = await openai.ask("/v1/chat/completions", request, backend)
    row = await openai.store.completions.get(response.headers["x-rl-completion-id"])
    assert response.status == 200 and row is not None and row.status == "done"


@pytest.mark.parametrize("dialect", [d for d in DIALECTS if d.name != "chat"], ids=lambda d: d.name)
async def test_a_usage_that_counts_nothing_spoils_no_translation(openai: Socketless, dialect: Dialect) -> None:
    openai.relay.parts.formats.lacks(dialect.name)
    counted = b'data: {"id": "c", "choices": [], "usage": 1.5}\n\n'
    sent = CHUNK % b'"finish_reason": null' + counted + CHUNK % b'"finish_reason": "stop"' + b"data: [DONE]\n\n"
    said = {"prompt": "x", "input": "x", "messages": [{"role": "user", "content": "x"}]}
    carriers = {key: said[key] for key in dialect.carriers if key in said}
    request = json.dumps({"model": "golden", "max_tokens": 9, "stream": True, **carriers}).encode()
    _, got = await openai.ask(dialect.paths[0], request, Answering(200, "text/event-stream", [sent]))
    assert got.count(b"Hi") >= 2 and b"error" not in got.replace(b'"error":null', b""), got


# --- without sockets


async def passed(proxy: Socketless, cases: list[Case], seed: int) -> None:
    dice = random.Random(seed)
    case, kind, id = dice.choice(cases), dice.choice(("stream", "stream", "stream", "whole")), f"rl-fuzz-{seed}"
    answer = case.best(kind)
    sent = mutated(dice, named(answer, case, id))
    backend = Answering(200, answer.headers["content-type"], pieces(dice, sent))
    request = json.dumps({**case.request, "stream": kind == "stream"}).encode()
    response, got = await proxy.ask(case.route, request, backend, **{"x-rl-completion-id": id})
    check_got(case, kind, response.status, got, sent)
    check_row(await ended(proxy, id), sent)


async def test_broken_answers_are_passed_on_as_they_are(openai: Socketless, vllm: Socketless) -> None:
    await every(PASSED // 2, lambda seed: passed(openai, PLAIN, seed))
    await every(PASSED // 2, lambda seed: passed(vllm, EXACT, seed))


async def test_broken_answers_are_translated_or_refused(openai: Socketless) -> None:
    """The client gets a sound stream or body of its own format, whatever the backend sends."""
    others = [c for c in CASES if c.dialect != "chat"]
    for dialect in DIALECTS[1:]:
        openai.relay.parts.formats.lacks(dialect.name)

    async def one(seed: int) -> None:
        dice = random.Random(seed)
        asked, case, id = dice.choice(others), dice.choice(CHATS), f"rl-fuzz-{seed}"
        kind = dice.choice(("stream", "stream", "whole"))
        answer = case.best(kind)
        sent = mutated(dice, answer.body)
        backend = Answering(200, answer.headers["content-type"], pieces(dice, sent))
        request = json.dumps({**asked.request, "stream": kind == "stream"}).encode()
        response, got = await openai.ask(asked.route, request, backend, **{"x-rl-completion-id": id})
        if response.status != 200:
            check_error(asked, got)
        elif kind == "whole":
            assert isinstance(json.loads(got), dict)
        elif asked.dialect.startswith("ollama"):
            assert got.endswith(b"\n") and all(isinstance(json.loads(line), dict) for line in got.splitlines())
        else:
            assert got.endswith(b"\n\n")
            for event in got[:-2].split(b"\n\n"):
                data = event.split(b"data: ", 1)[1]
                assert data == b"[DONE]" or isinstance(json.loads(data), dict)
        check_row(await ended(openai, id), b"")

    await every(TRANSLATED, one)


async def test_broken_requests_are_answered_or_refused(openai: Socketless) -> None:
    async def one(seed: int) -> None:
        dice = random.Random(seed)
        case, kind = dice.choice(PLAIN), dice.choice(("stream", "whole"))
        answer = case.best(kind)
        backend = Answering(200, answer.headers["content-type"], [answer.body])
        request = mutated(dice, json.dumps({**case.request, "stream": kind == "stream"}).encode())
        headers = {}
        if dice.random() < 0.2:
            headers["content-encoding"] = dice.choice(("gzip", "deflate", "br", "identity", "nonsense"))
            if dice.random() < 0.5:
                request = mutated(dice, gzip.compress(request, mtime=0))
        response, got = await openai.ask(case.route, request, backend, **headers)
        if response.status != 200:
            assert response.status < 500, got
            check_error(case, got)

    await every(REQUESTS, one)


# --- through real sockets


def alive(proxy: Replaying, case: Case) -> None:
    answer = case.best("stream")
    sound = http_answer(200, answer.headers, answer.pieces)
    got = proxy.run(proxy.ask(case.route, {**case.request, "stream": True}, sound))
    assert got.status == 200 and len(_events(got.body)) == len(_events(answer.body))


def test_broken_http_of_a_backend(wired: Replaying) -> None:
    """Lengths that are not true, bad chunks, packed garbage, closes: each ends in a whole answer of ours."""
    for seed in seeds(WIRED):
        dice = random.Random(seed)
        case, kind = dice.choice(PLAIN), dice.choice(("stream", "stream", "whole"))
        wire = on_the_wire(dice, case, kind)
        try:
            got = wired.run(wired.ask(case.route, {**case.request, "stream": kind == "stream"}, wire.parts))
            assert got.id or got.status >= 500, got
            row = wired.run(wired.captured(got.id)) if got.status == 200 else None
            if got.status >= 500 and not wire.intact:
                check_error(case, got.body)
            if wire.intact and got.status == 200 and kind == "whole":
                assert same(got.body, wire.body)
            assert row is None or row.end is not None
        except aiohttp.ClientPayloadError as error:
            if wire.intact or kind != "whole":  # else lines of a plain answer were cut: their client sees the break
                raise AssertionError(f"RLPROXY_FUZZ_SEED={seed}: {error!r}") from error
        except Exception as error:
            raise AssertionError(f"RLPROXY_FUZZ_SEED={seed}: {error!r}") from error
        if seed % 25 == 0:
            alive(wired, dice.choice(PLAIN))


def test_all_that_came_before_a_break_arrives(wired: Replaying) -> None:
    """Streams, sound and mutated, cut at any byte of their chunks or of their length, closed or reset at once."""
    for seed in seeds(BREAKS):
        dice = random.Random(seed)
        case, id = dice.choice(PLAIN), f"rl-break-{seed}"
        answer = case.best("stream")
        body = named(answer, case, id)
        body = mutated(dice, body) if dice.random() < 0.5 else body
        came = body[: dice.randrange(len(body) + 1)]
        headers = {"content-type": answer.headers["content-type"]}
        if dice.random() < 0.5:
            headers["content-length"] = str(len(body) + 1)
            wire = http_answer(200, headers, pieces(dice, came))
        else:
            headers["transfer-encoding"] = "chunked"
            wire = http_answer(200, headers, pieces(dice, came))[:-1]
            if (size := len(body) - len(came)) and dice.random() < 0.5:  # in the middle of a chunk
                wire += [b"%x\r\n%s" % (size + 1, body[len(came) :])]
                came = body
        parts = [b"".join(wire)] if dice.random() < 0.5 else wire
        wired.upstream.resets = dice.random() < 0.5
        try:
            request = {**case.request, "stream": True}
            got = wired.run(wired.ask(case.route, request, parts, more={"x-rl-completion-id": id}))
            check_got(case, "stream", got.status, got.body, came)
            check_row(wired.run(wired.captured(id)), came)
        except Exception as error:
            raise AssertionError(f"RLPROXY_FUZZ_SEED={seed}: {error!r}") from error
        finally:
            wired.upstream.resets = False
    alive(wired, PLAIN[0])


def test_requests_that_are_cut_or_lie_about_their_length(wired: Replaying) -> None:
    async def send(seed: int) -> None:
        dice = random.Random(seed)
        case = dice.choice(PLAIN)
        body = json.dumps({**case.request, "stream": True}).encode()
        length = dice.choice((len(body) + 9, len(body) - 9, -1, 10**12))
        port = int(str(wired.url).rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        fields = f"host: x\r\ncontent-type: application/json\r\ncontent-length: {length}"
        head = f"POST {case.route} HTTP/1.1\r\n{fields}\r\n\r\n"
        writer.write(head.encode() + body[: dice.randrange(len(body) + 1)])
        await writer.drain()
        if dice.random() < 0.5:
            writer.write_eof()
            await reader.read()
        writer.close()

    for seed in seeds(HALF):
        wired.run(send(seed))
    alive(wired, PLAIN[0])
