"""Somebody who rates, imports or asks for privacy, and wants more of a rating than it is worth."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from scripts.harness.in_process import Proxy
from scripts.harness.records import put
from store.records import NewReaction
from tests.harness.raw_http import CHAT, head, raw, status
from tests.harness.runs import until
from tests.harness.visits import Visit

SECRET = "what-nobody-is-to-keep"


async def keys(proxy: Proxy, *roles: str) -> dict[str, dict[str, str]]:
    """The headers of one key of each role."""
    made: dict[str, dict[str, str]] = {}
    for role in roles:
        headers = {"authorization": f"Bearer {proxy.local}"} if made else {}
        async with proxy.http.post("/rl/keys", json={"name": f"the-{role}", "role": role}, headers=headers) as response:
            made[role] = {"authorization": f"Bearer {(await response.json())['key']}"}
    return made


async def asked(proxy: Proxy, count: int) -> list[str]:
    """Completions that a model answered, so that they can train; by their ids."""
    return [(await proxy.chat(f"question {n}")).headers["x-rl-completion-id"] for n in range(count)]


async def send(proxy: Proxy, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    async with proxy.http.post("/v1/feedback", json=body, headers=headers) as response:
        return response.status, await response.json()


# One rater, many voices


async def test_only_an_admin_makes_a_rating_weigh_more_than_one(proxy: Proxy) -> None:
    await put(proxy.store, "c0", "c1", "c2")
    who = await keys(proxy, "rate", "admin")
    heavy = {"completion_id": "c0", "rating": "bad", "weight": 10}
    code, answer = await send(proxy, heavy, who["rate"])
    assert code == 403 and answer["error"]["param"] == "weight" and "admin" in answer["error"]["message"]
    code, answer = await send(proxy, [heavy, {"completion_id": "c1", "rating": "bad", "weight": 1}], who["rate"])
    assert code == 207 and [one["status"] for one in answer["data"]] == [403, 201]
    assert await proxy.store.ratings.history("c0") == []
    assert (await send(proxy, heavy, who["admin"]))[1]["weight"] == 10


async def test_the_shared_key_of_the_settings_is_no_admin_either(proxy: Proxy) -> None:
    await put(proxy.store, "c0")
    await proxy.stop()
    await proxy.start(server__api_key="a-key-of-everybody")
    headers = {"authorization": "Bearer a-key-of-everybody"}
    body = {"completion_id": "c0", "rating": "bad", "weight": 1.5, "rater": "eve"}
    assert (await send(proxy, body, headers))[0] == 403
    assert await proxy.store.ratings.history("c0") == []


async def test_a_heavy_rater_is_bounded_by_weight(proxy: Proxy) -> None:
    await put(proxy.store, *(f"c{n}" for n in range(20)))
    await proxy.post("/rl/pause")
    for n in range(10):
        await proxy.rate(completion_id=f"c{n}", rating="good", rater="ann")
    for n in range(10, 20):
        await proxy.rate(completion_id=f"c{n}", rating="bad", rater="eve", weight=10)
    found = (await proxy.get("/rl/status"))["ratings"]
    assert found["dampened"] == {"eve": 7} and found["fresh"] == 13  # 3 of weight 10 are three quarters of 40


async def test_words_teach_in_full_however_light_their_rating(proxy: Proxy) -> None:
    await put(proxy.store, *(f"c{n}" for n in range(60)))
    await proxy.post("/rl/pause")
    for n in range(5):
        await proxy.rate(completion_id=f"c{n}", rating="good", rater="ann")
    for n in range(5, 60):
        words = {"correction": "buy now"} if n % 2 else {"comment": "name our product"}
        await proxy.rate(completion_id=f"c{n}", rating="bad", rater="eve", weight=0.01, **words)
    assert (await proxy.get("/rl/status"))["ratings"]["dampened"] == {"eve": 40}


@pytest.mark.parametrize("weight", [5e-324, 1e-300, 0.0099, 0, -0.0])
async def test_a_weight_of_next_to_nothing_is_refused(proxy: Proxy, weight: float) -> None:
    await put(proxy.store, "c0")
    code, answer = await send(proxy, {"completion_id": "c0", "rating": "bad", "weight": weight})
    assert code == 400 and answer["error"]["param"] == "weight" and "0.01" in answer["error"]["message"]
    line = {**LINE, "ratings": [{**RATING, "weight": weight}]}
    async with proxy.http.post("/rl/import?ours", data=json.dumps(line).encode()) as response:
        assert (await response.json())["stored"] == 0


@pytest.mark.parametrize("weight", [5e-324, 1e300, float("inf")])
async def test_a_weight_that_is_there_already_stops_no_training(proxy: Proxy, weight: float) -> None:
    """As an older rlproxy took it."""
    await proxy.stop()
    await proxy.start(train__raters={"eve": 0.1, "mute": 5e-324})
    ids = await asked(proxy, 8)
    await proxy.post("/rl/pause")
    for n, id in enumerate(ids):
        await proxy.rate(completion_id=id, rating="good" if n % 2 else "bad", rater="ann" if n < 5 else "eve")
    await proxy.rate(completion_id=ids[7], rating="bad", rater="mute")
    await proxy.store._writer.submit(
        lambda db: db.execute("UPDATE ratings SET weight = ? WHERE rater = 'eve'", [weight])
    )
    async with proxy.http.get("/rl/status") as response:
        assert response.status == 200, await response.text()
    await proxy.post("/rl/resume")
    await until(proxy, live=1)


async def test_a_few_light_ratings_silence_nobody(proxy: Proxy) -> None:
    """What counts as a voice beside the others' is measured as the share is: by weight."""
    await proxy.stop()
    await proxy.start(train__raters={"muted": 0.01})
    await put(proxy.store, *(f"c{n}" for n in range(40)))
    await proxy.post("/rl/pause")
    for n in range(20):
        await proxy.rate(completion_id=f"c{n}", rating="bad" if n % 2 else "good", rater="ann")
    for n in range(20, 30):
        await proxy.rate(completion_id=f"c{n}", rating="bad", rater="eve", weight=0.01)
        await proxy.rate(completion_id=f"c{n + 10}", rating="bad", rater="muted")
    found = (await proxy.get("/rl/status"))["ratings"]
    assert found["dampened"] == {} and found["fresh"] == 40


