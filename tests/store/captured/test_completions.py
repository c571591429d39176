from __future__ import annotations

import asyncio
import gc
import time
from array import array
from pathlib import Path
from typing import Any

import pytest

from scripts.harness.records import HELLO, HI, claim, end, new, put, rated, rating
from store.captured import completions
from store.captured.completions import CHANGES, CHUNK, STOPPED
from store.captured.tree import chain, message_hash
from store.errors import CompletionEnded, DuplicateCompletion, UnknownCompletion
from store.records import Link, Message, Requester, ReturnedConversation
from store.store import Store


async def test_a_completion_comes_back_as_it_was_stored(store: Store) -> None:
    begun = new("a", prompt=(HELLO, HI, HELLO), session="s", user="u", version=3)
    ended = end("a", logprobs=[-0.1, -2.5], token_ids=[5, 2**31 - 1], inexact_reason="no", exact=False)
    await store.completions.begin([begun])
    await store.completions.finish([ended])

    found = await store.completions.get("a")
    assert found is not None
    assert found.new == begun
    assert found.end is not None
    assert found.end.logprobs == array("f", [-0.1, -2.5]).tolist()
    assert (found.end.token_ids, found.end.prompt_token_ids) == (ended.token_ids, ended.prompt_token_ids)
    assert (found.end.reply, found.end.usage, found.end.exact) == (HI, ended.usage, False)
    assert [found.prompt_hash, found.reply_hash] == chain((HELLO, HI, HELLO, HI))[2:]


async def test_without_tokens_there_are_none_rather_than_an_empty_list(store: Store) -> None:
    await store.completions.record(
        [new("a")], [end("a", token_ids=None, logprobs=None, prompt_token_ids=[], reply=None)]
    )
    found = await store.completions.get("a")
    assert found is not None
    assert found.end is not None
    assert (found.end.token_ids, found.end.logprobs, found.end.prompt_token_ids) == (None, None, [])
    assert found.end.reply is None


async def test_a_pending_completion_has_no_end(store: Store) -> None:
    await store.completions.begin([new("a", prompt=())])
    found = await store.completions.get("a")
    assert found is not None
    assert (found.status, found.end, found.prompt_hash, found.new.prompt) == ("pending", None, None, ())


async def test_a_begin_that_nobody_awaits_fails_its_finish_and_warns_nobody(store: Store) -> None:
    warned: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: warned.append(context))
    await put(store, "a")
    store.completions.begin([new("a", model="other"), new("b")])
    with pytest.raises(UnknownCompletion):
        await store.completions.finish([end("b")])
    await store.meta.set("writer", "has let go of it")
    gc.collect()  # asyncio complains of an exception nobody took when its future goes
    assert warned == []
    with pytest.raises(DuplicateCompletion):
        await store.completions.begin([new("a")])
    found = await store.completions.get("a")
    assert found is not None
    assert found.new.model == "m"


async def test_a_completion_ends_once(store: Store) -> None:
    await put(store, "a")
    with pytest.raises(CompletionEnded):
        await store.completions.finish([end("a", status="error")])


async def test_record_is_all_or_nothing(store: Store) -> None:
    with pytest.raises(DuplicateCompletion):
        await store.completions.record([new("a"), new("a")], [end("a"), end("a")])
    assert await store.completions.get("a") is None


async def test_lists_are_newest_first_and_filtered(store: Store) -> None:
    await put(store, "a", session="s", version=1)
    await put(store, "b", session="s", turn="side", version=2)
    await put(store, "c", session="t", version=2)
    await store.ratings.rate(rating("c"))

    async def ids(**query: object) -> list[str]:
        return [one.new.id for one in await store.completions.page(**query)]  # type: ignore[arg-type]

    assert await ids() == ["c", "b", "a"]
    assert await ids(limit=1) == ["c"]
    assert await ids(session="s") == ["b", "a"]
    assert await ids(turn="main") == ["c", "a"]
    assert await ids(version=2) == ["c", "b"]
    assert await ids(unrated=True) == ["b", "a"]
    newest = (await store.completions.page())[0]
    assert [one.value for one in newest.ratings] == [1.0]
    assert await ids(before_seq=newest.seq) == ["b", "a"]


NOBODY = Requester(None, None)


def sent(*system: str, thread: bytes | None = None, **fields: Any) -> ReturnedConversation:
    reply = chain((HELLO, HI))[-1]
    names = tuple(message_hash(None, "system", one.encode()) for one in system)
    return ReturnedConversation(
        thread or reply, fields.pop("path", reply), names, **({"model": "m", "session": None} | fields)
    )


async def found(store: Store, sent: ReturnedConversation, *requesters: Requester) -> set[str]:
    return {one.id for one in await store.completions.find_reply(sent, requesters or [NOBODY])}


