"""What a person has forgotten is gone: rows, words, pictures, and from the database's own file."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from scripts.harness.records import adapter, claim, end, new, put, rating
from store.errors import InOpenRun
from store.file import schema
from store.records import CompletionQuery, Message, NewReaction, NewSignal
from store.store import Store
from tests.store.engines import in_file


async def talk(store: Store, id: str, text: str, **fields: object) -> None:
    """A conversation of its own, with these words in question and answer."""
    prompt = (Message("user", b'{"content":"asks %s"}' % text.encode()),)
    reply = Message("assistant", b'{"content":"says %s"}' % text.encode())
    await store.completions.record(
        [new(id, prompt=prompt, asked=f"asks {text}", **fields)], [end(id, reply=reply, text=text)]
    )


def bytes_of(home: Path) -> bytes:
    return b"".join(file.read_bytes() for file in home.iterdir() if file.name.startswith(schema.NAME))


@in_file
async def test_a_session_leaves_nothing_behind(store: Store, tmp_path: Path) -> None:
    await talk(store, "a", "zanzibar", session="s")
    await talk(store, "b", "quokka", session="t")
    await store.ratings.rate(rating("a", comment="zanzibar again"))
    await store.inbox.index_words()
    assert b"zanzibar" in bytes_of(tmp_path)
    found = await store.erasure.look("session", "s")
    assert found.completions == ("a",) and len(found.ratings) == 1 and found.trained == ()
    assert await store.completions.get("a") is not None  # looking touches nothing
    assert (await store.erasure.forget("session", "s", "ann")).completions == ("a",)
    assert await store.completions.get("a") is None and await store.ratings.history("a") == []
    assert [row.id for row in (await store.inbox.page(CompletionQuery(search="asks"))).rows] == ["b"]
    assert (await store.inbox.page(CompletionQuery(search="zanzibar"))).rows == []
    left = bytes_of(tmp_path)
    assert b"zanzibar" not in left and b"quokka" in left
    (line,) = await store.meta.audit_log(1)
    assert line["act"] == "forget" and line["detail"]["completions"] == 1 and "s" not in line["detail"].values()


@in_file
async def test_words_leave_a_large_index_too(store: Store, tmp_path: Path) -> None:
    for start in range(0, 900, 30):  # many segments, as they come to be behind the capture
        names = [f"c{n}" for n in range(start, start + 30)]
        # FTS5 stores a term by what it adds to the one before, so only a beginning of its own is seen whole.
        texts = [
            f"word{n} {'zanzibar' if n == 123 else 'quokka'} {' '.join(f'w{n * k % 997}' for k in range(40))}"
            for n in range(start, start + 30)
        ]
        await store.completions.record(
            [new(name) for name in names],
            [end(name, text=text, reply=None) for name, text in zip(names, texts, strict=True)],
        )
        await store.inbox.index_words()
    assert [row.id for row in (await store.inbox.page(CompletionQuery(search="word123"))).rows] == ["c123"]
    assert b"zanzibar" in bytes_of(tmp_path)
    await store.erasure.forget("completion", "c123", "ann")
    assert (await store.inbox.page(CompletionQuery(search="word123"))).rows == []
    assert len((await store.inbox.page(CompletionQuery(search="word", limit=1000))).rows) == 899
    await store.erasure.overwrite_gaps()
    left = bytes_of(tmp_path)
    assert b"zanzibar" not in left and b"quokka" in left


@in_file
async def test_pictures_that_nobody_else_uses_go(store: Store, tmp_path: Path) -> None:
    mine, shared = (os.urandom(300) for _ in range(2))

    def says(*pictures: bytes) -> tuple[Message, ...]:
        urls = ",".join(f'"data:image/png;base64,{base64.b64encode(p).decode()}"' for p in pictures)
        return (Message("user", f'{{"content":[{urls}]}}'.encode()),)

    await store.completions.record(
        [new("a", prompt=says(mine, shared)), new("b", prompt=says(shared))], [end("a"), end("b")]
    )
    await store.erasure.forget("completion", "a", "ann")
    left = bytes_of(tmp_path)
    assert mine not in left and shared in left
    kept = await store.completions.get("b")
    assert kept is not None and kept.new.prompt == says(shared)


async def test_a_rater_goes_and_the_answers_stay(store: Store) -> None:
    await put(store, "a")
    await store.ratings.rate(rating("a", rater="ann"))
    await store.ratings.rate(rating("a", -1.0, rater="ann"))  # the history, too
    await store.ratings.rate(rating("a", rater="bob"))
    found = await store.erasure.forget("rater", "ann", "ann")
    assert found.completions == () and len(found.ratings) == 2
    assert [r.rater for r in await store.ratings.history("a")] == ["bob"]
    listed = await store.inbox.get("a")
    assert listed is not None and [r.rater for r in listed.ratings] == ["bob"]


async def test_a_raters_reactions_go_too_and_come_back_as_no_rating(store: Store) -> None:
    await put(store, "a")
    await store.reactions.react(NewReaction("a", "ann", "slack", "1", "c 1", "thumbsup", 1.0, 1.0))
    found = await store.erasure.forget("rater", "ann", "ann")
    assert len(found.ratings) == 1 and found.reactions == 1
    await store.reactions.react(NewReaction("a", "ann", "slack", "2", "c 1", "thumbsdown", None, 2.0))
    assert await store.ratings.live("a", "ann") is None
    again = await store.erasure.look("rater", "ann")  # what was taken back names them as well
    assert again.ratings == () and again.reactions == 1
    await store.erasure.forget("rater", "ann", "ann")
    assert (await store.erasure.look("rater", "ann")).reactions == 0


async def test_versions_that_were_trained_on_it_are_named(store: Store) -> None:
    await put(store, "a", "b", user="ann")
    first = await store.ratings.rate(rating("a"))
    run, _ = await claim(store, held_share=0.0)
    await store.runs.publish(run.id, adapter(1, run.id), {"samples": {first.id: {"used": True}}}, 0.0)
    second = await store.ratings.rate(rating("b"))
    run, _ = await claim(store, held_share=0.0, version=2)
    samples = {first.id: {"used": True}, second.id: {"used": True}}  # the first one trained once more
    await store.runs.publish(run.id, adapter(2, run.id), {"samples": samples}, 0.0)
    await put(store, "c")
    await store.ratings.rate(rating("c"))
    run, _ = await claim(store, held_share=0.0, version=3, live=2)
    child = adapter(3, run.id)
    await store.runs.publish(
        run.id, type(child)(**{f: getattr(child, f) for f in child.__slots__} | {"parent": 2}), {}, 0.0
    )
    assert (await store.erasure.look("completion", "a")).trained == (1, 2)
    found = await store.erasure.look("completion", "b")
    assert (found.trained, found.heirs) == ((2,), (3,))
    assert (await store.erasure.look("user", "ann")).trained == (1, 2)
    assert (await store.erasure.look("completion", "c")).heirs == ()


async def test_a_version_that_was_given_back_has_learned_from_it_too(store: Store) -> None:
    """Its files are there, and a person may have made it live."""
    await put(store, "a", "b")
    first = await store.ratings.rate(rating("a"))
    run, _ = await claim(store, held_share=0.0)
    await store.runs.publish(run.id, adapter(1, run.id), {}, 0.0)
    await store.ratings.rate(rating("b"))
    run, _ = await claim(store, held_share=0.0, version=2)
    await store.runs.publish(run.id, adapter(2, run.id), {"samples": {first.id: {"used": True}}}, 0.0)
    await store.runs.give_back(run.id, "the server cannot load it")
    assert (await store.erasure.look("completion", "b")).trained == (2,)
    assert (await store.erasure.look("completion", "a")).trained == (1, 2)
    run, _ = await claim(store, held_share=0.0, version=3)
    await store.runs.end(run.id, "rejected", "the gate", None)
    assert (await store.erasure.look("completion", "b")).trained == (2,)
    await store.erasure.forget("completion", "b", "ann", retrain=True)
    gone = await store.versions.get(2)
    assert gone is not None and gone.is_deleted


async def test_not_while_a_run_trains_on_it(store: Store) -> None:
    await put(store, "a")
    await store.ratings.rate(rating("a"))
    run, _ = await claim(store)
    assert (await store.erasure.look("completion", "a")).open_run == run.id
    with pytest.raises(InOpenRun):
        await store.erasure.forget("completion", "a", "ann")
    assert await store.completions.get("a") is not None
    await store.runs.end(run.id, "failed", "cancelled", None)
    await store.erasure.forget("completion", "a", "ann")
    assert await store.completions.get("a") is None


async def test_what_run_folders_owe_outlives_a_crash(store: Store) -> None:
    await put(store, "a", "b")
    one = await store.ratings.rate(rating("a"))
    await store.erasure.forget("completion", "a", "ann")
    owed = await store.erasure.owed_to_run_folders()
    assert owed == {"completions": ["a"], "ratings": [one.id]}
    await store.erasure.forget("completion", "b", "ann")  # meanwhile
    await store.erasure.note_run_folders_cleaned(owed)
    assert await store.erasure.owed_to_run_folders() == {"completions": ["b"], "ratings": []}


async def test_nothing_of_that_name(store: Store) -> None:
    found = await store.erasure.forget("session", "none", "ann")
    assert found.completions == () and await store.meta.audit_log() == []


async def test_what_a_judge_heard_goes_with_the_message_it_was_in(store: Store, tmp_path: Path) -> None:
    """Also out of ratings that were taken back since: a signal names only the last of them."""
    await talk(store, "a", "quokka")
    await talk(store, "b", "zanzibar")
    await store.signals.add(NewSignal("a", "message", "zanzibar, please", "b"))
    for n in range(2):
        judged = rating("a", -1.0, rater="judge:x", comment=f"zanzibar {n}", source="judge", human=False)
        last = await store.ratings.rate(judged)
        await store.ratings.retract(last.id)
    await store.ratings.rate(rating("a", rater="ann", comment="of the answer"))
    await store.erasure.forget("completion", "b", "ann")
    assert [one.rater for one in await store.ratings.history("a")] == ["ann"]
    assert b"zanzibar" not in bytes_of(tmp_path)


async def test_an_answer_goes_also_where_its_signals_have_lost_several_requests(store: Store) -> None:
    """Each says something of the answer before it; without their requests they would be twice the same."""
    for id in ("a", "b", "c"):
        await talk(store, id, id)
    for following in ("b", "c"):
        assert await store.signals.add(NewSignal("a", "message", f"words in {following}", following))
    for id in ("b", "c"):
        await store.erasure.forget("completion", id, "ann")
    signals = await store.signals.of("a")
    assert [(signal.next_id, signal.said) for signal in signals] == [(None, ""), (None, "")]
    assert await store.signals.add(NewSignal("a", "copied", ""))
    assert not await store.signals.add(NewSignal("a", "copied", "")), "what has no request is there once"
    await store.erasure.forget("completion", "a", "ann")
    assert await store.completions.get("a") is None


async def test_what_was_forgotten_is_known_in_the_database_too(store: Store) -> None:
    """A relay beside has another home, and so no file that says it."""
    await talk(store, "a", "zanzibar", user="ann")
    await talk(store, "b", "quokka")
    await store.ratings.rate(rating("a"))
    (of_a,) = await store.ratings.history("a")
    assert await store.erasure.forgotten(["a", "b", of_a.id]) == frozenset()
    await store.erasure.forget("user", "ann", "me")
    assert await store.erasure.forgotten(["a", "b", of_a.id]) == {"a", of_a.id}
    hashes = await store.erasure._reader.rows("SELECT hash FROM forgotten")
    assert len(hashes) == 2 and "a" not in {row["hash"] for row in hashes}
