"""What scripts/bench/relay measures with: its upstream, its client, its bare relay; and what it makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from scripts.bench.relay.load import Load
from scripts.bench.relay.measure import BOUNDS, Client, Shape, memory, one_round, shapes, summary
from scripts.bench.relay.targets import bare, stop
from scripts.bench.relay.upstream import WORDS, Answers

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
async def upstream() -> AsyncIterator[str]:
    server = await asyncio.get_running_loop().create_server(Answers, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def asked(url: str, shape: Shape) -> dict[str, Any]:
    at = urlsplit(url)
    where = {"host": at.hostname, "port": at.port, "path": "/v1/chat/completions", "model": "m", "headers": {}}
    return await Load(shape.order(0, 0.0) | where | {"at_least": 3 * shape.at_once}).run()


@pytest.mark.parametrize("shape", [s for s in shapes() if s.at_once in (1, 16)], ids=lambda s: s.name)
async def test_every_shape_is_asked_and_answered(upstream: str, shape: Shape) -> None:
    found = await asked(upstream, shape)
    assert found["answers"] >= 3 * shape.at_once and found["failed"] == 0, found["errors"]
    assert found["latency_ms"]["p50"] >= found["first_ms"]["p50"] > 0
    if shape.gap_ms:
        assert found["latency_ms"]["p50"] >= (shape.chunks - 1) * shape.gap_ms


async def test_the_upstream_says_what_vllm_says_to_those_who_ask(upstream: str) -> None:
    text = "[[3 chunks 0 ms]] " + "word " * 1000
    body = {"model": "m", "stream": True, "return_token_ids": True, "messages": [{"role": "user", "content": text}]}
    async with aiohttp.ClientSession() as http:
        packed = json.dumps(body, separators=(",", ":"))
        async with http.post(f"{upstream}/v1/chat/completions", data=packed) as response:
            raw = (await response.text()).split("\n\n")
        assert raw[-2:] == ["data: [DONE]", ""]
        events = [json.loads(event.removeprefix("data: ")) for event in raw[:-2]]
        assert len(events) == 4 and len(events[0]["prompt_token_ids"]) == 1024
        assert [len(e["choices"][0]["token_ids"]) for e in events] == [1, 1, 1, 0]
        plain = json.dumps(body | {"stream": False}, separators=(",", ":"))
        async with http.post(f"{upstream}/v1/chat/completions", data=plain) as response:
            choice = (await response.json())["choices"][0]
        assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == WORDS


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 500 Oh\r\ncontent-length: 2\r\n\r\nno",
        b'HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"half": ',
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        b"9\r\ndata: {}\n\r\n0\r\n\r\n",
        b"",
    ],
)
async def test_a_wrong_answer_is_none(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        found = await asked(url, Shape("x", "stream", 500, 1, 1))
    assert found["answers"] == 0 and found["failed"] > 0 and found["latency_ms"] is None


async def test_the_upstream_counts_what_it_was_asked(upstream: str) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 40_000}]})
    async with aiohttp.ClientSession() as http, http.post(f"{upstream}/v1/chat/completions", data=body) as response:
        usage = (await response.json())["usage"]
    assert 40_000 / 5 < usage["prompt_tokens"] < 40_000 / 3


async def test_the_bare_relay_passes_it_on(upstream: str, tmp_path: Path) -> None:
    target = await asyncio.to_thread(bare, tmp_path, upstream)
    try:
        for kind in ("plain", "stream"):
            found = await asked(target.url, Shape("x", kind, 2000, 3, 4))
            assert found["answers"] >= 12 and found["failed"] == 0, found["errors"]
        assert target.rss_mb() > 1 and target.cpu_s() > 0
    finally:
        await asyncio.to_thread(stop, target.process)


async def test_one_that_has_ended_is_left_out_of_the_rest(upstream: str, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    targets = [await asyncio.to_thread(bare, folder, upstream) for folder in folders]
    targets[0].name, shape, client = "gone", Shape("x", "plain", 2000, 3, 4), Client()
    try:
        await asyncio.to_thread(stop, targets[0].process)
        made = {shape.name: (await asyncio.to_thread(one_round, client, [shape], targets, 0, 0.1))["x"]}
        assert made["x"]["gone"]["answers"] == 0 and made["x"]["gone"]["error"]
        assert made["x"]["bare"]["answers"] > 0 and made["x"]["bare"]["cpu_ms"] > 0
        assert "error" in await asyncio.to_thread(memory, client, targets[0], 1)
        made["x"]["direct"] = made["x"]["bare"]
        assert set(summary({"targets": dict.fromkeys(("direct", "bare", "gone")), "rounds": [made]})["x"]) == {
            "direct", "bare",
        }  # fmt: skip
    finally:
        client.close()
        for target in targets:
            await asyncio.to_thread(stop, target.process)


def test_what_a_target_adds_is_over_direct_in_the_same_round() -> None:
    def cell(p50: float, per_s: float, cpu: float | None) -> dict[str, Any]:
        shares = {"p50": p50, "p99": p50 * 2}
        return {
            "answers": 5, "failed": 0, "unfinished": 0, "per_s": per_s, "cpu_ms": cpu, "latency_ms": shares,
            "first_ms": shares, "gap_ms": None,
        }  # fmt: skip

    rounds = [
        {"s": {"direct": cell(d, 9.0, None), "bare": cell(d + 1, 4.0, 1.0), "rlproxy": cell(d + 3, 2.0, 5.0)}}
        for d in (1.0, 50.0, 2.0)
    ]
    row = summary({"targets": dict.fromkeys(("direct", "bare", "rlproxy", "portkey")), "rounds": rounds})["s"]
    assert "portkey" not in row
    assert row["rlproxy"]["added_p50_ms"] == 3.0 and row["rlproxy"]["p50_ms"] == 5.0
    ratios = row["rlproxy"]["of_bare"]
    assert ratios["added_p50_ms"] == 3.0 and ratios["per_s"] == 0.5 and ratios["cpu_ms"] == 5.0


def test_the_check_knows_its_shapes() -> None:
    assert set(BOUNDS) <= {shape.name for shape in shapes()}