# The same thing, said again


async def train(proxy: Proxy, version: int) -> None:
    await until(proxy, live=version)
    assert (await proxy.get("/rl/status"))["ratings"]["fresh"] == 0


async def test_the_same_ratings_train_once(proxy: Proxy) -> None:
    ids = await asked(proxy, 4)
    bodies = [{"completion_id": id, "rating": "good" if n % 2 else "bad", "comment": "so"} for n, id in enumerate(ids)]
    first = [(await proxy.rate(**body))[1] for body in bodies]
    await train(proxy, 1)
    for again in (bodies, [{**body, "comment": None} for body in bodies], [{**body, "source": "x"} for body in bodies]):
        found = [await proxy.rate(**body) for body in again]
        assert [code for code, _ in found] == [200] * 4
        assert [one["id"] for _, one in found] == [one["id"] for one in first]
        assert all(one["duplicate"] for _, one in found)
    assert (await send(proxy, bodies))[0] == 200
    assert (await proxy.get("/rl/status"))["ratings"]["fresh"] == 0
    assert len(await proxy.store.runs.recent()) == 1


@pytest.mark.parametrize("way", ["undone", "turned around", "new events"])
async def test_a_rating_that_trained_is_not_fresh_again_by_a_detour(proxy: Proxy, way: str) -> None:
    ids = await asked(proxy, 4)
    bodies = [{"completion_id": id, "rating": "good" if n % 2 else "bad"} for n, id in enumerate(ids)]
    first = [(await proxy.rate(**body))[1] for body in bodies]
    await train(proxy, 1)
    await proxy.post("/rl/pause")
    for round in range(2):
        for body, one in zip(bodies, first, strict=True):
            live = await proxy.store.ratings.live(body["completion_id"], "owner")
            assert live is not None
            if way == "undone":
                await proxy.http.delete(f"/v1/feedback/{live.id}")
            elif way == "turned around":
                await proxy.rate(completion_id=body["completion_id"], rating="bad" if one["value"] > 0 else "good")
            event = {"source": "bot", "source_event_id": f"{round}-{one['id']}"} if way == "new events" else {}
            assert (await proxy.rate(**body, **event))[1]["live"]
        assert (await proxy.get("/rl/status"))["ratings"]["fresh"] == 0, round
    await proxy.rate(**{**bodies[0], "rating": "good"})  # who has changed their mind is heard
    assert (await proxy.get("/rl/status"))["ratings"]["fresh"] == 1


