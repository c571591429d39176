from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.captured import tree
from store.captured.tree import chain, message_hash
from store.file import schema
from store.records import Message

bodies = st.sampled_from([b"", b"a", b"b", b"ab"]) | st.binary(max_size=4)
texts = st.builds(Message, st.sampled_from(["user", "assistant", "", "a", "us"]), bodies)
talks = st.lists(texts, max_size=6).map(tuple)


@pytest.fixture(scope="module")
def db() -> Iterator[sqlite3.Connection]:
    with TemporaryDirectory() as home, closing(schema.open_database(Path(home) / "x.db")) as db:
        yield db


def test_the_hash_is_the_same_for_ever() -> None:
    # Stored hashes name stored conversations: another algorithm needs a migration.
    assert message_hash(None, "user", b'"hello"').hex() == "48a988ebd1d400ebc6b993adb668b796"
    assert message_hash(b"p" * 16, "user", b'"hello"').hex() == "5a361e7ca948eb4c71ca26d7ac84e903"


@given(talks, talks)
def test_two_conversations_have_one_hash_only_if_they_are_the_same(
    one: tuple[Message, ...], other: tuple[Message, ...]
) -> None:
    assert (chain(one) == chain(other)) == (one == other)
    if one and other:
        assert (chain(one)[-1] == chain(other)[-1]) == (one == other)


@given(talks, talks)
def test_a_longer_conversation_keeps_the_hashes_of_its_beginning(
    start: tuple[Message, ...], rest: tuple[Message, ...]
) -> None:
    assert chain(start + rest)[: len(start)] == chain(start)


@given(st.binary(max_size=3), st.text(max_size=3), st.binary(max_size=3), st.integers(1, 2))
def test_bytes_moved_between_two_fields_are_another_message(parent: bytes, role: str, body: bytes, by: int) -> None:
    moved = message_hash(parent, role + "x" * by, body)
    assert moved != message_hash(parent, role, b"x" * by + body)
    assert moved != message_hash(parent + b"x" * by, role, body)


@given(st.lists(talks, max_size=5))
@settings(max_examples=40, deadline=None)
def test_each_conversation_is_read_as_it_was_added_and_each_message_is_stored_once(
    db: sqlite3.Connection, conversations: list[tuple[Message, ...]]
) -> None:
    db.execute("BEGIN")
    try:
        leaves = [tree.add(db, conversation) for conversation in conversations]
        nodes = tree.nodes(db.execute("SELECT * FROM messages"), {})
        assert set(nodes) == {hash for conversation in conversations for hash in chain(conversation)}
        for leaf, conversation in zip(leaves, conversations, strict=True):
            assert tree.path(nodes, leaf) == conversation
        tree.prune(db, [leaf for leaf in leaves if leaf])
        assert db.execute("SELECT count(*) FROM messages").fetchone()[0] == 0
    finally:
        db.execute("ROLLBACK")


@given(talks, texts)
@settings(max_examples=30, deadline=None)
def test_prune_stops_where_something_still_hangs(
    db: sqlite3.Connection, shared: tuple[Message, ...], own: Message
) -> None:
    db.execute("BEGIN")
    try:
        leaf = tree.add(db, (*shared, own))
        kept = tree.add(db, (*shared, Message("kept", b"")))
        assert leaf is not None
        tree.prune(db, [leaf])
        left = tree.nodes(db.execute("SELECT * FROM messages"), {})
        assert set(left) == set(chain((*shared, Message("kept", b""))))
        assert kept in left
    finally:
        db.execute("ROLLBACK")


@given(st.lists(st.sampled_from(("system", "user", "assistant", "developer")), max_size=8))
def test_a_prompt_is_taken_apart_and_put_together(roles: list[str]) -> None:
    prompt = [Message(role, b"%d" % at) for at, role in enumerate(roles)]
    names = [b"n%d" % at for at in range(len(prompt))]
    asides = tree.places(prompt)
    for known in (None, asides):
        together, hashes = tree.tree_part(prompt, names, known)
        assert list(together) == [message for message in prompt if message.role not in tree.SYSTEM_ROLES]
        assert list(hashes or ()) == [b"n" + message.body for message in together]
        assert tree.tree_part(prompt, None, known)[1] is None
        assert tree.whole(together, [(at, prompt[at]) for at in asides]) == tuple(prompt)


@pytest.mark.parametrize("known", [0, 1, 2, 1000, 2498, 2499, 2500])
def test_what_is_new_is_found_with_few_looks(db: sqlite3.Connection, known: int) -> None:
    talk = [Message("user", b"%d of %d" % (n, known)) for n in range(2500)]
    tree.add(db, talk[:known])
    asked: list[str] = []
    db.set_trace_callback(asked.append)
    leaf = tree.add(db, talk)
    db.set_trace_callback(None)
    assert sum(sql.startswith("SELECT") for sql in asked) < 30
    stored = {row["hash"] for row in db.execute("SELECT hash FROM messages")}
    assert leaf == chain(talk)[-1] and stored >= set(chain(talk))
