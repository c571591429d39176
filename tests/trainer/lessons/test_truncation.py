"""Where a conversation may be cut, on conversations of any shape that agents send."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trainer.lessons.truncation import Chat, cut, shorter_chats

Message = dict[str, Any]

words = st.text("abc", max_size=6)


def said(role: str) -> st.SearchStrategy[list[Message]]:
    return words.map(lambda text: [{"role": role, "content": text}])


@st.composite
def called(draw: st.DrawFn) -> list[Message]:
    """A call of some tools with a result each, perhaps with a system message in between."""
    names = draw(st.lists(words, min_size=1, max_size=3))
    call: Message = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": n}} for n in names]}
    results: list[Message] = [{"role": "tool", "content": n} for n in names]
    reminder: list[Message] = draw(st.sampled_from([[], [{"role": "system", "content": "mind"}]]))
    return [call, *reminder, *results]


steps = st.lists(st.one_of(said("user"), said("user"), said("assistant"), called()), max_size=12)
system = st.sampled_from([[], [{"role": "system", "content": "be brief"}], [{"role": "developer", "content": "x"}]])
chats = st.builds(
    # Each message is told from the next by its number.
    lambda system, steps: [{**m, "n": n} for n, m in enumerate([*system, *(m for step in steps for m in step)])],
    system,
    steps,
)


def size(chat: Chat) -> int:
    return sum(len(json.dumps(message)) for message in chat)


@given(chats, st.integers(0, 1500))
def test_a_cut_conversation_keeps_what_matters(chat: list[Message], room: int) -> None:
    kept = cut(chat, lambda shorter: size(shorter) <= room)
    shortest = shorter_chats(chat)[-1] if shorter_chats(chat) else chat
    if kept is None:
        assert size(shortest) > room or shortest == chat
        return
    assert size(kept) <= room
    places = [m["n"] for m in kept]
    assert places == sorted(places)
    assert len(kept) < len(chat)
    assert chat[-1] in kept
    assert [m for m in kept if m["role"] in ("system", "developer")] == [
        m for m in chat if m["role"] in ("system", "developer")
    ]
    users = [m for m in chat if m["role"] == "user"]
    rest = [m for m in kept if m["role"] not in ("system", "developer")]
    if users:
        assert users[-1] in kept
        assert rest[0]["role"] == "user"
    # A tool's results are there exactly where their call is.
    calls = None
    for message in chat:
        if message["role"] == "assistant":
            calls = message
        if message["role"] == "tool":
            assert (message in kept) == (calls in kept)
    # What went is older than what stayed, but for the last question.
    gone = [m["n"] for m in chat if m not in kept]
    assert max(gone) < min((m["n"] for m in rest if m != (users or [None])[-1]), default=len(chat))
    # And no less would have done.
    longer = [other for other in shorter_chats(chat) if len(other) > len(kept)]
    assert all(size(other) > room for other in longer)


def test_whole_turns_go_first_and_then_the_oldest_steps_of_the_last() -> None:
    chat = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u1"},
        {"role": "assistant", "content": "a1"},
        {"role": "user", "content": "u2"},
        {"role": "assistant", "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": "t1"},
        {"role": "assistant", "tool_calls": [{"id": "2"}]},
        {"role": "tool", "content": "t2"},
    ]
    assert shorter_chats(chat) == [[chat[0], *chat[3:]], [chat[0], chat[3], *chat[6:]]]


def test_one_turn_cannot_be_cut() -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert cut(chat, lambda shorter: True) is None
    assert cut([], lambda shorter: True) is None
