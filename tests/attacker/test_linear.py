"""Texts made to be slow: whatever a client, a model or a page sends, the time it takes grows with its length.

A search that begins anew at each place takes four times as long for twice the text, so one small request would stall
everybody. The table has each scanner of such texts with the inputs that are worst for it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import random
import string
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import orjson
import pytest
from multidict import CIMultiDict

from config.sections import Redaction, ServerSection
from proxy.access.security import outgoing_headers, without_keys
from proxy.backends import modelfile
from proxy.cli.doctor import bundle
from proxy.conversation.conversations import command_at, thread, without_commands
from proxy.conversation.history_cache import History, HistoryLookup
from proxy.conversation.incremental_json import LEAST, EarlierBodies
from proxy.conversation.redaction import Redactor
from proxy.conversation.same_text import MessageText, overlap, partial_similarity, similarity
from proxy.conversation.side_requests import may_quote, quotation
from proxy.conversation.turns import turn_of
from proxy.conversation.user_text import without_blocks
from proxy.core import ndjson, sse
from proxy.core.agent_wrappers import agent_of, as_typed
from proxy.core.http_message import Unpacking
from proxy.core.json_edit import EACH, loads, rewrite
from proxy.core.offload import LARGE
from proxy.dialects import DIALECTS
from proxy.dialects.base import Dialect, ParsedRequest
from proxy.dialects.chat_form import Calls
from proxy.dialects.chat_turns import in_turns
from proxy.dialects.responses_items import to_messages
from proxy.feedback.webhooks.emoji import plain
from proxy.feedback.webhooks.text_match import match
from proxy.images.parts import inline_bytes
from proxy.relay.codecs import about_what_was_asked
from proxy.relay.framing import splitter_of
from proxy.relay.json_splice import Splicer, with_members
from store.captured import blobs
from store.captured.inbox import sought
from store.captured.tree import woven
from store.learning import reactions
from store.records import RecentCompletion, Requester
from tests.harness.growth import too_slow
from trainer.run import permutation_test
from trainer.serve.chat_wire import json_object
from trainer.serve.reply_text import ReplyText

FIRST, LAST = 2_000, 60_000  # characters of the shorter input
LONG: Final = 320_000  # where copies cost more than steps
REMEMBERED: Final = 2 * LEAST  # a body that is shorter than half of it costs less

ALL = Redactor(Redaction(emails=True))
OWN = Redactor(Redaction(patterns=(r"\w+@\w+\.example", r"://(?P<secret>[^/\s:@]+:[^/\s:@]+)@", r"CUSTOMER-\d{8}")))
BY_NAME: Final = {dialect.name: dialect for dialect in DIALECTS}


class Case(NamedTuple):
    name: str
    scan: Callable[[Any], Any]
    make: Callable[[int], Any]  # an input of about so many characters
    first: int = FIRST


def again(text: str | bytes, first: str | bytes = "", last: str | bytes = "") -> Callable[[int], Any]:
    """Made of this, over and over."""
    empty = text[:0]
    return lambda size: (first or empty) + text * (size // len(text)) + (last or empty)


def texts(*parts: str) -> list[Callable[[int], Any]]:
    return [again(part) for part in parts]


def base64(size: int) -> str:
    chance = random.Random(size)
    return "".join(chance.choices(string.ascii_letters + string.digits + "+/", k=size))


HALF_A_KEY: Final = "-----BEGIN PRIVATE KEY-----"
FOR_SECRETS: Final = [
    *texts(
        HALF_A_KEY, f"{HALF_A_KEY}\nabcd: ", f"{HALF_A_KEY}" * 700 + "-----END ", "-----BEGIN ", "-----END ",
        f"{HALF_A_KEY}\n{'a' * 31}\n", f"{HALF_A_KEY}\n{'a' * 64}\n", f"{HALF_A_KEY}{'a1' * 32}-----END ",
        "sk-", "-sk-", "%3Dsk-", "sk-a-", "sk-ant-", "sk-proj-", "sk-or-v1-0", "ghp_", "_ghp_", "github_pat_", "eyJ",
        "eyJ.", "eyJaaaaaaaaaa.", ".eyJaaaaaaaaaa.a", "AKIA", "AKIAAAAAAAAAAAAAAAAA", "xoxb-", "xoxb-a ", "SG.",
        "hooks.slack.com/services/T", "hooks.slack.com/services/Ta/Ba/", "T/B/", ":AA", "123456:AA", "AccountKey=",
        "aws_secret_access_key", "aws_secret_access_key   =   ", "lsv2_pt_", "whsec_", "a" * 20 + ".",
        "4111 ", "4111-", "4111111111111111", "4111111111111111-", "4111111111111111 ", "4111111111111112-", "0000",
        "0000 ", "4111 1111 1111 1111 ", "4111-1111-1111-1111-", "411111111111111é", "a@", "@", "a@a.", "@a.a", "a.",
        "aaaa@aaaa.aaaa.", "-", ".", "=", "A", "0", " ", "\n", "é", "\x00", "a\r\n",
    ),
    again("a", "sk-"), again("a-", "sk-"), again("a", "xoxb-"), again("a", "eyJ"), again("a.", "eyJ"),
    again("a", "hooks.slack.com/services/T"), again("a", f"{HALF_A_KEY}\n"), again("aaaa: b\n", f"{HALF_A_KEY}\n"),
    again("a", "data:"), again("a", "data:image/png;base64,"), again(",", "data:"), base64,
]  # fmt: skip

FOR_MODELFILES: Final = [
    *texts(
        'SYSTEM """x"""y\n', 'SYSTEM """x\n', 'SYSTEM "x\n', 'SYSTEM """', 'PARAMETER stop "', "MESSAGE user \n",
        "FROM ", "FROM a\n", '"""', "\n", "\r\n", 'PARAMETER x [\n', "PARAMETER stop a\n",
    ),
    again("[", "PARAMETER x "), again(" ", "SYSTEM"), again('"\n', 'SYSTEM """'),
]  # fmt: skip
FOR_LABELS: Final = texts(
    "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\n", "\r\n", "⠋\r", "█░\r", "\u200b\r", " ",
    "\nuse", "\n- ", "user:", '"text"', '"content" : "', "you: ", "\n[user]", "İ", "\nuser: <", "<x>",
    "/rl good\nassistant: ",
)  # fmt: skip
FOR_LISTS: Final = texts("\n", " \n", "\n ", "1", "\n1", "\n1.", "\n- ", "\r", "\u2028", "\n\t", "•", "?", "A")
FOR_OWN_PATTERNS: Final = [
    *texts("a", "a@", "ab ", "\n", "é", "a.", "://", "://a:", "CUSTOMER-", "1"),
    again("a", "://"),
]
FOR_BLOCKS: Final = [
    *texts(
        "<user_info", "<user_info>", "</user_info>", "<user_info></user_info>", "<system-reminder", "<", "/rl ", " ",
        "<think>", "</think>", "<think", "\n", "[a] ", "<user_info><system-reminder></user_info></system-reminder>",
    ),
    again("<user_info", last="</user_info>"), again("a", "<user_infoX" * 900, "</user_info>"),
]  # fmt: skip