async def test_a_page_pressed_again_and_again_trains_once(proxy: Proxy) -> None:
    ids = await asked(proxy, 4)
    visit = Visit(proxy.url)
    await visit.get("/")
    for n, id in enumerate(ids):
        await visit.post(f"/page/completions/{id}/rate", rating="good" if n % 2 else "bad")
    await train(proxy, 1)
    for n, id in enumerate(ids):
        await visit.post(f"/page/completions/{id}/undo")
        await visit.post(f"/page/completions/{id}/rate", rating="good" if n % 2 else "bad")
    assert (await proxy.get("/rl/status"))["ratings"]["fresh"] == 0
    await visit.http.close()


async def test_a_word_in_the_chat_and_a_reaction_train_once(proxy: Proxy) -> None:
    ids = await asked(proxy, 4)
    turns = [("question 0", "You said: question 0", f"/rl {word}") for word in ("good", "good")]
    assert [("as before" in await proxy.say(*said)) for said in turns] == [False, True]
    for n, id in enumerate(ids[1:]):
        await proxy.store.reactions.react(NewReaction(id, "ann", "slack", f"e{n}", "m", "+1", 1.0, float(n)))
    await proxy.post("/rl/train")
    await train(proxy, 1)
    await proxy.post("/rl/pause")
    for word in ("undo", "good"):
        await proxy.say("question 0", "You said: question 0", f"/rl {word}")
    for n, id in enumerate(ids[1:]):
        for round, value in ((10, None), (20, 1.0)):  # taken away, and put there again
            reaction = NewReaction(id, "ann", "slack", f"e{n}-{round}", "m", "+1", value, float(round))
            await proxy.store.reactions.react(reaction)
        assert await proxy.store.ratings.live(id, "ann") is not None
    assert (await proxy.get("/rl/status"))["ratings"]["fresh"] == 0


# Nothing is to be kept


@pytest.mark.parametrize("said", ["Off", "OFF", " off", "oFF\t"])
async def test_off_is_off_in_any_case(proxy: Proxy, said: str) -> None:
    answer = await raw(proxy, head("POST", "/v1/chat/completions", f"x-rl-capture: {said}", body=CHAT))
    assert status(answer) == 200 and b"x-rl-completion-id" not in answer.lower()
    assert await proxy.store.completions.page() == []


@pytest.mark.parametrize(
    "lines",
    [
        ["x-rl-capture: no"], ["x-rl-capture: false"], ["x-rl-capture: 0"], ["x-rl-capture:"], ["x-rl-capture: none"],
        ["x-rl-capture: off, on"], ["x-rl-capture: on", "x-rl-capture: off"], ["x-rl-capture: off", "X-RL-Capture: on"],
        ["x-rl-turn: sied"], ["x-rl-turn: main", "x-rl-turn: side"], ["x-rl-user: ann", "x-rl-user: bob"],
        ["x-rl-capture: off", "x-rl-turn: sied"],
    ],
)  # fmt: skip
async def test_what_is_not_understood_is_neither_asked_nor_kept(proxy: Proxy, lines: list[str]) -> None:
    for path in ("/v1/chat/completions", "/v1/messages", "/api/chat"):
        answer = await raw(proxy, head("POST", path, *lines, body=CHAT))
        assert status(answer) == 400 and b"x-rl-" in answer, answer
    assert proxy.backend.requests == [] and await proxy.store.completions.page() == []


async def test_a_session_is_switched_off_in_any_case(proxy: Proxy) -> None:
    async with proxy.http.post("/rl/capture", json={"session": "s", "capture": "Off"}) as response:
        assert response.status == 200 and (await response.json())["capture"] == "off"
    async with proxy.http.post("/rl/capture", json={"session": "s", "capture": "no"}) as response:
        assert response.status == 400
    await proxy.chat(SECRET, headers={"x-rl-session": "s"})
    assert await proxy.store.completions.page() == []


# Numbers that cannot be


