"""Requests to every route of a running rlproxy, sound and broken, by the ten thousand; then the store is read.

`python -m scripts.fuzz.routes [--requests N] [--seed N] [--json FILE]`. Half of them to a proxy without keys whose
backend has chat completions alone, half to one with keys whose backend has every format. All of this must hold:

- No answer is a 5xx: the backend is a fake that never fails, so a 5xx would be rlproxy's own.
- Each request is answered or closed within a bound.
- Every row is whole, and everything that was acknowledged is there.
- The log has no bug, and memory does not grow.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from scripts.fuzz import wire
from scripts.fuzz.house import House, house
from scripts.fuzz.request_maker import Facts, Request, make_request
from scripts.fuzz.stored import verdict
from scripts.fuzz.wire import Answer, Broken, Socket
from scripts.harness.circumstances import commit, machine_name, now

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 8
BROKEN = 0.15  # of all are broken as HTTP, too
WITNESS = 20  # every so many, a sound completion with a rating that must be there in the end
WARM = 0.3  # of the requests, after which memory has no reason to grow
MOST_GROWTH_MB = 40.0
REST_S = 2.0  # after the last of them
# Answers in so many words: this backend cannot do that; a webhook that is stored later than its sender waits.
EXPLAINED_ERRORS = (b'"code":"unsupported"', b'"code":"not_yet_stored"')


@dataclass
class Tally:
    statuses: Counter[str] = field(default_factory=Counter)
    routes: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    slowest: str = ""
    sent: int = 0
    acknowledged: dict[str, str] = field(default_factory=dict)  # ids of answers that came whole; seed and route
    witnesses: dict[str, str] = field(default_factory=dict)  # completion to its rating
    rated: dict[str, str] = field(default_factory=dict)  # rating to its completion
    own_5xx: int = 0
    deleted: set[str] = field(default_factory=set)  # ids that an answer says are deleted
    unheard: set[str] = field(default_factory=set)  # ids that a client asked to delete, and no answer came
    forgotten: int = 0  # completions of sessions, users and raters; the answer tells how many, not which
    ratings_gone: int = 0  # ratings likewise; those of such completions are not all told

    def never_heard(self, request: Request) -> None:
        """No answer came: what was asked may be done all the same."""
        if request.method == "DELETE":
            self.unheard.add(unquote(request.path.rpartition(b"/")[2].decode(errors="replace")))

    def fails(self, seed: int, request: Request, reason: str) -> None:
        if len(self.failures) < 200:
            self.failures.append(f"seed {seed}: {request.method} {request.path[:120]!r} ({request.route}): {reason}")


class Fuzz:
    def __init__(self, facts: Facts, tally: Tally, seeds: Any) -> None:
        self._facts = facts
        self._tally = tally
        self._seeds = seeds

    async def worker(self) -> None:
        socket = Socket(self._facts.port)
        for seed in self._seeds:
            dice = random.Random(seed)
            request, sound = make_request(dice, self._facts)
            how = dice.choice(wire.BREAKS) if dice.random() < BROKEN else ""
            started = time.perf_counter()
            try:
                await self._send(seed, dice, socket, request, sound, how)
            except TimeoutError:
                self._tally.fails(seed, request, f"neither answered nor closed in {wire.BOUND_S:g} s {how}")
                self._tally.never_heard(request)
                await socket.close()
            except Broken as error:
                self._tally.fails(seed, request, f"what came is no HTTP: {error} {how}")
                self._tally.never_heard(request)
                await socket.close()
            seconds = time.perf_counter() - started
            if seconds > self._tally.slowest_s:
                self._tally.slowest_s, self._tally.slowest = seconds, f"seed {seed}: {request.route} {how}"
            if seed % WITNESS == 0:
                await self._witness(seed, socket)
        await socket.close()

    async def _send(
        self, seed: int, dice: random.Random, socket: Socket, request: Request, sound: bool, how: str
    ) -> None:
        tally = self._tally
        tally.sent += 1
        tally.routes[request.route] += 1
        if how:
            tally.broken[how] += 1
            await socket.send(wire.broken(dice, request, self._facts, how), fresh=True)
            if how in ("half-head", "half-body", "long", "huge-size", "garbage", "early-close"):
                await asyncio.sleep(wire.PATIENT_S)
                if dice.random() < 0.5 or how == "early-close":
                    await socket.close()
                    tally.statuses["left"] += 1
                    tally.never_heard(request)
                    return
            if how != "no-end":  # that one holds on, until it is told that it is too slow
                await socket.half_close()
        else:
            await socket.send([wire.sound(dice, request, self._facts)])
        answer = await socket.answer(request.method)
        if not answer.whole:
            tally.never_heard(request)
        if answer.status == 0 and not how:
            await socket.send([wire.sound(dice, request, self._facts)], fresh=True)  # it closed an idle one
            answer = await socket.answer(request.method)
        if how or not answer.whole or not sound:  # where a broken one ended is not sure
            await socket.close()
        tally.statuses[str(answer.status or ("closed" if how else "closed without a word"))] += 1
        if answer.status == 0 and not how:
            tally.fails(seed, request, f"closed without a word, {len(request.body or b'')} bytes of body")
        self._judge(seed, request, sound and not how, answer)

    def _judge(self, seed: int, request: Request, sound: bool, answer: Answer) -> None:
        tally = self._tally
        # The fake's server sends a body to some HEADs, which is no HTTP: then it is at fault.
        at_fault = answer.status == 502 and request.method == "HEAD"
        if answer.status >= 500 and not at_fault and not any(code in answer.body for code in EXPLAINED_ERRORS):
            tally.own_5xx += 1
            tally.fails(seed, request, f"{answer.status} {answer.body[:400]!r}")
        odd = answer.status in (0, 400) and b"previous_response_not_found" not in answer.body  # it may be another's
        if sound and not request.route.startswith("*") and (odd or not answer.whole):
            tally.fails(seed, request, f"a sound request: {answer.status} {answer.body[:200]!r}")
        if answer.status == 200 and answer.whole and (id := answer.headers.get("x-rl-completion-id")):
            tally.acknowledged[id] = f"seed {seed} {request.route}"
            self._facts.completions.append(id)
        if answer.headers.get("content-type", "").startswith("application/json") and answer.whole and answer.body:
            try:
                self._learn(request, answer, json.loads(answer.body))
            except ValueError:
                if answer.status >= 400 or request.path.startswith(b"/rl/"):
                    tally.fails(seed, request, f"{answer.status} with JSON that is none: {answer.body[:200]!r}")

    def _learn(self, request: Request, answer: Answer, reply: Any) -> None:
        if not isinstance(reply, dict):
            return
        if answer.status in (200, 201, 207) and request.path == b"/v1/feedback" and request.method == "POST":
            for rating in [reply] if "completion_id" in reply else [row.get("rating") for row in reply["data"]]:
                if rating:
                    self._tally.rated[rating["id"]] = rating["completion_id"]
                    self._facts.ratings.append(rating["id"])
        if reply.get("forgotten") is True:
            self._tally.forgotten += reply["completions"]
            self._tally.ratings_gone += reply["ratings"]
        if reply.get("deleted") is True:
            self._tally.deleted.add(str(reply.get("id")))

    async def _witness(self, seed: int, socket: Socket) -> None:
        """Sound, in the middle of all this: whoever behaves is served."""
        id = f"witness-{seed}"
        chat = {"model": "fake", "messages": [{"role": "user", "content": f"witness {seed}"}], "stream": seed % 40 == 0}
        headers = [("x-rl-completion-id", id.encode()), ("x-rl-session", b"witness")]
        chat_request = Request("POST", b"/v1/chat/completions", [], headers, json.dumps(chat).encode(), "witness")
        rating = json.dumps({"completion_id": id, "rating": "good", "rater": "witness"}).encode()
        rating_request = Request("POST", b"/v1/feedback", [], [], rating, "witness")
        try:
            answer = await self._sound(socket, chat_request)
            if answer.status != 200 or not answer.whole:
                return self._tally.fails(seed, chat_request, f"a witness: {answer.status} {answer.body[:300]!r}")
            answer = await self._sound(socket, rating_request)
            if answer.status != 201:
                return self._tally.fails(seed, rating_request, f"a witness: {answer.status} {answer.body[:300]!r}")
            self._tally.witnesses[id] = json.loads(answer.body)["id"]
        except (TimeoutError, Broken, OSError) as error:
            self._tally.fails(seed, chat_request, f"a witness: {error!r}")

    async def _sound(self, socket: Socket, request: Request) -> Answer:
        if self._facts.key:
            request.headers.append(("authorization", f"Bearer {self._facts.key}".encode()))
        await socket.send([wire.sound(random.Random(0), request, self._facts)], fresh=True)
        return await socket.answer(request.method)


async def fuzzed(count: int, seed: int, *, keys: bool) -> dict[str, Any]:
    """One proxy, asked `count` times, stopped and looked into."""
    async with house(keys=keys) as running:
        facts = Facts(int(running.url.rpartition(":")[2]), running.key)
        await _page(facts)
        tally, memory = Tally(), [running.memory_mb]
        fuzz = Fuzz(facts, tally, iter(range(seed, seed + count)))
        started = time.perf_counter()
        watching = asyncio.create_task(_watch(running, tally, count, memory))
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(fuzz.worker())
        seconds = time.perf_counter() - started
        watching.cancel()
        await asyncio.sleep(REST_S)
        memory.append(running.memory_mb)
        left_open = running.connections
        await running.stop()
        warm = memory[int(len(memory) * WARM)]
        if memory[-1] - warm > MOST_GROWTH_MB:
            tally.failures.append(f"memory grew from {warm:.0f} MB to {memory[-1]:.0f} MB after its first {WARM:.0%}")
        stored = await verdict(running.home, tally)
    return {
        "keys": keys,
        "requests": tally.sent,
        "seconds": round(seconds, 1),
        "per_s": round(tally.sent / seconds, 1),
        "own_5xx": tally.own_5xx,
        "by_status": dict(sorted(tally.statuses.items())),
        "by_route": dict(sorted(tally.routes.items())),
        "broken_as_http": dict(sorted(tally.broken.items())),
        "slowest_s": round(tally.slowest_s, 2),
        "slowest": tally.slowest,
        "memory_mb": [round(megabytes, 1) for megabytes in memory],
        "connections_left": left_open,
        "store": stored,
        "failures": [*tally.failures, *running.failures],
    }


async def _watch(running: House, tally: Tally, count: int, memory: list[float]) -> None:
    """Twenty times along the way."""
    while True:
        while tally.sent < len(memory) * count / 20:
            await asyncio.sleep(0.05)
        memory.append(running.memory_mb)


async def _page(facts: Facts) -> None:
    """Its cookie and its token, as a browser has them."""
    socket = Socket(facts.port)
    headers = [("authorization", f"Bearer {facts.key}".encode())] if facts.key else []
    await socket.send([wire.sound(random.Random(0), Request("GET", b"/", [], headers), facts)])
    answer = await socket.answer("GET")
    await socket.close()
    facts.cookie = answer.headers.get("set-cookie", "").partition(";")[0]
    match = re.search(r'x-rl-token": "([^"]+)"', answer.body.decode(errors="replace"))
    facts.token = match[1] if match else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)  # of the backend, which is in this process
    half = arguments.requests // 2
    houses = []
    for keys, count, seed in ((False, half, arguments.seed), (True, arguments.requests - half, arguments.seed + half)):
        houses.append(report := asyncio.run(fuzzed(count, seed, keys=keys)))
        summary = {
            key: report[key] for key in ("keys", "requests", "per_s", "by_status", "slowest", "slowest_s", "store")
        }
        print(json.dumps(summary), file=sys.stderr)
        print(f"memory {report['memory_mb']}, {report['connections_left']} connections", file=sys.stderr)
        for failure in report["failures"]:
            print(failure, file=sys.stderr, flush=True)
    failures = sum(len(report["failures"]) for report in houses)
    result = {
        "date": now(),
        "commit": commit(),
        "machine": machine_name(),
        "requests": sum(report["requests"] for report in houses),
        "seed": arguments.seed,
        "houses": houses,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{result['requests']} requests, {failures} failures", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
