"""How CPU time grows with what clients and models send: the exponent is 1 where twice as much takes twice as long.

    python -m scripts.bench.scaling [--repeats N] [--quick] [--json FILE]

Each part reads ordinary inputs and inputs that are made to be slow, over four doublings. The exponent is the slope of
the line through the times, both in logarithms. Writes benchmarks/scaling.json; `--quick` takes shorter inputs and
writes nothing unless told where. Exits with 1 where an exponent is above 1.2.
tests/attacker/test_linear.py has many more inputs, and one doubling.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from config.sections import Redaction
from proxy.conversation.conversations import command_at, thread, without_commands
from proxy.conversation.history_cache import History, HistoryLookup
from proxy.conversation.redaction import Redactor
from proxy.core import sse
from proxy.core.agent_wrappers import AGENTS
from proxy.core.json_edit import EACH, Rules, loads, rewrite
from proxy.relay.json_splice import Splicer, with_members
from scripts.harness.circumstances import circumstances

ROOT = Path(__file__).resolve().parents[2]
MOST: Final = 1.2
DOUBLINGS: Final = 4
SMALLEST: Final = 64 << 10  # bytes
QUICK: Final = 16 << 10
PIECE: Final = 1400  # bytes in which a stream comes
MODEL: Final = b'"the model that the client asked for"'
RULES: Final[Rules] = {"id": b'"rl-1"', "model": MODEL, "choices": {EACH: {"logprobs": b"null", "token_ids": b"null"}}}
WORDS: Final = "The invoice of March is paid; see https://example.org/invoices/2024-0311 and ask ann@example.org. "
CODE: Final = (
    'def total(rows: list[Row]) -> float:\n    return sum(row.amount for row in rows if row.state == "open")\n\n'
)
CHUNK: Final = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)


class Input(NamedTuple):
    kind: str
    make: Callable[[int], Any]  # of about so many bytes


class Part(NamedTuple):
    name: str
    read: Callable[[Any], Any]
    inputs: tuple[Input, ...]


def repeated(text: str, last: str = "") -> Callable[[int], str]:
    return lambda size: text * (size // len(text)) + last


def stream_of(text: bytes) -> Callable[[int], bytes]:
    return lambda size: text * (size // len(text))


def redaction(text: str) -> None:
    Redactor(Redaction(emails=True)).text(text)


def commands(text: str) -> None:
    """Look for a command in a conversation that ends in this text, as each agent's and as no agent's."""
    for agent in (None, *AGENTS):
        command_at([{"role": "user", "content": "hello"}, {"role": "user", "content": text}], agent)


def stream(raw: bytes) -> None:
    """The events of a stream, and each with other data."""
    splitter = sse.EventSplitter()
    for offset in range(0, len(raw), PIECE):
        for event in splitter.feed(raw[offset : offset + PIECE]):
            event.with_data(event.data or b"")
    splitter.remainder()


def edits(raw: bytes) -> None:
    parsed = loads(raw)
    Splicer(RULES).edited(raw, parsed)
    rewrite(raw, RULES, {"added": b"1"})
    with_members(raw, parsed, {"model": MODEL, "added": b"1"})


def hashing(messages: list[dict[str, Any]]) -> None:
    """The thread, and all that is worked out of each message."""
    redactor = Redactor(Redaction())
    thread(messages, redactor.message)
    history = History(redactor)
    without_commands(messages)
    HistoryLookup(history, messages, 0).read()


def conversation(*roles: str, content: Any) -> Callable[[int], Any]:
    turn = [{"role": role, "content": content} for role in roles]
    return lambda size: turn * (size // len(orjson.dumps(turn)))


def choices(choice: Any) -> Callable[[int], Any]:
    count = len(orjson.dumps(choice))
    return lambda size: orjson.dumps({"id": "x", "model": "m", "choices": [choice] * (size // count)})


HALF_KEYS: Final = "-----BEGIN PRIVATE KEY-----" * 70 + "-----END "
LOGPROB: Final = {"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []}
PARTS: Final = (
    Part("redaction", redaction, (
        Input("prose", repeated(WORDS)), Input("code", repeated(CODE)), Input("begun keys", repeated(HALF_KEYS)),
        Input("beginnings of tokens", repeated("sk-eyJ.ghp_")), Input("card numbers", repeated("4111" * 4 + "\n")),
        Input("beginnings of cards", repeated("4111 ")),
    )),
    # Text that is neither of an agent's format nor a command is seen to be so in one look, so its time is small.
    Part("command detection", commands, (
        Input("prose", repeated(WORDS, "/rl good")),
        Input("blocks without an end", repeated("<user_info", "</user_info>/rl")),
        Input("blocks", repeated("<user_info></user_info>", "/rl good")), Input("commands", repeated("/rl good\n")),
        Input("headers", repeated("[Mon 2024-01-01 10:00 UTC] ", "/rl good")),
    )),
    Part("SSE parsing", stream, (
        Input("chunks", stream_of(CHUNK)), Input("one line", stream_of(b"data: a")),
        Input("data lines", stream_of(b"data: a\n")),
        Input("CR", stream_of(b"data: {}\r\r")), Input("CR, one event", stream_of(b"data: a\r\n")),
        Input("empty lines", stream_of(b"\n")),
    )),
    Part("JSON edits", edits, (
        Input("log-probs", choices({"logprobs": {"content": [LOGPROB] * 9}})), Input("quotes", choices('"logprobs"')),
        Input("backslashes", choices('\\"\\')), Input("nested", choices({"logprobs": {"a": {"b": {"c": [{}]}}}})),
    )),
    Part("conversation hashing", hashing, (
        Input("agent's turns", conversation("user", "assistant", content=WORDS)),
        Input("empty messages", conversation("user", content="")),
        Input("system texts", conversation("system", content="")),
        Input("parts", conversation("user", content=[{"type": "text", "text": "<user_info"}])),
    )),
)  # fmt: skip


def seconds(read: Callable[[Any], Any], data: Any, repeats: int) -> float:
    """CPU time of this thread, the least of some."""
    times = []
    for _ in range(repeats):
        gc.collect()
        gc.disable()  # it looks through all that there is, now and then
        began = time.thread_time()
        read(data)
        times.append(time.thread_time() - began)
        gc.enable()
    return min(times)


def exponent(sizes: list[int], times: list[float]) -> float:
    """The slope of the line of least squares through the logarithms."""
    return statistics.linear_regression([math.log(n) for n in sizes], [math.log(max(t, 1e-9)) for t in times]).slope


def measured(part: Part, part_input: Input, smallest: int, repeats: int) -> dict[str, Any]:
    sizes = [smallest << n for n in range(DOUBLINGS + 1)]
    times = [seconds(part.read, part_input.make(size), repeats) for size in sizes]
    return {
        "part": part.name, "input": part_input.kind, "bytes": sizes, "cpu_s": [round(t, 6) for t in times],
        "exponent": round(exponent(sizes, times), 3),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    smallest = QUICK if arguments.quick else SMALLEST
    about = circumstances()
    rows = []
    print(f"{'':22}{'':24}{'exponent':>9}   CPU milliseconds at {smallest >> 10} KB and each doubling")
    for part in PARTS:
        for part_input in part.inputs:
            row = measured(part, part_input, smallest, arguments.repeats)
            rows.append(row)
            times = "".join(f"{t * 1000:9.2f}" for t in row["cpu_s"])
            print(f"{part.name:22}{part_input.kind:24}{row['exponent']:9.2f} {times}", flush=True)
    violations = [f"{row['part']}, {row['input']}: {row['exponent']}" for row in rows if row["exponent"] > MOST]
    target = arguments.json or (None if arguments.quick else ROOT / "benchmarks/scaling.json")
    if target is not None:
        result = about | {"most": MOST, "repeats": arguments.repeats, "rows": rows}
        target.write_text(json.dumps(result, indent=1) + "\n")
    if violations:
        print(f"above {MOST}: {'; '.join(violations)}", file=sys.stderr)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