async def test_find_reply_takes_what_fits_best_and_of_equals_the_newest(store: Store) -> None:
    await put(store, "plain", "again")
    await put(store, "session", session="s")
    await put(store, "model", model="n")
    await put(store, "system", prompt=(Message("system", b"x"), HELLO))
    assert await found(store, sent()) == {"again"}
    assert await found(store, sent(session="s")) == {"session"}
    assert await found(store, sent(session="s", model="n")) == {"session"}
    assert await found(store, sent(model="n")) == {"model"}
    assert await found(store, sent("x")) == {"system"}
    assert await found(store, sent(thread=b"?" * 16)) == set()


async def test_find_reply_says_where_it_may_be_one_or_another(store: Store) -> None:
    await put(store, "one", prompt=(Message("system", b"x"), HELLO))
    assert await found(store, sent("z", model="n")) == {"one"}, "there is no other"
    await put(store, "two", prompt=(Message("system", b"y"), HELLO))
    assert await found(store, sent("z")) == {"one", "two"}
    assert await found(store, sent("z", session="s")) == {"one", "two"}
    assert await found(store, sent("y")) == {"two"}
    await put(store, "three", model="n", session="s", prompt=(Message("system", b"y"), HELLO))
    await put(store, "four", model="o", session="t", prompt=(Message("system", b"y"), HELLO))
    assert await found(store, sent("y", session="u", model="p")) == {"two", "three", "four"}
    (first, *_) = await store.completions.find_reply(sent("x"), [NOBODY])
    assert (first.id, first.created_at, first.text) == ("one", 1000.0, "hi")


async def test_find_reply_knows_the_exact_words(store: Store) -> None:
    reasoned = Message("assistant", b'"<think>so</think>hi"')
    thread = b"loose" + b"." * 11
    await store.completions.record(
        [new("a"), new("b")], [end("a", thread=thread), end("b", thread=thread, reply=reasoned)]
    )
    assert await found(store, sent(thread=thread)) == {"a"}
    assert await found(store, sent(thread=thread, path=chain((HELLO, reasoned))[-1])) == {"b"}
    assert await found(store, sent(thread=thread, path=b"?" * 16)) == {"a", "b"}


async def test_find_reply_never_gives_anothers(store: Store) -> None:
    await put(store, "hers", session="s", user="v")
    await put(store, "keyed", session="s", user="v", key="k")
    await put(store, "nobodys", session="s", key="k")
    for user, key, id in (("v", None, "hers"), ("v", "k", "keyed"), (None, "k", "nobodys")):
        assert await found(store, sent(session="s"), Requester(key, user)) == {id}
    for requester in (Requester(None, "u"), Requester("l", "v"), Requester("l", None), NOBODY):
        assert await found(store, sent(session="s"), requester) == set()


async def test_what_a_run_calibrates_on_is_exact_and_unrated(store: Store) -> None:
    await put(store, "a", "b", "rated", version=1)
    await put(store, "side", turn="side", version=1)
    await put(store, "other", version=2)
    await store.completions.record([new("rough", version=1)], [end("rough", exact=False)])
    await store.ratings.rate(rating("rated"))
    assert [one.new.id for one in await store.completions.exact_unrated(version=1, limit=5)] == ["b", "a"]


async def test_a_prompt_sent_again_is_stored_once(store: Store, tmp_path: Path) -> None:
    prompt: tuple[Message, ...] = ()
    for turn in range(5):
        prompt += (Message("user", b'"%d"' % turn),)
        await store.completions.record([new(f"c{turn}", prompt=prompt)], [end(f"c{turn}")])
        prompt += (HI,)
    assert await messages(store) == 10
    assert await store.completions.messages(chain(prompt)[-1]) == prompt
    assert await store.completions.messages(b"?" * 16) == ()


async def test_expire_takes_only_old_ones_that_were_never_rated(store: Store) -> None:
    own = (HELLO, HI, Message("user", b'"alone"'))
    await put(store, "old", created_at=10.0, prompt=own)
    await put(store, "young", created_at=30.0)
    await put(store, "rated", "regretted", created_at=10.0)
    await store.completions.begin([new("open", created_at=10.0)])
    await store.ratings.rate(rating("rated"))
    await store.ratings.retract((await store.ratings.rate(rating("regretted"))).id)
    await store.reactions.link(Link("slack", "c", "1", "old"))

    before = await messages(store)
    assert await store.completions.expire(20.0) == 1
    assert {one.new.id for one in await store.completions.page()} == {"young", "rated", "regretted", "open"}
    assert before - await messages(store) == 2  # "alone" and the reply to it; the rest is shared
    assert await store.reactions.linked("slack", "c", "1") is None
    assert await store.completions.expire(20.0) == 0


async def test_expire_goes_on_until_all_are_gone(store: Store) -> None:
    ids = [f"c{at}" for at in range(CHUNK + 1)]
    await put(store, *ids)
    assert await store.completions.expire(2000.0) == CHUNK + 1
    assert await messages(store) == 0


