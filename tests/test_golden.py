"""Every recorded answer of a real server, replayed: the client gets its bytes, and the capture says what it says.

The corpus is under tests/golden, recorded by `scripts/golden/record.py`; `tests/golden/written` is no recording.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.backends.vllm import VLLM
from proxy.core import ndjson, sse
from proxy.dialects import DIALECTS, Dialect, Reply
from proxy.relay.context import choice_id
from scripts.fakes.recorded import http_answer
from scripts.fakes.socketless import Answering, Socketless
from scripts.golden.corpus import Answer, Case, Choice, recordings, servers, written
from store.records import Completion
from tests.harness.chat_strategies import unhurried
from tests.harness.replaying import Got, Replaying

BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
KINDS = {"vllm": "vllm", "vllm-reasoning": "vllm", "builtin": "vllm"}  # all others: any OpenAI-compatible server
ALL = [c for c in (*recordings(), *written()) if c.best("stream").status == 200]
SHORT = 4096  # streams up to here are split at every single place
BYTEWISE = 2048  # and up to here go through the relay byte by byte


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Replaying]]:
    home: Path = tmp_path_factory.mktemp("golden")
    with Replaying(home / "vllm", "vllm") as vllm, Replaying(home / "openai", "openai") as any_other:
        yield {"vllm": vllm, "openai": any_other}


def streams(case: Case) -> list[Answer]:
    found = [case.best("stream"), case.answers["plain", "stream"]]
    return list({a.body: a for a in found}.values())


# --- cutting


def splitter(answer: Answer) -> sse.EventSplitter | ndjson.NdjsonSplitter:
    return ndjson.NdjsonSplitter() if "ndjson" in answer.headers["content-type"] else sse.EventSplitter()


def cut(answer: Answer, pieces: list[bytes]) -> tuple[list[bytes], bytes]:
    feeding = splitter(answer)
    return [event.raw for piece in pieces for event in feeding.feed(piece)], feeding.remainder()


@pytest.mark.parametrize("case", ALL, ids=lambda c: c.id)
def test_events_are_the_same_at_every_boundary(case: Case) -> None:
    """Byte by byte, which is every boundary at once; short streams also split once, at each single place."""
    for answer in streams(case):
        whole = cut(answer, [answer.body])
        assert b"".join(whole[0]) + whole[1] == answer.body and whole[0]
        assert cut(answer, [answer.body[i : i + 1] for i in range(len(answer.body))]) == whole
        assert cut(answer, answer.pieces) == whole
        if len(answer.body) <= SHORT:
            for at in range(1, len(answer.body)):
                assert cut(answer, [answer.body[:at], answer.body[at:]]) == whole


# --- folding


def folded(case: Case, answer: Answer) -> list[Reply]:
    dialect: Dialect = BY_NAME[case.dialect].of(case.request)
    fold, feeding = dialect.fold(), splitter(answer)
    for event in [*feeding.feed(answer.body), *([sse.Event(rest)] if (rest := feeding.remainder()) else [])]:
        data = event.data
        if data is not None and data.startswith(b"{"):
            fold.add(json.loads(data))
    assert fold.failed is None
    return fold.replies()


def as_choice(reply: Reply) -> Choice:
    calls = (call["function"] for call in reply.message.get("tool_calls") or ())
    used = reply.usage
    return Choice(
        text=reply.text,
        reasoning=reply.message.get("reasoning_content") or reply.message.get("reasoning") or "",
        calls=tuple((f["name"], json.loads(f["arguments"])) for f in calls),
        finish=reply.finish_reason,
        usage=(used["prompt_tokens"], used["completion_tokens"]) if used else None,
        prompt_ids=reply.prompt_token_ids,
        ids=reply.token_ids,
        logprobs=reply.logprobs,
    )


# Where a server's stream says something else than its own whole answer. By server, dialect and case ("" = all), the
# members that differ, and why. Nothing here is ours to put right; that it is still so is tested, too.
DIFFERS: dict[tuple[str, str, str], tuple[set[str], str]] = {
    ("llama.cpp", "chat", "logprobs"): ({"logprobs"}, "a stream has none for the token that ends it"),
    ("llama.cpp", "chat", "logprobs-unicode"): ({"logprobs"}, "likewise"),
    ("llama.cpp", "chat", "no-usage"): ({"usage"}, "a stream counts only where that is asked for"),
    ("mlx-lm", "chat", "no-usage"): ({"usage"}, "likewise"),
    ("mlx-lm", "completions", "no-usage"): ({"usage"}, "likewise"),
    ("builtin", "chat", "no-usage"): ({"usage"}, "likewise"),
    ("vllm", "chat", "no-usage"): ({"usage"}, "likewise"),
    ("vllm", "completions", "no-usage"): ({"usage"}, "likewise"),
    ("vllm", "completions", "echo"): ({"prompt_ids"}, "a stream brings the prompt's ids unasked"),
    ("vllm-reasoning", "chat", "reasoned-tool"): ({"text"}, "a whole answer loses the white space before a call"),
    ("vllm-reasoning", "messages", "reasoned-tool"): ({"text"}, "likewise"),
    ("vllm-reasoning", "responses", "reasoned-tool"): ({"text", "logprobs"}, "likewise"),
    ("vllm-reasoning", "responses", "reasoning"): ({"logprobs"}, "a stream has them, a whole answer has none"),
    **{
        ("vllm", "responses", name): (
            {"logprobs"},
            "a stream has none for tokens that bring no text: the last one, parts of UTF-8",
        )
        for name in ("text", "unicode", "reasoning", "reasoned-tool", "tools", "after-tool", "logprobs")
    },
    **{
        (server, dialect, "no-usage"): ({"usage"}, "a stream counts only where that is asked for")
        for server in ("ollama-0.9.6", "ollama-main")
        for dialect in ("chat", "completions")
    },
    ("ollama-main", "responses", "tools"): ({"text"}, "a whole answer leaves out what was said before the calls"),
    ("mlx-lm", "chat", "logprobs"): ({"logprobs"}, "streams carry none"),
    ("mlx-lm", "chat", "logprobs-unicode"): ({"logprobs"}, "likewise"),
    ("mlx-lm", "chat", "logprobs-tool"): ({"logprobs"}, "likewise"),
}


def differing(case: Case) -> set[str]:
    found: set[str] = set()
    for (server, dialect, name), (members, _) in DIFFERS.items():
        if (server, dialect) == (case.server, case.dialect) and name in ("", case.name):
            found |= members
    return found


def unlike(found: Choice, expected: Choice) -> set[str]:
    different = {
        name
        for name in ("text", "reasoning", "calls", "finish", "usage", "prompt_ids", "ids")
        if getattr(found, name) != getattr(expected, name)
    }
    if (found.logprobs is None) != (expected.logprobs is None) or (
        found.logprobs is not None and found.logprobs != pytest.approx(expected.logprobs, abs=1e-3)
    ):
        different.add("logprobs")
    return different


@pytest.mark.parametrize("case", ALL, ids=lambda c: c.id)
def test_a_folded_stream_says_what_the_whole_answer_says(case: Case) -> None:
    expected = case.choices()
    found = [as_choice(reply) for reply in folded(case, case.best("stream"))]
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert unlike(one, other) == differing(case), (one, other)


@pytest.mark.parametrize("case", ALL, ids=lambda c: c.id)
def test_a_whole_answer_is_read_as_it_says(case: Case) -> None:
    body = json.loads(case.best("whole").body)
    found = [as_choice(reply) for reply in BY_NAME[case.dialect].of(case.request).whole(body)]
    assert not [unlike(one, other) for one, other in zip(found, case.choices(), strict=True) if one != other
                and unlike(one, other)]  # fmt: skip


# --- what the documentation says of it


def test_the_table_of_recordings_is_true() -> None:
    page = (Path(__file__).resolve().parents[1] / "docs/lab/dialects.md").read_text(encoding="utf-8")
    for told in servers():
        found = [c for c in recordings() if c.server == told["server"]]
        by_dialect = {d: [c.name for c in found if c.dialect == d] for d in BY_NAME}
        cells = ", ".join(f"{dialect} {len(names)}" for dialect, names in by_dialect.items() if names)
        assert f"| {told['server']} | {told['version']} | {told['recorded']} | {cells} |" in page, cells
    assert {c.server for c in recordings()} == {told["server"] for told in servers()}
    by_hand = ", ".join(sorted({c.server for c in written()}))
    assert f"by hand: {by_hand}" in page, by_hand


# --- through the proxy


def ask(proxies: dict[str, Replaying], case: Case, kind: str, pieces: list[bytes]) -> tuple[Got, Replaying]:
    """What a client that sends the recorded request gets, when the backend answers what it answered then."""
    proxy, answer = proxies[KINDS.get(case.server, "openai")], case.best(kind)
    request = {**case.request, "stream": kind == "stream"}
    if kind == "whole":
        request.pop("stream_options", None)
    got = proxy.run(proxy.ask(case.route, request, http_answer(answer.status, answer.headers, pieces)))
    # It was asked for what was recorded, and for nothing else.
    wishes = {k: json.loads(v) for k, v in VLLM.capabilities.capture_members.get(case.dialect, {}).items()}
    asks = KINDS.get(case.server) == "vllm" and not request.get("echo")
    sent = {**request, **{k: v for k, v in wishes.items() if asks and request.get(k) in (None, False)}}
    assert got.sent == (case.route, sent)
    assert got.status == 200 and got.id.startswith("rl-")
    return got, proxy


_VARYING = re.compile(
    rb'"(id|item_id|call_id|tool_use_id|created|created_at|completed_at)": ?("[^"]*"|[\d.]+)|'
    rb'"(total_duration|prompt_ms|predicted_ms)": ?[\d.]+'
)
_NULLED = re.compile(rb', "(token_ids|prompt_token_ids)": null')


def alike(raw: bytes) -> bytes:
    """Without what differs between two answers to the same question: ids and times."""
    return _VARYING.sub(rb'"\1":_', raw)


# What only we asked for, with something in it.
_LEFT = re.compile(
    rb'"(logprobs|token_ids|prompt_token_ids|input_messages|output_messages)": ?+[^n\[]|"logprobs": ?+\[[^\]]'
)
_OURS = ("logprobs", "token_ids", "prompt_token_ids", "input_messages", "output_messages", "top_logprobs")


def lines(raw: bytes) -> list[bytes]:
    return raw.split(b"\n")


def without(line: bytes) -> Any:
    """The line but for the values of what we asked for; the order of members counts."""
    at = line.find(b"{")
    return line if at < 0 else (line[:at], json.dumps(_pruned(json.loads(line[at:]))))


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: None if k in _OURS else _pruned(v) for k, v in value.items()}
    return [_pruned(one) for one in value] if isinstance(value, list) else value


def renamed(case: Case, answer: Answer, got: Got) -> bytes:
    """With our id for the answer's own. Ollama makes ids of items that have the answer's in them; these stay."""
    return answer.body.replace(b'"%s"' % answer.id(case.dialect), b'"%s"' % got.id.encode())


def check_client(case: Case, kind: str, got: Got) -> None:
    answer = case.best(kind)
    if ("asked", kind) not in case.answers:
        assert got.body == renamed(case, answer, got)
    else:
        # We asked for more than the client did, and it gets nothing of that; the rest is as it was sent.
        ours, theirs = lines(got.body), lines(renamed(case, answer, got))
        assert [without(line) for line in ours] == [without(line) for line in theirs]
        assert not _LEFT.search(got.body)
        if case.server == "builtin" and kind == "stream":  # which cuts its stream into the same pieces each time
            # It cannot even tell: this is what the server says to those who do not ask (and leaves out, for null).
            assert _NULLED.sub(b"", alike(got.body)) == alike(case.answers["plain", kind].body)
    assert got.headers["content-type"] == answer.headers["content-type"]


def check_capture(case: Case, kind: str, got: Got, proxy: Replaying) -> None:
    check_rows(case, kind, [proxy.run(proxy.captured(choice_id(got.id, i))) for i in range(len(case.choices()))])


def check_rows(case: Case, kind: str, rows: Sequence[Completion | None]) -> None:
    """What is stored of each choice is what the server's own whole answer says."""
    for row, other in zip(rows, case.choices(), strict=True):
        assert row is not None and row.status == "done" and row.end is not None and row.end.reply is not None
        reply = json.loads(row.end.reply.body)
        calls = [call["function"] for call in reply.get("tool_calls") or ()]
        used = row.end.usage
        one = Choice(
            text=row.end.text,
            reasoning=other.reasoning,  # not kept in the tree
            calls=tuple((f["name"], f["arguments"]) for f in calls),
            finish=row.end.finish_reason,
            usage=(used["prompt_tokens"], used["completion_tokens"]) if used else None,
            prompt_ids=row.end.prompt_token_ids,
            ids=row.end.token_ids,
            logprobs=row.end.logprobs,
        )
        assert unlike(one, other) == (differing(case) - {"reasoning"} if kind == "stream" else set())
        complete = one.ids is not None and one.logprobs is not None and len(one.ids) == len(one.logprobs)
        assert row.end.exact == complete, row.end.inexact_reason


