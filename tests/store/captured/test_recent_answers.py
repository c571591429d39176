"""What somebody was answered lately, whatever has become of it."""

from __future__ import annotations

from scripts.harness.records import HI, end, new, put, rating
from store.records import Item, Message, Requester
from store.store import Store

NOBODY = Requester(None, None)


async def test_the_newest_of_these(store: Store) -> None:
    await put(store, "a", session="s", user="u", key="k")
    await put(store, "b", user="u", key="k")
    await put(store, "c", session="s", key="l")
    await put(store, "d", session="s")
    await put(store, "side", session="s", user="u", key="k", turn="side")
    k, l, nobody = Requester("k", "u"), Requester("l", None), Requester(None, None)  # noqa: E741

    async def newest(*requesters: Requester, session: str | None = None) -> str | None:
        found = await store.answers.newest_of(requesters, session=session)
        return None if found is None else found.id

    assert [await newest(one) for one in (k, l, nobody, Requester("k", None))] == ["b", "c", "d", None]
    assert await newest(l, k) == "c" and await newest() is None
    assert await newest(k, session="s") == "a"
    assert await newest(k, l, nobody, session="s") == "d"


async def test_the_newest_is_also_one_under_way_or_broken_off(store: Store) -> None:
    await put(store, "a", session="s", user="u")
    await put(store, "b", session="t", user="v")
    await put(store, "side", turn="side")
    await store.completions.record([new("wrong", session="s")], [end("wrong", status="error", text="", reply=None)])

    async def newest(**who: str) -> tuple[str, str] | None:
        found = await store.answers.newest(**who)
        return None if found is None else (found.id, found.status)

    assert await newest() == ("b", "done"), "an error without a word was no answer"
    assert await newest(session="s") == await newest(user="u") == ("a", "done")
    assert await newest(session="s", user="v") is None
    await store.completions.record([new("cut", session="s")], [end("cut", status="partial")])
    assert await newest() == await newest(session="s") == ("cut", "partial")
    await store.completions.begin([new("open")])
    assert await newest() == ("open", "pending")


async def test_what_came_of_each(store: Store) -> None:
    call = Message("assistant", b'{"content":"","tool_calls":[{"function":{"name":"look"}}]}')
    await store.completions.record([new("call", asked="look it up")], [end("call", reply=call, text="")])
    await store.completions.record([new("nothing")], [end("nothing", status="partial", reply=None, text="")])
    await put(store, "long")
    long, nothing, called = await store.answers.answers_to([NOBODY], limit=9, longest=1)
    assert (long.text, long.has_content, nothing.has_content, called.has_content) == ("hi", True, False, True)
    assert called.calls == call and called.asked == "look it up" and called.requester == NOBODY
    assert [one.id for one in await store.answers.answers_to([NOBODY], limit=1, longest=9)] == ["long"]
    found = await store.answers.get("call")
    assert found is not None and found.calls == call and await store.answers.get("x") is None


async def test_those_of_a_session(store: Store) -> None:
    await put(store, "a", session="s", user="u", key="k")
    await put(store, "b", session="s", user="u", key="k", turn="side")
    await put(store, "c", session="s")
    await put(store, "d", session="t", user="u", key="k")
    k = Requester("k", "u")
    assert set(await store.answers.askers_in("s")) == {k, NOBODY} and await store.answers.askers_in("none") == []
    assert [one.id for one in await store.answers.answers_to([k], limit=9, longest=9, session="s")] == ["b", "a"]


async def test_items_by_the_ids_of_their_backend(store: Store) -> None:
    items = (Item("msg_1", "message"), Item("fc_1", "function_call"), Item("fc_2", "function_call"))
    for id in ("a", "b"):
        await store.completions.record([new(id)], [end(id, items=items)])

    async def places(*ids: str) -> list[tuple[str, str, int, str]]:
        return [one[:4] for one in await store.items.places(ids)]

    assert await places("msg_1") == [("msg_1", "b", 0, "message"), ("msg_1", "a", 0, "message")]
    assert await places("fc_2") == [("fc_2", "b", 1, "function_call"), ("fc_2", "a", 1, "function_call")]
    await store.completions.forget(["b"])
    assert await places("fc_1", "msg_2") == [("fc_1", "a", 0, "function_call")]
    assert await store.items.replies(["a", "b"]) == {"a": HI}


async def test_what_nobody_saw_is_passed_over_unless_it_is_rated(store: Store) -> None:
    await put(store, "a", "b", "rated")
    await store.ratings.rate(rating("rated"))
    await store.completions.pass_over(["b", "rated"], "retried")
    kept = {one.new.id: (one.new.turn, one.new.turn_rule) for one in await store.completions.page()}
    assert kept["b"] == ("side", "retried") and kept["rated"][0] == "main"
    newest = await store.answers.newest()
    assert newest is not None and newest.id == "rated"