# Streams


def fed(splitter: Callable[[], Any], piece: int) -> Callable[[bytes], Any]:
    """The stream in pieces of this length; each event is looked at, and written with other data."""

    def scan(stream: bytes) -> None:
        split = splitter()
        found = [event for at in range(0, len(stream), piece) for event in split.feed(stream[at : at + piece])]
        for event in (*found, sse.Event(split.remainder())):
            event.with_data(b'{"id":\n 1}' if event.data is None else event.data + b"\n")

    return scan


FOR_STREAMS: Final = [
    again(one)
    for one in (b"data: {}\n\n", b"data: {}\r\n\r\n", b"data: {}\r\r", b"data: a\n", b"data\n", b"data:", b"a", b"\r",
                b"\n", b"\r\n", b": a\n", b"\xef\xbb\xbf", b"\n\r", b"a\r\n", b"a\r")
]  # fmt: skip

LONG_LINES: Final = [again(b"a" * 2000 + end) for end in (b"\r\n", b"\r", b"\n", b"")]


# JSON

RULES: Final = {"id": b'"new"', "choices": {EACH: {"logprobs": b"null"}}, "gone": None}
SPLICER_RULES: Final = {"id": b'"new"', "choices": {EACH: {"logprobs": b"null"}}}


def rewritten(raw: bytes) -> None:
    try:
        rewrite(raw, RULES, {"added": b"1"})
    except ValueError:
        assert not raw.endswith(b"}")