async def test_a_part_of_expiring_ends_sooner_where_conversations_are_very_long(store: Store) -> None:
    """Others write between two parts; before, a hundred of these went in one."""
    for at in range(3):
        await put(store, f"c{at}", prompt=tuple(Message("user", b"%d" % at) for _ in range(CHANGES)))
    assert await store._writer.submit(lambda db: completions.expire(db, 2000.0)) == 1
    assert await store.completions.expire(2000.0) == 2
    assert await messages(store) == 0


async def test_forget_takes_ratings_and_samples_too(store: Store) -> None:
    await rated(store, 2)
    run, _ = await claim(store)
    assert await store.completions.forget(["c0", "nobody"]) == 1
    assert await store.completions.get("c0") is None
    assert await store.ratings.history("c0") == []
    assert [sample.completion.new.id for sample in await store.samples.of_run(run.id)] == ["c1"]
    assert await store.completions.forget(["c1"]) == 1
    assert await messages(store) == 0


async def test_what_was_pending_when_the_process_died_is_an_error_after(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    await store.completions.begin([new("a")])
    await put(store, "b")
    await store.close()
    store = await Store.open(tmp_path)
    try:
        a, b = await store.completions.get("a"), await store.completions.get("b")
        assert a is not None
        assert b is not None
        assert a.end is not None
        assert (a.status, a.end.error, b.status) == ("error", STOPPED, "done")
    finally:
        await store.close()


async def test_counts(store: Store) -> None:
    await put(store, "a", "b", created_at=time.time())
    await put(store, "old")
    await store.completions.begin([new("open", created_at=time.time())])  # whole ones count, today's too
    await store.ratings.rate(rating("a"))
    await store.ratings.rate(rating("b", -0.5))
    assert await store.stats.counts() == {
        "pending": 1, "done": 3, "partial": 0, "error": 0, "good": 1, "bad": 1, "captured_today": 2,
    }  # fmt: skip


async def messages(store: Store) -> int:
    row = await store._reader.row("SELECT count(*) FROM messages")
    assert row is not None
    return int(row[0])


def system(text: str) -> Message:
    return Message("system", b'"%s"' % text.encode())


async def test_a_system_text_that_changes_costs_itself_only(store: Store) -> None:
    talk = (HELLO, HI, Message("user", b'"more"'))
    first = (system("Monday"), *talk)
    second = (system("Tuesday"), HELLO, HI, Message("developer", b'"git"'), Message("user", b'"more"'))
    await put(store, "a", prompt=first)
    before = await messages(store)
    await put(store, "b", prompt=second)
    assert await messages(store) - before == 2  # "Tuesday" and "git"
    await put(store, "c", prompt=second)
    assert await messages(store) - before == 2
    for id, prompt in (("a", first), ("b", second), ("c", second)):
        found = await store.completions.get(id)
        assert found is not None
        assert found.new.prompt == prompt  # as it was sent, for training
    assert [row["messages"][0]["content"] async for row in store.transfer.export()] == ["Monday", "Tuesday", "Tuesday"]


async def test_system_texts_go_with_the_last_completion_that_has_them(store: Store) -> None:
    await put(store, "a", "b", prompt=(system("shared"), HELLO))
    await put(store, "c", prompt=(system("own"),))
    await store.completions.forget(["a"])
    assert await messages(store) == 5  # both texts, hello, hi, and hi as an answer to nothing
    await store.completions.forget(["b", "c"])
    assert await messages(store) == 0


async def test_find_reply_by_its_loose_name(store: Store) -> None:
    await store.completions.record([new("a")], [end("a", thread=b"loose" + b"." * 11)])
    assert await found(store, sent(thread=b"loose" + b"." * 11)) == {"a"}
    assert await found(store, sent()) == set()


@pytest.mark.parametrize("at_once", [True, False])
async def test_what_a_server_without_ids_says(store: Store, at_once: bool) -> None:
    """By either way into the store."""
    ended = end(
        "a", token_ids=None, logprobs=[-0.5, -1.0], pieces=[b"a", b"\xe2\x82"], logprobs_of="model", exact=False
    )
    if at_once:
        await store.completions.record([new("a")], [ended])
    else:
        await store.completions.begin([new("a")])
        await store.completions.finish([ended])
    found = await store.completions.get("a")
    assert found is not None and found.end is not None
    assert found.end.pieces == [b"a", b"\xe2\x82"] and found.end.logprobs_of == "model"


@pytest.mark.parametrize("at_once", [True, False])
async def test_both_log_probs_of_a_constrained_reply(store: Store, at_once: bool) -> None:
    """By either way into the store."""
    ended = end("a", token_ids=[1, 2], logprobs=[0.0, -0.5], unconstrained_logprobs=[-9999.0, -0.5])
    if at_once:
        await store.completions.record([new("a")], [ended])
    else:
        await store.completions.begin([new("a")])
        await store.completions.finish([ended])
    found = await store.completions.get("a")
    assert found is not None and found.end is not None
    assert (found.end.logprobs, found.end.unconstrained_logprobs) == ([0.0, -0.5], [-9999.0, -0.5])
