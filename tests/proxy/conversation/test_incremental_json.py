from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.conversation import incremental_json as module
from proxy.conversation.incremental_json import Body, EarlierBodies, _common
from proxy.core import bounded_cache
from proxy.core.json_edit import loads

TEXTS = ("hello", "}]", '"],"messages":[{', "\\", 'a "quoted" one', "ä\u2028é", "", "\ud800", ", {")
NAMES = ("model", "stream", "tools", "messages", "input", "stop", "metadata", "a\\b", "")
numbers = st.one_of(st.integers(-3, 3), st.just(2**70), st.floats(allow_infinity=False))
small = st.one_of(st.none(), st.booleans(), numbers, st.sampled_from(TEXTS))
names = st.sampled_from(NAMES)
values = st.recursive(small, lambda below: st.lists(below, max_size=3) | st.dictionaries(names, below, max_size=3))
message = st.builds(lambda role, said: {"role": role, "content": said}, st.sampled_from(("user", "tool")), values)
talks = st.lists(st.one_of(message, message, message, values), max_size=6)


@pytest.fixture(autouse=True)
def everything_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST", 1)


def as_text(members: list[tuple[str, Any]], style: int) -> bytes:
    """A body; members may come twice."""
    if style == 0:
        texts = [json.dumps(name) + ":" + json.dumps(value, separators=(",", ":")) for name, value in members]
        return ("{" + ",".join(texts) + "}").encode("utf-8", "surrogatepass")
    texts = [json.dumps(name) + " : " + json.dumps(value, indent=style) for name, value in members]
    return ("{\n" + " ,\n".join(texts) + "\n}\n").encode()


def is_same(found: Any, right: Any) -> bool:
    """Also the order of members, and 1, 1.0 and true are told apart."""
    return repr(found) == repr(right)


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Bodies that go on, go back, say the last thing in other words, and change what is around them."""
    style = draw(st.sampled_from((0, 0, 1)))
    name = draw(st.sampled_from(("messages", "messages", "input")))
    head = draw(st.lists(st.tuples(names, values), max_size=3))
    foot = draw(st.lists(st.tuples(names, values), max_size=3))
    talk: list[Any] = draw(talks)
    bodies = []
    for _ in range(draw(st.integers(1, 5))):
        match draw(st.sampled_from(("on", "on", "on", "back", "words", "around", "twice"))):
            case "on":
                talk = [*talk, *draw(talks)]
            case "back":
                talk = talk[: draw(st.integers(0, len(talk)))]
            case "words" if talk:
                talk = [*talk[:-1], draw(message)]
            case "around":
                foot = draw(st.lists(st.tuples(names, values), max_size=3))
            case "twice":
                foot = [*foot, (name, draw(talks))]
        bodies.append(as_text([*head, (name, talk), *foot], style))
    return bodies


@given(conversations())
@settings(deadline=None, max_examples=100)
def test_what_is_read_is_what_would_be_parsed(bodies: list[bytes]) -> None:
    before = EarlierBodies()
    for raw in bodies:
        body = before.read(raw, before.find_prefix(raw))
        assert is_same(body.parsed, loads(raw))
        # None can be hidden in what an earlier body had.
        assert body.marks == (raw.count(b"{"), raw.count(b"["), raw.count(b","))
        before.remember(body)


@given(conversations(), st.integers(0, 10_000), st.binary(max_size=2))
@settings(deadline=None, max_examples=100)
def test_what_is_no_json_is_refused_as_ever(bodies: list[bytes], at: int, garbage: bytes) -> None:
    before = EarlierBodies()
    for raw in bodies:
        before.remember(before.read(raw, before.find_prefix(raw)))
        at %= len(raw)
        broken = raw[:at] + garbage + raw[at + len(garbage) :]
        try:
            right = loads(broken)
        except ValueError as error:
            with pytest.raises(type(error)):
                before.read(broken, before.find_prefix(broken))
        else:
            assert is_same(before.read(broken, before.find_prefix(broken)).parsed, right)


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60))
def test_common(both: bytes, one: bytes, other: bytes) -> None:
    same = _common(both + one, both + other)
    left, right = both + one, both + other
    assert left[:same] == right[:same] and same >= len(both)
    assert same == min(len(left), len(right)) or left[same] != right[same]


def talk(turns: int, **members: Any) -> bytes:
    messages = [{"role": "user" if at % 2 == 0 else "assistant", "content": f"said {at} }}],"} for at in range(turns)]
    return orjson.dumps({"model": "m", "messages": messages, "stream": True, **members})


def read(before: EarlierBodies, raw: bytes) -> Body:
    body = before.read(raw, before.find_prefix(raw))
    before.remember(body)
    return body


def test_only_what_is_new_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    before, parsed = EarlierBodies(), []
    first = read(before, talk(101, tools=[{"name": "run"}]))
    real = orjson.loads
    monkeypatch.setattr(module.orjson, "loads", lambda raw: parsed.append(len(raw)) or real(raw))
    monkeypatch.setattr(module, "loads", lambda raw: pytest.fail("all of it was parsed"))
    for turns in (103, 105):
        found = read(before, talk(turns, tools=[{"name": "run"}]))
        assert all(a is b for a, b in zip(first.parsed["messages"], found.parsed["messages"], strict=False))
    assert len(parsed) == 2 and max(parsed) < 300
    # An agent that marks its last message marks another one at the next turn.
    monkeypatch.undo()
    monkeypatch.setattr(module, "LEAST", 1)
    marked = orjson.loads(talk(107))
    marked["messages"][-1]["cache_control"] = {"type": "ephemeral"}
    found = read(before, orjson.dumps(marked))
    assert found.parsed == marked
    pairs = zip(found.parsed["messages"], read(before, talk(109)).parsed["messages"], strict=False)
    assert [a is b for a, b in pairs] == [True] * 106 + [False]


def test_one_of_a_conversation_is_remembered() -> None:
    before = EarlierBodies()
    for turns in (11, 13, 15):
        read(before, talk(turns))
    assert len(list(before._bodies)) == 1
    read(before, talk(5, model="other"))
    assert len(list(before._bodies)) == 2


def test_memory_is_bounded_in_number_bytes_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    before = EarlierBodies()
    for number in range(bounded_cache.MOST + 3):
        read(before, talk(3, user=f"u{number}").replace(b'"model":"m"', b'"model":"%d"' % number))
    assert len(list(before._bodies)) == bounded_cache.MOST
    monkeypatch.setattr(bounded_cache, "BYTES", 1000)
    read(before, talk(3, model="new"))
    assert sum(len(body.raw) for body in before._bodies) <= 1000
    count = len(list(before._bodies))
    read(before, talk(9))
    assert len(list(before._bodies)) == count, "a quarter of it all is too long for one"
    now = bounded_cache.time.monotonic()
    monkeypatch.setattr(bounded_cache.time, "monotonic", lambda: now + 2 * bounded_cache.KEPT_S)
    read(before, talk(3, model="newer"))
    assert len(list(before._bodies)) == 1
    before.clear()
    assert list(before._bodies) == []
