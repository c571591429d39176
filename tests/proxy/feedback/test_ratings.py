"""Ratings over HTTP: what is taken, what is refused, and that nothing is acknowledged that is not stored."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from config.sections import Redaction
from proxy.access.keys import Principal
from proxy.conversation.answer_on_screen import AnswerOnScreen
from proxy.conversation.redaction import Redactor
from proxy.conversation.underway import AnswersInProgress
from proxy.core.errors import BadRequest
from proxy.core.events import Events
from proxy.core.metrics import Metrics
from proxy.feedback.ratings import Feedback, parse_judgement
from scripts.harness.in_process import Proxy


@pytest.mark.parametrize(
    ("rating", "scale", "value"),
    [
        ("good", None, 1.0), ("bad", None, -1.0), (" Good ", None, 1.0), ("👎", None, -1.0), (True, None, 1.0),
        ("1", None, -1.0), ("5/5", None, 1.0), ("4", None, 0.5), (5, None, 1.0), (2, None, -0.5), (3, None, 0.0),
        (0, None, 0.0), (-1, None, -1.0), (0.25, None, 0.25), (1, "unit", 1.0), (1, "stars", -1.0), (1.0, "unit", 1.0),
    ],
)  # fmt: skip
def test_values(rating: Any, scale: str | None, value: float) -> None:
    assert parse_judgement(rating, scale)[0] == value


@pytest.mark.parametrize(
    ("rating", "scale"),
    [(1, None), (1.0, None), (6, None), (-1.01, None), (2.5, None), ("great", None), ("6", None), (None, None),
     ([], None), (float("nan"), None), (float("inf"), None), (0, "stars"), (5, "unit"), ("good", "miles")],
)  # fmt: skip
def test_no_values(rating: Any, scale: str | None) -> None:
    with pytest.raises(BadRequest):
        parse_judgement(rating, scale)


async def test_a_rating_is_stored(proxy: Proxy) -> None:
    id = (await proxy.chat("a")).headers["x-rl-completion-id"]
    status, rating = await proxy.rate(completion_id=id, rating="bad", comment="too long", correction="b")
    assert status == 201 and rating["value"] == -1.0 and rating["rater"] == "owner"
    stored = await proxy.store.ratings.live(id, "owner")
    assert stored is not None and (stored.comment, stored.correction) == ("too long", "b")
    assert (await proxy.rate(completion_id=id, rating="2/5"))[1]["comment"] == "too long"
    assert (await proxy.rate(completion_id=id, rating="2/5", comment=""))[1]["comment"] is None


async def test_a_second_rating_takes_the_place_of_the_first(proxy: Proxy) -> None:
    id = (await proxy.chat("a")).headers["x-rl-completion-id"]
    _, first = await proxy.rate(completion_id=id, rating="bad")
    status, second = await proxy.rate(completion_id=id, rating="good")
    assert status == 201 and second["replaced"] == first["id"]
    await proxy.rate(completion_id=id, rating="bad", rater="another")
    live = [r for r in await proxy.store.ratings.history(id) if r.live]
    assert {(r.rater, r.value) for r in live} == {("owner", 1.0), ("another", -1.0)}


async def test_the_same_event_twice_is_one_rating(proxy: Proxy) -> None:
    id = (await proxy.chat("a")).headers["x-rl-completion-id"]
    event = {"completion_id": id, "rating": "good", "source": "slack", "source_event_id": "E1"}
    (one, first), (two, second) = await asyncio.gather(proxy.rate(**event), proxy.rate(**event))
    assert sorted((one, two)) == [200, 201] and first["id"] == second["id"]
    assert len(await proxy.store.ratings.history(id)) == 1


async def test_last_and_session(proxy: Proxy) -> None:
    await proxy.chat("a", headers={"x-rl-session": "s1"})
    second = (await proxy.chat("b", headers={"x-rl-session": "s2"})).headers["x-rl-completion-id"]
    await proxy.chat("title", headers={"x-rl-session": "s2", "x-rl-turn": "side"})
    assert (await proxy.rate(completion_id="last", rating="good"))[1]["completion_id"] == second
    assert (await proxy.rate(session="s1", rating="good"))[1]["completion_id"] != second
    status, body = await proxy.rate(session="nobody", rating="good")
    assert status == 404 and "nobody" in body["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"rating": "good"}, 400, "completion_id"),
        ({"completion_id": "rl-none", "rating": "good"}, 404, "completion_id"),
        ({"completion_id": "last"}, 400, "rating"),
        ({"completion_id": "last", "rating": 7}, 400, "rating"),
        ({"completion_id": 3, "rating": "good"}, 400, "completion_id"),
        ({"completion_id": "last", "rating": "good", "weight": 0}, 400, "weight"),
        ({"completion_id": "last", "rating": "good", "weight": True}, 400, "weight"),
        ({"completion_id": "last", "rating": "good", "comment": "x" * 20_001}, 400, "comment"),
    ],
)
async def test_bad_ratings(proxy: Proxy, body: dict[str, Any], status: int, param: str) -> None:
    await proxy.chat("a")
    got, answer = await proxy.rate(**body)
    assert got == status and answer["error"]["param"] == param
    assert (await proxy.store.stats.counts())["good"] == 0


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff"])
async def test_bad_bodies(proxy: Proxy, raw: bytes) -> None:
    async with proxy.http.post("/v1/feedback", data=raw) as response:
        assert response.status == 400


async def test_undo(proxy: Proxy) -> None:
    id = (await proxy.chat("a")).headers["x-rl-completion-id"]
    _, rating = await proxy.rate(completion_id=id, rating="good")
    for _ in range(2):  # the second time changes nothing
        async with proxy.http.delete(f"/v1/feedback/{rating['id']}") as response:
            assert response.status == 200 and (await response.json())["live"] is False
    async with proxy.http.delete("/v1/feedback/rt-none") as response:
        assert response.status == 404
    async with proxy.http.delete("/v1/feedback/last") as response:
        assert response.status == 409
    assert await proxy.store.ratings.live(id, "owner") is None


async def test_undo_of_a_rating_that_was_replaced_says_which_one_counts(proxy: Proxy) -> None:
    id = (await proxy.chat("a")).headers["x-rl-completion-id"]
    (_, old), (_, new) = [await proxy.rate(completion_id=id, rating=rating) for rating in ("good", "bad")]
    async with proxy.http.delete(f"/v1/feedback/{old['id']}") as response:
        assert response.status == 409 and new["id"] in (await response.json())["error"]["message"]
    live = await proxy.store.ratings.live(id, "owner")
    assert live is not None and live.id == new["id"]
    for one in (new, old):  # once nothing counts any more, there is nothing left to say
        async with proxy.http.delete(f"/v1/feedback/{one['id']}") as response:
            assert response.status == 200
    assert await proxy.store.ratings.live(id, "owner") is None


@pytest.mark.parametrize(
    ("rating", "scale", "kind"),
    [("good", None, "thumb"), (True, None, "thumb"), ("👎", None, "thumb"), ("5/5", None, "stars"), (5, None, "stars"),
     (1, "stars", "stars"), (1, "unit", "unit"), (0.25, None, "unit"), (-1, None, "unit")],
)  # fmt: skip
async def test_what_a_rating_was_given_as_is_kept(proxy: Proxy, rating: Any, scale: str | None, kind: str) -> None:
    await proxy.chat("a")
    status, stored = await proxy.rate(completion_id="last", rating=rating, **({"scale": scale} if scale else {}))
    assert status == 201 and stored["scale"] == kind


async def test_last_is_never_another_users(proxy: Proxy) -> None:
    mine = (await proxy.chat("a", headers={"x-rl-user": "ann"})).headers["x-rl-completion-id"]
    theirs = (await proxy.chat("b", headers={"x-rl-user": "bob"})).headers["x-rl-completion-id"]
    assert (await proxy.rate(completion_id="last", rating="good", rater="ann"))[1]["completion_id"] == mine
    assert (await proxy.rate(completion_id="last", rating="good"))[1]["completion_id"] == theirs  # the owner's machine
    assert (await proxy.rate(completion_id="last", rating="good", rater="eve"))[0] == 404
    nobodys = (await proxy.chat("c")).headers["x-rl-completion-id"]
    assert (await proxy.rate(completion_id="last", rating="good", rater="ann"))[1]["completion_id"] == nobodys


async def batch(proxy: Proxy, body: Any) -> tuple[int, Any]:
    async with proxy.http.post("/v1/feedback", json=body) as response:
        return response.status, await response.json()


async def test_a_batch_has_a_result_each(proxy: Proxy) -> None:
    ids = [(await proxy.chat(str(n))).headers["x-rl-completion-id"] for n in range(3)]
    status, answer = await batch(proxy, [{"completion_id": id, "rating": "good"} for id in ids])
    assert (status, answer["stored"], answer["refused"]) == (201, 3, 0)
    assert [one["rating"]["completion_id"] for one in answer["data"]] == ids
    mixed = [
        {"completion_id": ids[0], "rating": "bad"}, {"completion_id": "rl-none", "rating": "bad"}, "x",
        {"completion_id": ids[1], "rating": "great"}, {"completion_id": ids[2], "rating": 2},
        {"run_id": ids[1], "key": "user_score", "score": 0},
    ]  # fmt: skip
    status, answer = await batch(proxy, mixed)
    assert (status, answer["stored"], answer["refused"]) == (207, 3, 3)
    assert [one["status"] for one in answer["data"]] == [201, 404, 400, 400, 201, 201]
    assert "rl-none" in answer["data"][1]["error"]["message"]
    live = [await proxy.store.ratings.live(id, "owner") for id in ids]
    assert [one and one.value for one in live] == [-1.0, -1.0, -0.5]


async def test_a_batch_of_a_thousand_shares_its_commits_and_keeps_its_order(proxy: Proxy) -> None:
    id = (await proxy.chat("a")).headers["x-rl-completion-id"]
    before = proxy.store.commits
    ratings = [{"completion_id": id, "rating": "bad" if n % 2 else "good"} for n in range(1000)]
    status, answer = await batch(proxy, ratings)
    assert (status, answer["stored"]) == (201, 1000)
    assert proxy.store.commits - before < 100
    last = await proxy.store.ratings.live(id, "owner")
    assert last is not None and (last.value, last.id) == (-1.0, answer["data"][-1]["rating"]["id"])
    assert len(await proxy.store.ratings.history(id)) == 1000
    for wrong in ([], [*ratings, ratings[0]]):
        status, answer = await batch(proxy, wrong)
        assert status == 400 and "1 to 1000" in answer["error"]["message"]
    assert len(await proxy.store.ratings.history(id)) == 1000


async def test_the_same_batch_twice_is_stored_once(proxy: Proxy) -> None:
    id = (await proxy.chat("a")).headers["x-rl-completion-id"]
    events = [{"completion_id": id, "rating": "good", "source": "s", "source_event_id": str(n)} for n in range(3)]
    assert (await batch(proxy, events))[0] == 201
    status, answer = await batch(proxy, events)
    assert status == 200 and all(one["rating"]["duplicate"] for one in answer["data"])
    assert len(await proxy.store.ratings.history(id)) == 3


async def test_a_batch_of_which_nothing_is_stored_is_no_success(proxy: Proxy) -> None:
    status, answer = await batch(proxy, [{"completion_id": "rl-none", "rating": "good"}, {}])
    assert (status, answer["stored"], answer["refused"]) == (404, 0, 2)


async def test_a_rating_waits_for_its_completion(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.feedback.ratings.WAIT_S", 60.0)
    for rating in ({"completion_id": "rl-soon", "rating": "good"}, [{"completion_id": "rl-later", "rating": "good"}]):
        id = "rl-soon" if isinstance(rating, dict) else "rl-later"
        rates = asyncio.create_task(batch(proxy, rating))
        await asyncio.sleep(0.1)
        await proxy.chat("a", headers={"x-rl-completion-id": id})
        assert (await rates)[0] == 201
    monkeypatch.setattr("proxy.feedback.ratings.WAIT_S", 0.1)
    assert (await batch(proxy, {"completion_id": "rl-never", "rating": "good"}))[0] == 404


async def test_a_batch_whose_client_leaves_is_no_warning(proxy: Proxy) -> None:
    """It leaves after its ratings were handed on, and before the first of them has had its turn."""
    redactor = Redactor(Redaction())
    screen = AnswerOnScreen(proxy.store, redactor, AnswersInProgress())
    feedback = Feedback(proxy.store, Events(), Metrics(), redactor, screen)
    batch = asyncio.create_task(
        feedback._batch([{"completion_id": "x", "rating": "good"}] * 3, None, Principal("admin"))
    )
    await asyncio.sleep(0)
    batch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await batch
    gc.collect()  # what was made and never awaited is said here, and a warning is an error
