"""Answers that are stored by the group: the same rows as one after the other."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.harness.records import end, new
from store.captured.recording import MOST, record
from store.captured.tree import chain
from store.errors import DuplicateCompletion
from store.file import schema
from store.records import FinishedCompletion, Item, Message, NewCompletion, PromptLesson
from store.store import Store

TABLES = ("completions", "listed", "messages", "completion_system", "completion_lessons", "requests", "prompt_blocks",
          "blobs", "message_blobs", "items")  # fmt: skip
PICTURE = '{"content":[{"image_url":{"url":"data:image/png;base64,' + "QUJD" * 40 + '"}}]}'

Answer = tuple[NewCompletion, FinishedCompletion]


def said(role: str, text: str) -> Message:
    return Message(role, f'{{"content":"{text}"}}'.encode())


def talk(dice: random.Random, name: str) -> list[Answer]:
    """Turns of one conversation, each with all that was said before it."""
    system = said(
        dice.choice(("system", "developer")), f"Be brief. {dice.randrange(2)} " + "x" * dice.choice((0, 5000))
    )
    prompt = [system] * dice.randrange(2)
    found: list[Answer] = []
    above = None
    for turn in range(dice.randint(1, 4)):
        question = Message("user", PICTURE.encode()) if dice.random() < 0.2 else said("user", f"{name} {turn}")
        prompt.append(question)
        reply = said("assistant", f"yes {dice.randrange(3)}") if dice.random() < 0.9 else None
        begun = new(
            f"{name}-{turn}", prompt=tuple(prompt), above=above, session=dice.choice((None, name, "shared")),
            request=b'{"tools":"%s"}' % (b"t" * dice.choice((1, 600))), tool_errors=("c",) * dice.randrange(2),
            lessons=(PromptLesson("r", "be kind", False),) * dice.randrange(2),
        )  # fmt: skip
        ended = replace(
            end(begun.id), reply=reply, prompt_token_ids=list(range(dice.choice((5, 3000)))),
            thread=dice.choice((None, f"thread {name} {turn}".encode())), items=(Item(f"i-{begun.id}", "message"),),
        )  # fmt: skip
        found.append((begun, ended))
        if reply is not None:
            prompt.append(reply)
            above = ended.thread or chain([one for one in prompt if one.role not in ("system", "developer")])[-1]
    return found


def stored(folder: Path, groups: Sequence[Sequence[Answer]]) -> dict[str, list[str]]:
    folder.mkdir()
    with closing(schema.open_database(folder / schema.NAME)) as db:
        for group in groups:
            db.execute("BEGIN IMMEDIATE")
            record(db, group)
            db.execute("COMMIT")
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        return {table: sorted(repr(tuple(row)) for row in db.execute(f"SELECT * FROM {table}")) for table in TABLES}


@pytest.mark.parametrize("seed", range(12))
def test_a_group_leaves_the_rows_that_one_after_the_other_leave(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    talks = [talk(dice, f"t{n}") for n in range(dice.choice((1, 3, 2 * MOST)))]
    if dice.random() < 0.5:  # turns of several conversations between one another
        answers = [turn for turns in zip_longest(talks) for turn in turns]
    else:
        answers = [turn for one in talks for turn in one]
    alone = stored(tmp_path / "alone", [[one] for one in answers])
    assert stored(tmp_path / "together", [answers]) == alone
    assert len(alone["completions"]) == len(answers) and alone["messages"] and alone["items"]


def zip_longest(talks: list[list[Answer]]) -> list[list[Answer]]:
    return [[one[turn] for one in talks if turn < len(one)] for turn in range(max(map(len, talks)))]


async def test_of_a_group_only_the_one_whose_id_exists_is_refused(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    try:
        await store.completions.record([new("b")], [end("b")])
        waiting = [store.completions.record([new(id)], [end(id, text=f"second {id}")]) for id in ("a", "b", "c", "c")]
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(one) for one in results] == [type(None), DuplicateCompletion, type(None), DuplicateCompletion]
        assert "'b'" in str(results[1]) and "'c'" in str(results[3])
        kept = {one.new.id: one.end.text for one in await store.completions.many(["a", "b", "c"]) if one.end}
        assert kept == {"a": "second a", "b": end("b").text, "c": "second c"}
    finally:
        await store.close()


async def test_rows_and_other_operations_keep_their_order(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    try:
        seen: list[int] = []

        def count(db: sqlite3.Connection) -> None:
            seen.append(db.execute("SELECT count(*) FROM completions").fetchone()[0])

        waiting: list[asyncio.Future[None]] = []
        for n in range(6):
            waiting.append(store.completions.record([new(f"c{n}")], [end(f"c{n}")]))
            if n % 2:
                waiting.append(store._writer.submit(count))
        await asyncio.gather(*waiting)
        assert seen == [2, 4, 6] and store.commits <= 7
    finally:
        await store.close()