def spliced(raw: bytes) -> None:
    parsed = loads(raw)
    Splicer(SPLICER_RULES).edited(raw, parsed)
    with_members(raw, parsed, {"model": b'"m"', "added": b"1"})


def listed(value: Callable[[int], list[Any]] | Any, **more: Any) -> Callable[[int], bytes]:
    """A body whose `choices` has this over and over."""
    size = len(orjson.dumps(value))
    return lambda n: orjson.dumps({"id": "x", **more, "choices": [value] * (n // size)})


FOR_JSON: Final = [
    listed({}), listed({"logprobs": None}), listed({"logprobs": {"a": {"b": {"c": {"d": {"e": {}}}}}}}),
    listed({"logprobs": [[]]}), listed({"logprobs": {"content": [{"a": "]}"}]}}), listed('"logprobs":'), listed("\\"),
    listed('"id"'), listed([]), listed({"id": 1, "choices": []}), listed(1),
    lambda n: orjson.dumps({f"k{i}": i for i in range(n // 12)}),
    lambda n: orjson.dumps({"id": "\\" * (n // 2), "choices": []}),
    lambda n: orjson.dumps({"id": '"' * (n // 2), "choices": [{"logprobs": '\\"' * 9}]}),
    lambda n: b'{"id"%s:%s1}' % (b" " * (n // 2), b"\n" * (n // 2)),
]  # fmt: skip
BROKEN_JSON: Final = [
    again(part, first)
    for part, first in (
        (b'\\"', b'{"a":"'), (b'"', b"{"), (b"\\", b'{"a":"'), (b"{", b""), (b'{"a":', b""), (b"a", b'"')
    )
]  # fmt: skip


# Conversations


def asked(dialect: Dialect, body: dict[str, Any]) -> None:
    """All that is made of a request, twice: the second time it is known."""
    raw = orjson.dumps(body)
    bodies, history = EarlierBodies(), History(ALL)
    for body_again in (raw, raw[:-1] + b" }"):
        read = bodies.read(body_again, bodies.find_prefix(body_again))
        bodies.remember(read)
        found: ParsedRequest = dialect.parse(read.parsed)
        assert command_at(found.messages) is None
        kept = without_commands(found.messages)
        told = HistoryLookup(history, found.messages, len(raw)).read()
        turn_of({}, read.parsed, found.messages, None, (), told.turns)
        dialect.keep(read.parsed, found, kept)
        dialect.names(read.parsed)
        dialect.to_chat(read.parsed, found)


def messages(*items: dict[str, Any], key: str = "messages", **more: Any) -> Callable[[int], dict[str, Any]]:
    size = len(orjson.dumps(items))
    user = {"role": "user", "content": "x"}
    return lambda n: {"model": "m", **more, key: [*items * (n // size), user]}


USER, SYSTEM, ASSISTANT = ({"role": role, "content": "a"} for role in ("user", "system", "assistant"))
SAID, SAID_ALSO = ({"role": role, "content": "a" * 40} for role in ("user", "assistant"))
CALL: Final = {"function": {"name": "f", "arguments": {}}}
THOUGHT: Final = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}]}
FOR_DIALECTS: Final[dict[str, list[Callable[[int], dict[str, Any]]]]] = {
    "chat": [
        messages(USER), messages(SYSTEM), messages(SYSTEM, USER), messages(USER, ASSISTANT), messages({"role": "user"}),
        messages({"role": "user", "content": [{"type": "text", "text": "<user_info"}]}),
        messages({"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "1", "content": "a"}),
    ],
    "messages": [
        messages(USER), messages(SYSTEM), messages(USER, SYSTEM), messages(USER, ASSISTANT),
        messages({"role": "user", "content": [{"type": "text", "text": "a"}]}),
        messages({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "a"}]}, SYSTEM),
    ],
    "responses": [
        messages(USER, key="input"), messages(SYSTEM, key="input"), messages(ASSISTANT, key="input"),
        messages(THOUGHT, key="input"), messages(THOUGHT, ASSISTANT, key="input"),
        messages({"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}, key="input"),
    ],
    "ollama": [
        messages(USER), messages(SYSTEM),
        lambda n: {"model": "m", "messages": [
            {"role": "assistant", "tool_calls": [CALL] * (n // 80)}, *[{"role": "tool", "content": "a"}] * (n // 80)
        ]},
        lambda n: {"model": "m", "messages": [
            {"role": "assistant", "tool_calls": [{"function": {"name": f"f{i % 9}"}} for i in range(n // 80)]},
            *[{"role": "tool", "tool_name": f"f{i % 9 // 2}", "content": "a"} for i in range(n // 80)], USER
        ]},
    ],
    "completions": [lambda n: {"model": "m", "prompt": "a" * n}],
}  # fmt: skip


def named(size: int) -> list[dict[str, Any]]:
    return [{"role": role, "content": "a"} for role in ("system", "user", "assistant")] * (size // 90)


def told(items: list[dict[str, Any]]) -> None:
    """`messages` in chat form, without a dialect."""
    thread(items, ALL.message)
    without_commands(items)


# Answers


def streamed(dialect: Dialect, deltas: list[dict[str, Any]]) -> None:
    """A chat completion in so many pieces, said in this dialect, and read in it again."""
    request = {"model": "m", "input": "x", "messages": [USER], "prompt": "x", "max_tokens": 1}
    say = dialect.renderer(id="rl-1", parsed=dialect.parse(request), created=0)
    for delta in deltas:
        say.chunk({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    say.end()
    fold = BY_NAME["chat"].fold()
    for delta in deltas:
        fold.add({"choices": [{"index": 0, "delta": delta}]})
    fold.replies()


def call_delta(index: int, **function: str) -> dict[str, Any]:
    """A call of its own."""
    return {"index": index, "id": f"call {index}", "function": {"name": "f", **function}}


FOR_ANSWERS: Final = [
    lambda n: [{"content": "abcdefgh"}] * (n // 20),
    lambda n: [{"reasoning_content": "abcdefgh"}] * (n // 20),
    lambda n: [{"refusal": "abcdefgh"}] * (n // 20),
    lambda n: [{"content": "a"}, {"reasoning_content": "b"}] * (n // 60),
    lambda n: [
        {"tool_calls": [{"index": 0, "id": "1", "function": {"name": "f"}}]},
        *[{"tool_calls": [{"index": 0, "function": {"arguments": "abcdefgh"}}]}] * (n // 30),
    ],
    lambda n: [{"tool_calls": [call_delta(i, arguments="{}")]} for i in range(n // 30)],
    lambda n: [{"tool_calls": [call_delta(i)]} for i in range(n // 30)],
    lambda n: [{"tool_calls": [call_delta(i, arguments="{}")]} if i % 2 else {"content": "a"} for i in range(n // 30)],
    lambda n: [{"audio": {f"member {i}": 1}} for i in range(n // 20)],
]


def replied(output: list[dict[str, Any]]) -> None:
    BY_NAME["responses"].whole({"output": output, "status": "completed"})


FOR_REPLIES: Final = [
    lambda n: [{"type": "message", "content": [{"text": "abcd", "logprobs": [{"logprob": 0.0}]}]}] * (n // 30),
    lambda n: [{"type": "reasoning", "content": [{"text": "abcd"}]}] * (n // 30),
    lambda n: [{"type": "function_call", "name": "f", "arguments": "{}"}] * (n // 30),
]


class Letters:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids: list[int], **_: Any) -> str:
        return bytes(ids).decode(errors="replace")


def generated(reply: bytes) -> None:
    text = ReplyText(Letters(), stop=("aaaaaaaab", "\n\nUser:"))
    for token in reply:
        text.push(token)
    text.finish()


def names(model: str) -> None:
    about_what_was_asked(orjson.dumps({"error": {"message": f"no {model} here, {model}a"}}), model, "/v1/x")


def logged(line: str) -> None:
    if found := bundle.LOGGED.fullmatch(line):
        bundle.VALUE.findall(found["values"])


def with_cookie(cookie: str) -> None:
    outgoing_headers(CIMultiDict({"cookie": cookie}), settings=ServerSection(), backend={})
    without_keys(cookie, {"authorization": cookie})


def layout(text: str) -> None:
    permutation_test.kernels([permutation_test.RatedReply(text, 1, True, reward) for reward in (1.0, -1.0)])


def thoughts_below_parts(size: int) -> list[dict[str, Any]]:
    """A long message of a person, and reasoning that no answer follows."""
    parts = [{"type": "input_text", "text": "a"}] * (size // 80)
    return [{"type": "message", "role": "user", "content": parts}, *[{"type": "reasoning"}] * (size // 40)]


def choices_by_name(size: int) -> dict[str, Any]:
    """Choices of one chunk, each with something else than a number for its place."""
    return {"choices": [{"index": str(i), "delta": {"content": "a"}} for i in range(size // 40)]}


def call_pieces(size: int, first: str) -> list[dict[str, Any]]:
    """Pieces of a call, each with its name and an id that was made up for it."""
    pieces = [first, *["aaaaaaaa"] * (size // 80)]
    return [{"id": str(i), "function": {"name": "f", "arguments": text}} for i, text in enumerate(pieces)]


def called(pieces: list[dict[str, Any]]) -> None:
    calls = Calls()
    for piece in pieces:
        calls.place(piece)


class DribbledAnswer:
    """An object of one line, and the blanks behind it, each by itself."""

    def __init__(self, size: int) -> None:
        self.headers: dict[str, str] = {}
        self.is_here = False  # more may come
        self._pieces = [b"", *[b" "] * size, b'{"n":[%s1]}\n' % (b"1," * size)]

    async def some(self, beat_s: float) -> bytes:
        return self._pieces.pop()

    def give_back(self, data: bytes) -> None:
        """Nobody reads it."""


def framed(answer: DribbledAnswer) -> None:
    async def beat() -> None:
        raise AssertionError("it is never silent")

    asyncio.run(splitter_of(answer, BY_NAME["chat"], 1.0, beat, is_streaming=False))  # type: ignore[arg-type]


def packed(body: bytes) -> None:
    """One read of an answer, of which as much is taken at once as there is room for."""
    unpacking = Unpacking("gzip")
    unpacking.unpacked(body, 1 << 24)


def shown(text: str) -> None:
    match(text, [reactions.SeenAnswer(str(i), text[i:]) for i in range(4)])


def same(text: str) -> None:
    similarity(text, f"{text}b")
    partial_similarity(text, f"{text}b")
    overlap([MessageText("user", text)], [MessageText("user", f"b{text}b")])
    overlap([MessageText("user", f"b{text}b")], [MessageText("user", f"{text}\nb\n{text}")])


def quoting(text: str) -> None:
    one = RecentCompletion(1, "a", 0.0, "done", 1.0, None, "m", None, 1, "hi", Requester(None, None), "a")
    first = [{"role": "system", "content": text}, {"role": "user", "content": text}]
    may_quote(first)
    quotation(first, [one, dataclasses.replace(one, asked=text, text=text)])


def repeated(text: str) -> None:
    prompt = {"role": "system", "content": f"Act as an expert software developer.{text}"}
    as_typed([prompt, {"role": "user", "content": f"/rl good{text}"}], agent_of({}, [prompt]))


def many(name: str, scan: Callable[[Any], Any], makers: list[Callable[[int], Any]], first: int = FIRST) -> list[Case]:
    return [Case(f"{name} {at}", scan, make, first) for at, make in enumerate(makers)]


# One long text with many beginnings of base64, and many short ones.
FOR_BLOBS: Final = [
    *(again(b, b'{"content":"', b'"}') for b in (b";base64,", b";base64,AAAA", b'\\"data\\":\\"', b";base64,;data:")),
    *(
        again(b)
        for b in (b";base64,", b'"data":"', b'"file_data":"', b'"data":"' + b"A" * 64 + b'",', b'"data":";base64,"')
    ),
]
CASES: Final = [
    *many("secrets", ALL.text, FOR_SECRETS),
    *many("blocks", without_blocks, FOR_BLOCKS),
    *many("thread", lambda text: thread([{"role": "assistant", "content": text}], ALL.message), FOR_BLOCKS),
    *many("events", fed(sse.EventSplitter, 65536), FOR_STREAMS),
    *many("events, a few bytes each", fed(sse.EventSplitter, 7), FOR_STREAMS),
    *many("one event", fed(sse.EventSplitter, 500), LONG_LINES, LAST),
    *many("one line", fed(ndjson.NdjsonSplitter, 500), LONG_LINES, LAST),
    *many("lines", fed(ndjson.NdjsonSplitter, 65536), FOR_STREAMS),
    *many("lines, a few bytes each", fed(ndjson.NdjsonSplitter, 7), FOR_STREAMS),
    *many("rewrite", rewritten, [*FOR_JSON, *BROKEN_JSON]),
    *many("splicing", spliced, FOR_JSON),
    *many(
        "large JSON", rewritten, [again(part, b" " * LARGE + b'{"a":') for part in (b'"', b'\\"', b"\\", b"[", b"a")]
    ),
    *(
        case
        for name, makers in FOR_DIALECTS.items()
        for case in many(name, partial(asked, BY_NAME[name]), makers, REMEMBERED)
    ),
    *many("conversation", told, [named]),
    *many("seen", without_commands, [lambda n: [SYSTEM] * (n // 40)], LONG),
    *many("turns", in_turns, [lambda n: [SAID] * (n // 40), lambda n: [SAID, SYSTEM] * (n // 80)], LONG),
    *many("items", to_messages, [lambda n: [SAID_ALSO] * (n // 40), lambda n: [THOUGHT] * (n // 40)], LONG),
    *many("thoughts below parts", to_messages, [thoughts_below_parts], LONG // 8),
    *many("choices", lambda chunk: BY_NAME["chat"].fold().add(chunk), [choices_by_name], LONG // 2),
    *many("dribbled", lambda size: framed(DribbledAnswer(size)), [lambda size: size // 4], LONG // 40),
    *many("calls", called, [lambda n: call_pieces(n, '{"a":"'), lambda n: call_pieces(n, "{}")], LONG // 4),
    *many("one system text", in_turns, [lambda n: [SYSTEM] * (n // 40)], LONG),
    *(
        case
        for name in FOR_DIALECTS
        for case in many(f"say {name}", partial(streamed, BY_NAME[name]), FOR_ANSWERS, LONG // 2)
    ),
    *many("replies", replied, FOR_REPLIES),
    *many("reply text", generated, [again(b) for b in (b"a", b"\xff", b"aaaaaaaa\n", b"\xe2\x82", b"\n")]),
    *many("labels", quoting, FOR_LABELS),
    *many("Modelfile", modelfile.parse, FOR_MODELFILES),
    *many("lists", layout, FOR_LISTS),
    *many("own patterns", OWN.text, FOR_OWN_PATTERNS),
    *many(
        "gzip", packed, [again(gzip.compress(b"")), again(gzip.compress(b"a")), lambda n: gzip.compress(b"a" * 99 * n)]
    ),
    *many("shown", shown, texts("a", "&", "&amp;", "&#1", "&#", "&#11111111", "_", "&a")),
    *many("emoji", plain, texts("::skin-tone-", "_tone", ":", "\ufe0f")),
    *many("the same words", same, texts("a", "a ", "a\n", "a\n\n", " ", "\n", "&#1", "é", ": a")),
    *many("quotations", quoting, texts("a", "user: hi\n", "user: ", "hi\n", "hi ", "\n[", '"content": "hi', "user:\n")),
    *many("repeated", repeated, texts("a", "\n", "\n\n", "a\n\n")),
    *many("cookies", with_cookie, texts("rl_", "rl_a=", "rl_a=b;", ";", "a=b; ", " ", "rlp_", "rlp_0")),
    *many("model", names, texts("a", "(", "aab", ".*")),
    *many("log", logged, [again(p, "now [info ] x ") for p in ("a", " ", "a ", "a=", "a=' ", "a='\\' ", "=")]),
    *many("blobs", blobs.cut, FOR_BLOBS, LONG // 20),
    *many("pictures", lambda text: inline_bytes(f"data:;base64,{text}"), texts("A", "A=", "=", " ", "\\n", "-_", ",")),
    *many("search", sought, texts('"', "a ", " ")),
    *many("woven", lambda n: woven(range(n), [(2 * i, 0) for i in range(n)]), [lambda n: n]),
    *many("built-in", lambda raw: json_object(b'{"a":"%s"}' % raw), [again(b"\\\\"), again(b" ")]),
]


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_time_grows_with_the_length(case: Case) -> None:
    assert not too_slow(case.scan, case.make, case.first, max(case.first, LAST)), case.name