@pytest.mark.parametrize("case", ALL, ids=lambda c: c.id)
def test_replayed_through_the_proxy(proxies: dict[str, Replaying], case: Case) -> None:
    """With the server's own chunks, headers and framing; streamed, and whole."""
    for kind in ("stream", "whole"):
        got, proxy = ask(proxies, case, kind, case.best(kind).pieces)
        check_client(case, kind, got)
        check_capture(case, kind, got, proxy)


@pytest.fixture
async def socketless(tmp_path: Path) -> AsyncIterator[dict[str, Socketless]]:
    both = {kind: Socketless(tmp_path / kind, kind) for kind in ("vllm", "openai")}
    for proxy in both.values():
        await proxy.start()
    yield both
    for proxy in both.values():
        await proxy.stop()


async def test_replayed_at_every_boundary(socketless: dict[str, Socketless]) -> None:
    """Through the whole relay a byte at a time: every boundary there is. `make fuzz` does the long streams, too."""
    for case in ALL:
        proxy, answer = socketless[KINDS.get(case.server, "openai")], case.best("stream")
        if len(answer.body) > BYTEWISE and "RLPROXY_FUZZ" not in os.environ:
            continue
        request = json.dumps({**case.request, "stream": True}).encode()
        single = [answer.body[i : i + 1] for i in range(len(answer.body))]
        response, body = await proxy.ask(case.route, request, Answering(200, answer.headers["content-type"], single))
        headers = {k.lower(): v for k, v in response.headers.items()}
        got = Got(response.status, headers, body, headers["x-rl-completion-id"], (case.route, None))
        check_client(case, "stream", got)
        rows = [await proxy.store.completions.get(choice_id(got.id, i)) for i in range(len(case.choices()))]
        check_rows(case, "stream", rows)


@unhurried
@given(data=st.data())
def test_replayed_at_any_boundaries(proxies: dict[str, Replaying], data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(ALL))
    body = case.best("stream").body
    cuts = sorted(data.draw(st.sets(st.integers(1, len(body) - 1), max_size=40)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    got, proxy = ask(proxies, case, "stream", pieces)
    check_client(case, "stream", got)
    check_capture(case, "stream", got, proxy)
