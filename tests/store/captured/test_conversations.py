"""A turn finds the conversation that it goes on with; older databases are told afterwards, with the same result."""

from __future__ import annotations

from typing import Any

from scripts.harness.records import end, new
from store.records import CompletionQuery, Message
from store.store import Store


def said(*texts: str) -> tuple[Message, ...]:
    """A person and a model in turn."""
    return tuple(Message(("user", "assistant")[at % 2], f'"{text}"'.encode()) for at, text in enumerate(texts))


async def say(store: Store, id: str, *texts: str, **fields: Any) -> None:
    """The last of the texts is the reply; what the thread is called is the whole of them."""
    *prompt, reply = said(*texts)
    above = "/".join(texts[:-2]).encode() or None
    await store.completions.record(
        [new(id, prompt=tuple(prompt), above=above, **fields)], [end(id, reply=reply, thread="/".join(texts).encode())]
    )


async def talks(store: Store) -> list[list[str]]:
    """By conversation, the newest first; turns oldest first."""
    found: dict[int, list[str]] = {}
    for row in (await store.inbox.page(CompletionQuery(limit=100))).rows:
        found.setdefault(row.conversation, []).insert(0, row.id)
    return list(found.values())


async def fill(store: Store) -> None:
    await say(store, "a1", "hi", "hello")
    await say(store, "b1", "hi", "hey")
    await say(store, "a2", "hi", "hello", "more", "so")
    await say(store, "a2 again", "hi", "hello", "more", "or so")
    await say(store, "b2", "hi", "hey", "bye", "bye")
    await say(store, "a3", "hi", "hello", "more", "so", "on", "yes")


async def test_a_turn_belongs_to_the_reply_above_it(store: Store) -> None:
    await fill(store)
    assert await talks(store) == [["a1", "a2", "a2 again", "a3"], ["b1", "b2"]]
    await store.completions.forget(["a1"])  # its name stays with the others
    assert await talks(store) == [["a2", "a2 again", "a3"], ["b1", "b2"]]
    await say(store, "a4", "hi", "hello", "more", "so", "on", "yes", "and", "end")
    assert await talks(store) == [["a2", "a2 again", "a3", "a4"], ["b1", "b2"]]


async def test_the_same_words_of_another_are_another_conversation(store: Store) -> None:
    await say(store, "a1", "hi", "hello", user="ann")
    await say(store, "b1", "hi", "hello", user="bob", session="s")
    await say(store, "a2", "hi", "hello", "more", "so", user="ann")
    await say(store, "b2", "hi", "hello", "more", "so", user="bob")
    await say(store, "s1", "hi", "hello", session="t")
    await say(store, "s2", "hi", "hello", "more", "ok", session="t")
    assert await talks(store) == [["s1", "s2"], ["b1", "b2"], ["a1", "a2"]]


async def test_a_shortened_history_goes_on_with_its_session(store: Store) -> None:
    await say(store, "s1", "hi", "hello", session="s")
    await say(store, "title", "name this", "a title", session="s", turn="side")
    await say(store, "s2", "a summary", "understood", "more", "so", session="s")
    await say(store, "fresh", "something else", "yes", session="s")
    await say(store, "unknown", "what was", "long ago", "more", "so")
    await say(store, "other", "a summary", "as they said", "and", "x", session="s", user="bob")
    assert await talks(store) == [["fresh", "other"], ["unknown"], ["s1", "s2"], ["title"]]