LINE: dict[str, Any] = {
    "format": 1, "id": "good", "request_id": "a", "choice": 0, "created_at": 1e9, "finished_at": 1e9, "model": "m",
    "dialect": "chat", "backend": "vllm", "served_model": "m", "status": "done", "text": "", "exact": True,
    "messages": [{"role": "user", "content": "hi"}], "reply": {"role": "assistant", "content": "hi"},
    "prompt_token_ids": [1], "token_ids": [2], "logprobs": [-0.5], "version": 0,
}  # fmt: skip
RATING: dict[str, Any] = {
    "id": "rt-x", "rater": "ann", "value": 1.0, "weight": 1.0, "source": "http", "created_at": 1e9, "scale": "thumb",
}  # fmt: skip
SOON = time.time() + 10 * 86400
IMPOSSIBLE: list[dict[str, Any]] = [
    *({"created_at": at} for at in (1e300, -1, SOON, 1e18, True, "now")), {"finished_at": 1e300}, {"finished_at": -1},
    *({"logprobs": [one]} for one in (0.5, 1e300, -1e300, None, True)), *({"token_ids": [t]} for t in (-1, 2**31, 1.5)),
    *({"prompt_token_ids": [t]} for t in (-1, 2**40)), {"choice": -1}, {"choice": 10**6}, {"version": -1},
    *({"sampling": {"temperature": t}} for t in (1e300, -1e300, "hot")),
    *({"ratings": [{**RATING, **bad}]} for bad in (
        {"created_at": 1e300}, {"created_at": -5}, {"created_at": SOON}, {"value": 1.01}, {"value": -1e300},
        {"weight": 1e300}, {"weight": 0}, {"weight": -1}, {"weight": 11},
    )),
]  # fmt: skip


async def test_an_impossible_number_costs_its_line_and_no_page(proxy: Proxy) -> None:
    lines = [*({**LINE, "id": f"bad-{n}", **bad} for n, bad in enumerate(IMPOSSIBLE)), {**LINE, "ratings": [RATING]}]
    texts = [json.dumps(line) for line in lines]
    texts += [texts[-1].replace('"good"', '"bad"').replace("1000000000.0", word) for word in ("NaN", "1e999", "-1e999")]
    async with proxy.http.post("/rl/import?ours", data="\n".join(texts).encode()) as response:
        found = await response.json()
    assert found["stored"] == 1 and found["ratings"] == 1
    assert [one["line"] for one in found["refused"]] == [n + 1 for n in range(len(texts)) if n != len(IMPOSSIBLE)]
    assert all(one["why"] for one in found["refused"])
    assert [c.new.id for c in await proxy.store.completions.page()] == ["good"]
    for path in ("/", "/progress", "/page/plots", "/completions/good", "/rl/completions", "/rl/export", "/versions"):
        async with proxy.http.get(path) as response:
            assert response.status == 200, path


async def test_an_impossible_time_that_is_there_already_costs_no_page(proxy: Proxy) -> None:
    """As an older rlproxy took it."""
    await put(proxy.store, "c1", created_at=1e300)
    await put(proxy.store, "c2", created_at=-1e300)
    await proxy.rate(completion_id="c1", rating="good")
    for path in ("/", "/progress", "/completions/c1", "/completions/c2", "/rl/completions", "/rl/export"):
        async with proxy.http.get(path) as response:
            assert response.status == 200, path


# What a run says of itself


async def test_the_plot_has_only_the_try_that_counts(proxy: Proxy) -> None:
    for n, id in enumerate(await asked(proxy, 4)):
        await proxy.rate(completion_id=id, rating="good" if n % 2 else "bad")
    await until(proxy, live=1)
    (run,) = await proxy.store.runs.recent()
    told = [{"event": "step", "step": n, "loss": 9.0, "acceptance": 0.1} for n in range(1, 6)]
    told += [{"event": "phase", "phase": "train", "again": True}]
    told += [{"event": "step", "step": n, "loss": 0.5, "acceptance": 0.9} for n in range(1, 3)]
    (Path(run.folder) / "progress.jsonl").write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in told))
    steps = (await proxy.get(f"/rl/runs/{run.id}"))["steps"]
    assert [[s["step"], s["loss"], s["acceptance"]] for s in steps] == [[1, 0.5, 0.9], [2, 0.5, 0.9]]
    async with proxy.http.get("/page/plots") as response:
        assert "from 0.5 to 0.5 in 2 steps" in await response.text()
