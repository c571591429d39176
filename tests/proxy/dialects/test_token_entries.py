"""What servers without token ids say of each token: read, kept, and hidden from those who did not ask."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.backends.llamacpp import LlamaCpp
from proxy.backends.ollama import Ollama
from proxy.backends.sglang import SGLang
from proxy.backends.vllm import VLLM
from proxy.core.json_edit import Rules, loads, rewrite
from proxy.core.ndjson import Line
from proxy.core.sse import Event
from proxy.dialects import CHAT
from proxy.dialects.base import OutgoingRequest, Reply
from proxy.dialects.ollama import OllamaChat
from proxy.dialects.token_entries import take, take_unconstrained
from proxy.relay.codecs import Native, wishes, without
from proxy.relay.json_splice import Splicer
from store.captured.rows import as_text, pack_pieces, unpack_pieces

OLLAMA = OllamaChat()
HELLO = {"messages": [{"role": "user", "content": "hi"}], "model": "m"}
ENTRY = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}


def question(dialect: Any, **more: Any) -> OutgoingRequest:
    body = {**HELLO, **more}
    return OutgoingRequest(json.dumps(body).encode(), {}, body, dialect.parse(body))


def way(dialect: Any, capabilities: Any, **more: Any) -> Native:
    asked = question(dialect, **more)
    return Native(dialect, asked, capabilities, "rl-1", None)


def event(choice: dict[str, Any], **more: Any) -> Event:
    body = {"id": "x", "choices": [{"index": 0, "finish_reason": None, **choice}], **more}
    return Event(b"data: " + json.dumps(body).encode() + b"\n\n")


def test_what_entries_say() -> None:
    reply = Reply(0)
    take(reply, [ENTRY, {"token": " é", "logprob": -1, "bytes": None}, {"token": "�", "logprob": -2, "bytes": [226]}])
    assert reply.logprobs == [-0.5, -1.0, -2.0] and reply.pieces == [b"a", b" \xc3\xa9", b"\xe2"]
    take(reply, [{"token": "�", "logprob": -3}])  # which bytes, nobody knows
    take(reply, [ENTRY])
    assert reply.pieces is None and len(reply.logprobs) == 5


@given(pieces=st.none() | st.lists(st.binary(max_size=300), max_size=20))
def test_pieces_come_back_from_the_store(pieces: list[bytes] | None) -> None:
    assert unpack_pieces(pack_pieces(pieces)) == pieces
    assert as_text(pieces) is None or [one.encode("latin-1") for one in as_text(pieces) or []] == pieces


def test_what_is_asked_beside_a_request() -> None:
    def asked(capabilities: Any, dialect: Any = CHAT, **more: Any) -> set[str]:
        return set(wishes(dialect, question(dialect, **more).body, capabilities))

    assert asked(Ollama.capabilities) == {"logprobs"} == asked(Ollama.capabilities, OLLAMA)
    assert asked(LlamaCpp.capabilities, stream=True) == {"logprobs", "top_logprobs"}
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert asked(LlamaCpp.capabilities, stream=True, tools=tools) == set()  # it answers 400
    assert asked(LlamaCpp.capabilities, tools=tools) == {"logprobs", "top_logprobs"}
    assert asked(SGLang.capabilities, stream=True) == {"logprobs"}
    assert asked(SGLang.capabilities) == {"logprobs", "return_token_ids"}


def test_a_client_that_asks_gets_as_many_alternatives_as_it_would() -> None:
    assert way(CHAT, LlamaCpp.capabilities, logprobs=True).asks == {}
    assert set(way(CHAT, LlamaCpp.capabilities, logprobs=False).asks) == {"logprobs", "top_logprobs"}


def test_a_member_that_the_server_leaves_out_is_left_out() -> None:
    sent = event({"delta": {"content": "a"}, "logprobs": {"content": [ENTRY]}})
    hidden = way(CHAT, Ollama.capabilities, stream=True).event(sent)
    assert loads(hidden[6:])["choices"][0] == {"index": 0, "finish_reason": None, "delta": {"content": "a"}}
    assert loads(way(CHAT, Ollama.capabilities, stream=True, logprobs=True).event(sent)[6:])["choices"][0]["logprobs"]
    assert loads(way(CHAT, VLLM.capabilities, stream=True).event(sent)[6:])["choices"][0]["logprobs"] is None


def test_an_event_for_log_probs_alone_is_not_passed_on() -> None:
    """Ollama sends them while it holds a call back; one that says who speaks goes on, without its log-probs."""
    stream = way(CHAT, Ollama.capabilities, stream=True)
    lone = {"logprobs": {"content": [ENTRY]}}
    speaks = {"role": "assistant", "content": ""}
    assert loads(stream.event(event({"delta": speaks, **lone}))[6:])["choices"][0]["delta"] == speaks
    assert stream.event(event({"delta": speaks, **lone})) == b""
    assert stream.event(event({"delta": {"content": ""}, **lone})) == b""
    call = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]}
    said = loads(stream.event(event({"delta": {"content": "", **call}, **lone}))[6:])
    assert said["choices"][0]["delta"] == {"content": "", **call}
    last = {"delta": {"content": ""}, "finish_reason": "stop", **lone}
    assert b"logprobs" not in stream.event(event(last)) != b""
    theirs = way(CHAT, Ollama.capabilities, stream=True, logprobs=True)
    assert theirs.event(event({"delta": {"content": ""}, **lone})) != b""


def test_lines_of_ollama() -> None:
    stream = way(OLLAMA, Ollama.capabilities)
    held = {"model": "m", "message": {"role": "assistant", "content": ""}, "logprobs": [ENTRY], "done": False}
    assert OLLAMA.only_tokens(held) and not OLLAMA.only_tokens({**held, "done": True})
    said = {**held, "message": {"role": "assistant", "content": "a"}}
    line = Line(json.dumps(said).encode() + b"\n")
    assert loads(stream.event(line)) == {k: v for k, v in said.items() if k != "logprobs"}


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('a"\\{}[],', max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=5,
)
_objects = st.dictionaries(st.sampled_from(["a", "logprobs", "choices", "é"]), _values, max_size=4)
RULES: tuple[Rules, ...] = ({"logprobs": None}, {"choices": {"*": {"logprobs": None}}, "a": b'"x"'})


@pytest.mark.parametrize("rules", RULES)
@given(
    body=_objects | st.fixed_dictionaries({"choices": st.lists(_objects, max_size=3), "a": _values}),
    indent=st.booleans(),
)
def test_taken_out_by_a_search_as_by_looking_at_every_token(rules: Rules, body: dict[str, Any], indent: bool) -> None:
    raw = json.dumps(body, indent=1 if indent else None, ensure_ascii=False).encode()
    assert Splicer(rules).edited(raw, loads(raw)) == rewrite(raw, rules)


def test_rules_without_a_member() -> None:
    rules: Rules = {"id": b'"x"', "choices": {"*": {"logprobs": b"null", "token_ids": b"null"}}}
    assert without(rules, {"logprobs"}) == {"id": b'"x"', "choices": {"*": {"logprobs": None, "token_ids": b"null"}}}


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_constrained_reply_has_both_log_probs_and_hides_the_second(is_stream: bool) -> None:
    fold = CHAT.fold()
    parts = [(1, -0.0, -9.5), (2, -0.5, -0.5)]
    if is_stream:
        for id, logprob, unconstrained in parts:
            entry = {**ENTRY, "logprob": logprob}
            choice = {"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [entry]}, "token_ids": [id]}
            fold.add({"choices": [{**choice, "unconstrained_logprobs": [unconstrained]}], "prompt_token_ids": [7]})
    else:
        entries = [{**ENTRY, "logprob": logprob} for _, logprob, _ in parts]
        choice = {"index": 0, "message": {"content": "aa"}, "logprobs": {"content": entries}, "token_ids": [1, 2]}
        choice["unconstrained_logprobs"] = [-9.5, -0.5]
        fold.take_whole({"choices": [choice], "prompt_token_ids": [7]})
    (reply,) = fold.replies()
    assert (reply.logprobs, reply.unconstrained_logprobs) == ([0.0, -0.5], [-9.5, -0.5])
    assert reply.inexact_reason() is None
    reply.unconstrained_logprobs = [-9.5]
    assert reply.inexact_reason() == "2 log-probs but 1 without the constraint"
    rules = CHAT.rules(id="rl-1", model=None, parsed=CHAT.parse(HELLO))
    raw = json.dumps({"choices": [{"unconstrained_logprobs": [-1.0], "token_ids": [1]}]}).encode()
    assert loads(rewrite(raw, rules))["choices"] == [{"unconstrained_logprobs": None, "token_ids": None}]


def test_odd_log_probs_without_the_constraint_make_it_inexact() -> None:
    reply = Reply(0)
    take_unconstrained(reply, None)
    assert reply.unconstrained_logprobs is None and reply.broken_logprobs is None
    take_unconstrained(reply, [None])
    assert "not a number" in (reply.broken_logprobs or "")


def test_a_biased_request_is_not_exact() -> None:
    assert CHAT.parse({**HELLO, "logit_bias": {"5": 3}}).unclear == ("logit_bias",)
    assert CHAT.parse({**HELLO, "logit_bias": {}}).unclear == ()
