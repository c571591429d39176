"""`rlproxy why`: the chain from a rating to a version, what was not kept, and what was forgotten."""

from __future__ import annotations

import json
from pathlib import Path

import orjson

from proxy.cli.answers import explanation_lines
from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from scripts.harness.seeding import history
from store.store import Store
from tests.harness.visits import Visit


async def seeded(proxy: Proxy) -> tuple[str, str]:
    """A rating that trained v2, and its answer. Its run is older than the record of pushes."""
    await proxy.stop()
    store = await Store.open(proxy.home)
    ratings = await history(store, proxy.home)
    result = (await store.runs.recent(1))[0].result
    assert result is not None
    id = next(rating for rating in ratings if result["samples"][rating]["used"])
    rating = await store.ratings.get(id)
    assert rating is not None
    await store.close()
    await proxy.start(backend__model="fake", train__start_at=10_000)
    return id, rating.completion_id


async def test_a_rating_is_followed_to_its_version(proxy: Proxy) -> None:
    rating, completion = await seeded(proxy)
    run = (await proxy.store.runs.recent(1))[0]
    body = await proxy.get(f"/rl/why/{rating}")
    assert body["rating"] == rating and body["completion"] == completion and body["waiting"] is None
    (explained,) = body["runs"]
    assert explained["run"] == run.id and explained["split"] == "train" and explained["push"]["used"]
    assert explained["version"]["version"] == 2 and explained["gate"]["margin"]["ok"]
    assert explained["reward"] is None and "do not tell" in explained["not_kept"][0]
    assert "older than the record" in explained["not_kept"][1]

    path = Path(run.folder) / "samples.jsonl"
    rows = [orjson.loads(line) | {"reward": -1.0, "weight": 0.5} for line in path.read_bytes().splitlines()]
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    push = {"taught_by": "token", "advantage": -0.25, "up": 2, "down": 5}
    await proxy.store._writer.submit(
        lambda db: db.execute(
            "UPDATE runs SET result = json_patch(result, ?) WHERE id = ?",
            (json.dumps({"samples": {rating: push}}), run.id),
        )
    )
    body = await proxy.get(f"/rl/why/{completion}")
    (explained,) = body["runs"]
    assert body["rating"] is None and explained["not_kept"] == []
    assert (explained["reward"], explained["weight"]) == (-1.0, 0.5)
    assert {name: explained["push"][name] for name in push} == push
    text = "\n".join(explanation_lines(body))
    for part in ("reward     -1, weight 0.5", "advantage  -0.25", "2 tokens up, 5 down, each by what it earned", "v2"):
        assert part in text, text
    visit = Visit(proxy.url)
    page = await visit.get(f"/completions/{completion}")
    await visit.http.close()
    assert "2 tokens up, 5 down, each by what it earned" in page and "of 5 checks passed" in page

    path.unlink()
    (explained,) = (await proxy.get(f"/rl/why/{completion}"))["runs"]
    assert "gone or cannot be read" in explained["not_kept"][0] and explained["push"]["up"] == 2


async def test_a_run_of_an_earlier_release_that_trained_it_once_more_is_told_and_found(proxy: Proxy) -> None:
    """Its ratings were claimed by the run before; only its result and its samples name them."""
    await proxy.stop()
    store = await Store.open(proxy.home)
    await history(store, proxy.home)
    second, first = await store.runs.recent(2)
    assert first.result is not None
    id = next(name for name, outcome in first.result["samples"].items() if outcome["used"])
    rating = await store.ratings.get(id)
    assert rating is not None
    again = {"samples": {id: {"used": True, "tokens": 7, "accepted": 5, "advantage": 0.5, "up": 5, "down": 0}}}
    await store._writer.submit(
        lambda db: db.execute(
            "UPDATE runs SET result = json_patch(result, ?) WHERE id = ?", (json.dumps(again), second.id)
        )
    )
    line = {"rating": id, "completion": rating.completion_id, "split": "replay", "reward": rating.value, "weight": 1.0}
    with (Path(second.folder) / "samples.jsonl").open("ab") as file:
        file.write(orjson.dumps(line) + b"\n")
    assert (await store.erasure.look("completion", rating.completion_id)).trained == (1, 2)
    await store.close()
    await proxy.start(backend__model="fake", train__start_at=10_000)
    body = await proxy.get(f"/rl/why/{id}")
    assert [(run["run"], run["split"]) for run in body["runs"]] == [(second.id, "replay"), (first.id, "train")]
    told = body["runs"][0]
    assert (told["reward"], told["push"]["up"], told["version"]["version"]) == (rating.value, 5, 2)
    text = "\n".join(explanation_lines(body))
    assert f"run {second.id}, done: trained once more" in text and "5 tokens up, 0 down" in text
    visit = Visit(proxy.url)
    page = await visit.get(f"/completions/{rating.completion_id}")
    await visit.http.close()
    assert "trained once more" in page


async def test_what_was_forgotten_and_what_waits(cli: Proxy) -> None:
    id = (await cli.chat("my secret words")).headers["x-rl-completion-id"]
    assert (await cli.get(f"/rl/why/{id}"))["waiting"] == "nobody has rated it"
    await cli.rate(completion_id=id, rating="bad", comment="secret comment")
    body = await cli.get(f"/rl/why/{id}")
    assert body["waiting"] == "it waits for the next run" and body["ratings"][0]["has_comment"]
    assert "secret" not in json.dumps(body)
    code, out, err = await rlproxy(cli.home, "why", body["ratings"][0]["id"], "--json")
    assert code == 0 and json.loads(out)["completion"] == id, err
    async with cli.http.post("/rl/forget", json={"completion": id}) as response:
        assert response.status == 200
    code, _, err = await rlproxy(cli.home, "why", id)
    assert code == 1 and "was forgotten" in err
    for name in (id, body["ratings"][0]["id"]):
        async with cli.http.get(f"/rl/why/{name}") as response:
            assert response.status == 410 and "was forgotten" in await response.text()
    async with cli.http.get(f"/completions/{id}") as response:
        assert response.status == 410 and "was forgotten" in await response.text()
    async with cli.http.get("/rl/why/rl-none") as response:
        assert response.status == 404


async def test_the_newest_answer_is_the_one_that_a_rating_takes(cli: Proxy) -> None:
    code, _, err = await rlproxy(cli.home, "why", "last")
    assert code == 1 and "no completion to rate yet" in err
    await cli.chat("a")
    newest = (await cli.chat("b", headers={"x-rl-session": "s"})).headers["x-rl-completion-id"]
    other = (await cli.chat("c", headers={"x-rl-session": "t"})).headers["x-rl-completion-id"]
    await cli.chat("d", headers={"x-rl-turn": "side"})
    assert (await cli.get("/rl/why/last"))["completion"] == other
    assert (await cli.get("/rl/why/last?session=s"))["completion"] == newest
    assert (await cli.get("/rl/completions/last"))["id"] == other
    for words in (("why",), ("why", "last")):
        code, out, _ = await rlproxy(cli.home, *words)
        assert code == 0 and out.startswith(f"answer {other}, ")
    code, out, _ = await rlproxy(cli.home, "good", "--id", "last")
    assert code == 0 and other in out
    code, out, _ = await rlproxy(cli.home, "fix", "Better.", "--id", "last")
    assert code == 0 and other in out
