"""Lines: each has its own ratings, versions and pointer; the rule of which one answers; what a server needs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.harness.command import rlproxy
from scripts.harness.in_process import Proxy
from tests.harness.lines import answers, ask, call, create, rate, until_live
from tests.harness.visits import Visit


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.training.run_supervisor.RECHECK_S", 0.02)


async def test_a_home_without_lines_tells_nothing_of_them(proxy: Proxy) -> None:
    response = await proxy.chat("x")
    assert "x-rl-line" not in response.headers
    assert [m["id"] for m in (await proxy.get("/v1/models"))["data"]] == ["fake", "fake@base"]
    assert (await proxy.get("/rl/status"))["lines"] == ["common"]
    response = await proxy.chat("x", model="fake@common")  # as before, a model of the backend's own
    assert response.headers["x-rl-adapter"] == "none"


async def test_two_lines_learn_each_from_its_own_ratings(proxy: Proxy) -> None:
    line = await create(proxy, "ann")
    assert (line["model"], line["live"], line["fresh"], line["needed"]) == ("fake@ann", 0, 0, 4)
    await rate(proxy, "common", 3)
    ids = await rate(proxy, "ann", 4)
    await until_live(proxy, "ann", 1)
    run = await proxy.store.runs.get(1)
    assert run is not None and run.line == "ann"
    assert {sample.completion.new.id for sample in await proxy.store.samples.of_run(1)} == set(ids)
    assert await answers(proxy, "ann") == "v1" and await answers(proxy, "common") == "base"
    assert (await ask(proxy, "ann")).headers["x-rl-line"] == "ann"
    status = await proxy.get("/rl/status")
    assert (status["live"], status["ratings"]["fresh"], status["last_run"]) == (0, 3, None)
    await rate(proxy, "common", 1)
    await until_live(proxy, "common", 2)
    assert await answers(proxy, "ann") == "v1" and await answers(proxy, "common") == "v2"


async def test_rolling_back_one_leaves_the_others(proxy: Proxy) -> None:
    await create(proxy, "ann")
    await create(proxy, "bob")
    for version, line in enumerate(("ann", "bob", "common"), 1):
        await rate(proxy, line, 4)
        await until_live(proxy, line, version)
    status, pointer = await proxy.post("/rl/rollback?line=bob")
    assert status == 200 and (pointer["live"], pointer["previous"]) == (0, 2)
    assert [await answers(proxy, line) for line in ("ann", "bob", "common")] == ["v1", "base", "v3"]
    assert (await proxy.post("/rl/promote/v2"))[1]["live"] == 2  # in its own line
    assert [await answers(proxy, line) for line in ("ann", "bob", "common")] == ["v1", "v2", "v3"]
    status, body = await proxy.post("/rl/promote/v1?line=bob")
    assert status == 409 and "v1 is of the line ann" in body["error"]["message"]
    assert (await proxy.post("/rl/reset?line=ann"))[0] == 200
    assert [await answers(proxy, line) for line in ("ann", "bob", "common")] == ["base", "v2", "v3"]


async def test_a_retired_line_says_so_by_each_of_its_names(proxy: Proxy) -> None:
    await create(proxy, "ann")
    assert (await call(proxy, "DELETE", "/rl/lines/ann", None, proxy.local))[0] == 200
    proxy.backend.requests.clear()
    for line, headers in (("ann", {}), ("common", {"x-rl-line": "ann"})):
        response = await ask(proxy, line, **headers)
        assert response.status == 410 and "`rlproxy line restore ann` brings it back" in await response.text()
    assert proxy.backend.requests == []


async def test_lines_outlive_a_restart(proxy: Proxy) -> None:
    await create(proxy, "ann", users=["ann"])
    await rate(proxy, "ann", 4)
    await until_live(proxy, "ann", 1)
    await proxy.stop()
    await proxy.start()
    assert await answers(proxy, "ann") == "v1" and await answers(proxy, "common") == "base"
    response = await ask(proxy, "common", **{"x-rl-user": "ann"})
    assert response.headers["x-rl-line"] == "ann"


async def test_a_line_begins_with_a_version_of_another(proxy: Proxy) -> None:
    await rate(proxy, "common", 4)
    await until_live(proxy, "common", 1)
    assert (await create(proxy, "ann"))["live"] == 1
    assert (await create(proxy, "bob", **{"from": "base"}))["live"] == 0
    await rate(proxy, "common", 6)
    await until_live(proxy, "common", 2)
    assert (await create(proxy, "cy", **{"from": "v1"}))["live"] == 1
    assert [await answers(proxy, line) for line in ("ann", "bob", "cy", "common")] == ["v1", "base", "v1", "v2"]
    await rate(proxy, "ann", 4)
    await until_live(proxy, "ann", 3)
    adapter = await proxy.store.versions.get(3)
    assert adapter is not None and (adapter.parent, adapter.line) == (1, "ann")
    assert (await proxy.post("/rl/rollback?line=ann"))[1]["live"] == 1  # back to where it began


async def test_which_line_answers(proxy: Proxy) -> None:
    await create(proxy, "ann", users=["ann"])
    await create(proxy, "code", agents=["claude-code"])

    async def line(model: str = "fake", **headers: str) -> str:
        response = await proxy.chat("x", model=model, headers=headers)
        assert response.status == 200, await response.text()
        return response.headers.get("x-rl-line", "common")

    assert await line() == "common"
    assert await line(**{"x-rl-user": "ann"}) == "ann"
    assert await line(**{"x-rl-user": "eve"}) == "common"
    assert await line(**{"x-rl-user": "ann", "x-rl-line": "code"}) == "code"  # a header before the user
    assert await line("fake@ann", **{"x-rl-line": "code"}) == "ann"  # the model's name before the header
    assert await line("fake@common", **{"x-rl-user": "ann"}) == "common"
    assert await line(**{"user-agent": "claude-cli/2.0.1 (external, cli)"}) == "code"
    response = await proxy.chat("x", headers={"x-rl-line": "nobody"})
    assert response.status == 404 and "The line nobody does not exist" in (await response.json())["error"]["message"]
    names = [m["id"] for m in (await proxy.get("/v1/models"))["data"]]
    assert names == ["fake", "fake@base", "fake@ann", "fake@code"]


async def test_a_version_by_its_number_is_of_its_line(proxy: Proxy) -> None:
    await create(proxy, "ann")
    await rate(proxy, "ann", 4)
    await until_live(proxy, "ann", 1)
    response = await proxy.chat("x", model="fake@v1")
    assert (response.headers["x-rl-adapter"], response.headers["x-rl-line"]) == ("v1", "ann")
    response = await proxy.chat("x", model="fake@v1", headers={"x-rl-line": "common"})
    assert response.status == 400


async def test_a_key_of_a_line_uses_and_sees_no_other(proxy: Proxy) -> None:
    await create(proxy, "ann")
    await create(proxy, "bob")
    foreign = (await rate(proxy, "bob", 1))[0]
    status, key = await call(proxy, "POST", "/rl/keys", {"name": "ann", "role": "rate", "line": "ann"}, proxy.local)
    assert status == 201 and key["line"] == "ann"
    bearer = {"authorization": f"Bearer {key['key']}"}
    response = await proxy.chat("x", headers=bearer)
    assert response.headers["x-rl-line"] == "ann"
    own = response.headers["x-rl-completion-id"]
    assert (await proxy.chat("x", model="fake@bob", headers=bearer)).status == 403
    assert (await proxy.chat("x", headers={**bearer, "x-rl-line": "bob"})).status == 403
    names = [m["id"] for m in (await call(proxy, "GET", "/v1/models", key=key["key"]))[1]["data"]]
    assert names == ["fake", "fake@base", "fake@ann"]
    rating = {"completion_id": own, "rating": "good"}
    assert (await call(proxy, "POST", "/v1/feedback", rating, key["key"]))[0] == 201
    rating = {"completion_id": foreign, "rating": "bad"}
    assert (await call(proxy, "POST", "/v1/feedback", rating, key["key"]))[0] == 404
    seen = (await call(proxy, "GET", "/rl/completions", key=key["key"]))[1]["data"]
    assert [each["id"] for each in seen] == [own]
    assert (await call(proxy, "GET", f"/rl/completions/{foreign}", key=key["key"]))[0] == 404
    assert (await call(proxy, "GET", "/rl/completions?line=bob", key=key["key"]))[0] == 403
    assert [each["name"] for each in (await call(proxy, "GET", "/rl/lines", key=key["key"]))[1]["data"]] == ["ann"]
    assert (await call(proxy, "GET", "/rl/status", key=key["key"]))[1]["line"] == "ann"
    theirs = {"completion_id": foreign, "rating": "bad", "rater": "ann"}
    taken = (await call(proxy, "POST", "/v1/feedback", theirs, proxy.local))[1]["id"]
    assert (await call(proxy, "DELETE", f"/v1/feedback/{taken}", key=key["key"]))[0] == 404
    undone = (await call(proxy, "DELETE", "/v1/feedback/last", key=key["key"]))[1]
    assert undone["completion_id"] == own
    for path in ("/rl/runs", "/rl/adapters", "/rl/events", "/rl/why/x", "/"):
        assert (await call(proxy, "GET", path, key=key["key"]))[0] == 403, path
    assert (await call(proxy, "POST", "/rl/keys", {"name": "x", "role": "admin", "line": "ann"}, proxy.local))[0] == 400
    assert (await call(proxy, "POST", "/rl/keys", {"name": "x", "line": "nobody"}, proxy.local))[0] == 404


async def test_a_key_of_a_line_counts_and_asks_by_no_other_version(proxy: Proxy) -> None:
    await create(proxy, "ann")
    await create(proxy, "bob")
    await rate(proxy, "bob", 4)
    await until_live(proxy, "bob", 1)
    proxy.backend.adapters["fake@v1-0a1b2c"] = "as a server names it"
    _, key = await call(proxy, "POST", "/rl/keys", {"name": "ann", "role": "rate", "line": "ann"}, proxy.local)
    bearer, messages = {"authorization": f"Bearer {key['key']}"}, [{"role": "user", "content": "x"}]
    proxy.backend.requests.clear()
    for model in ("fake@bob", "fake@v1", "fake@v1-0a1b2c"):
        assert (await proxy.chat("x", model=model, headers=bearer)).status == 403, model
        body = {"model": model, "messages": messages}
        assert (await call(proxy, "POST", "/v1/messages/count_tokens", body, key["key"]))[0] == 403, model
    assert proxy.backend.requests == []


async def test_a_line_ends_and_comes_back(proxy: Proxy) -> None:
    await create(proxy, "ann", users=["ann"])
    await rate(proxy, "ann", 4)
    await until_live(proxy, "ann", 1)
    assert (await call(proxy, "DELETE", "/rl/lines/ann", key=proxy.local))[0] == 200
    response = await ask(proxy, "common", **{"x-rl-line": "ann"})
    assert response.status == 410
    assert "x-rl-line" not in (await ask(proxy, "common", **{"x-rl-user": "ann"})).headers
    assert proxy.backend.adapters == {}
    assert (await call(proxy, "DELETE", "/rl/lines/ann", key=proxy.local))[0] == 410
    assert (await call(proxy, "POST", "/rl/lines/ann/restore", key=proxy.local))[1]["live"] == 1
    assert await answers(proxy, "ann") == "v1"
    assert (await call(proxy, "DELETE", "/rl/lines/common", key=proxy.local))[0] == 400


@pytest.mark.parametrize("name", ["base", "common", "v7", "7", "latest", "Ann", "a b", "", "a" * 41, "-a"])
async def test_names_that_mean_something_else(proxy: Proxy, name: str) -> None:
    status, body = await call(proxy, "POST", "/rl/lines", {"name": name}, proxy.local)
    assert status == 400 and "Nothing was made" in body["error"]["message"]


async def test_one_user_is_of_one_line(proxy: Proxy) -> None:
    await create(proxy, "ann", users=["ann"])
    status, body = await call(proxy, "POST", "/rl/lines", {"name": "bob", "users": ["ann"]}, proxy.local)
    assert status == 409 and "ann is of the line ann" in body["error"]["message"]
    assert (await call(proxy, "POST", "/rl/lines/ann", {"users": []}, proxy.local))[1]["users"] == []
    await create(proxy, "bob", users=["ann"])
    assert (await call(proxy, "POST", "/rl/lines", {"name": "bob"}, proxy.local))[0] == 409


async def test_a_server_of_one_adapter_has_no_second_line(proxy: Proxy) -> None:
    backend = proxy.app_backend
    backend.capabilities = replace(backend.capabilities, single_version=True)
    status, body = await call(proxy, "POST", "/rl/lines", {"name": "ann"}, proxy.local)
    assert status == 501 and "one adapter at a time" in body["error"]["message"]
    assert (await proxy.get("/rl/lines"))["data"][1:] == []


async def test_a_server_of_few_places_has_few_lines(proxy: Proxy) -> None:
    proxy.backend.max_cpu_loras = 5
    await create(proxy, "ann")
    status, body = await call(proxy, "POST", "/rl/lines", {"name": "bob"}, proxy.local)
    assert status == 501 and "--max-cpu-loras 7 --max-loras 3" in body["error"]["message"]


async def test_why_tells_which_weights_answered(proxy: Proxy) -> None:
    await create(proxy, "ann")
    first = (await rate(proxy, "ann", 4))[0]
    await until_live(proxy, "ann", 1)
    newest = (await ask(proxy, "ann")).headers["x-rl-completion-id"]
    explained = await proxy.get(f"/rl/why/{newest}")
    adapter = await proxy.store.versions.get(1)
    assert adapter is not None and explained["line"] == "ann"
    digest = adapter.manifest["files"]["adapter_model.safetensors"]
    assert explained["weights"] == {"model": "fake@v1", "state": "intact", "sha256": digest, "run": 1}
    (Path(adapter.path) / "adapter_model.safetensors").write_bytes(b"another one")
    assert (await proxy.get(f"/rl/why/{newest}"))["weights"]["state"] == "changed"
    assert (await proxy.get(f"/rl/why/{first}"))["weights"]["state"] == "base"


async def test_the_chat_acts_on_its_line(proxy: Proxy) -> None:
    await create(proxy, "ann")
    for version, name in enumerate(("common", "ann"), 1):
        await rate(proxy, name, 4)
        await until_live(proxy, name, version)
    assert "the base model is live again in the line ann" in await proxy.say("/rl rollback", model="fake@ann")
    assert [await answers(proxy, name) for name in ("common", "ann")] == ["v1", "base"]
    assert "fake@ann, the base model answers" in await proxy.say("/rl status", model="fake@ann")


async def test_an_episode_is_of_one_line(proxy: Proxy) -> None:
    await create(proxy, "ann")
    async with proxy.http.post("/rl/episodes", json={"id": "e1"}, headers={"x-rl-line": "ann"}) as response:
        assert response.status == 201
    response = await proxy.chat("x", headers={"x-rl-session": "e1"})
    assert response.headers["x-rl-line"] == "ann"
    async with proxy.http.post("/rl/episodes/e1/reward", json={"reward": 1.0}) as response:
        assert response.status == 201
    ready = await proxy.store.episode_groups.ready(live=0, max_version_gap=8, size=8, timeout_s=9, line="ann")
    assert ready.episodes == 1
    ready = await proxy.store.episode_groups.ready(live=0, max_version_gap=8, size=8, timeout_s=9)
    assert ready.episodes == 0


async def test_lines_take_turns(proxy: Proxy) -> None:
    """A line that brings more ratings does not keep another one waiting."""
    await create(proxy, "ann")
    await proxy.post("/rl/pause")
    for _ in range(2):
        await rate(proxy, "common", 4)
    await rate(proxy, "ann", 4)
    await proxy.post("/rl/resume")
    await until_live(proxy, "ann", 2)
    runs = sorted((run.id, run.line) for run in await proxy.store.runs.recent())
    assert runs[:2] == [(1, "common"), (2, "ann")]


async def test_an_experiment_is_of_its_line(proxy: Proxy) -> None:
    await create(proxy, "ann")
    await rate(proxy, "ann", 4)
    await until_live(proxy, "ann", 1)
    await proxy.post("/rl/rollback?line=ann")
    async with proxy.http.post("/rl/experiments", json={"version": 1, "share": 0.5}) as response:
        assert response.status == 201, await response.text()
    for index in range(12):
        response = await proxy.chat(f"common {index}")
        assert response.headers["x-rl-adapter"] == "base"
    seen = {(await ask(proxy, "ann", f"ann {index}")).headers["x-rl-adapter"] for index in range(24)}
    assert seen == {"base", "v1"}


async def test_forgetting_steps_back_in_the_line_that_learned(proxy: Proxy) -> None:
    await create(proxy, "ann")
    await rate(proxy, "common", 4)
    await until_live(proxy, "common", 1)
    ids = await rate(proxy, "ann", 4)
    await until_live(proxy, "ann", 2)
    body = {"completion": ids[0], "retrain": True}
    status, forgotten = await call(proxy, "POST", "/rl/forget", body, proxy.local)
    assert status == 200 and forgotten["trained"] == [2]
    await until_live(proxy, "ann", 3)  # of the three ratings that are left, without a threshold
    assert await answers(proxy, "common") == "v1"
    run = await proxy.store.runs.get(3)
    assert run is not None and (run.line, run.parent) == ("ann", 0)
    assert not Path((await proxy.store.versions.get(2)).path).name  # type: ignore[union-attr]


async def test_a_user_is_of_one_line_also_where_two_admins_ask_at_once(proxy: Proxy) -> None:
    names = ("ann", "bob", "cy")
    bodies = [{"name": name, "users": ["eve"]} for name in names]
    made = await asyncio.gather(*(call(proxy, "POST", "/rl/lines", body, proxy.local) for body in bodies))
    assert sorted(status for status, _ in made) == [201, 409, 409]
    assert sum(line["users"] == ["eve"] for line in (await proxy.get("/rl/lines"))["data"]) == 1


async def test_a_line_whose_version_cannot_be_loaded_is_not_half_made(proxy: Proxy) -> None:
    await rate(proxy, "common", 4)
    await until_live(proxy, "common", 1)
    adapter = await proxy.store.versions.get(1)
    assert adapter is not None
    await proxy.stop()
    weights = Path(adapter.path) / "adapter_model.safetensors"
    sound = weights.read_bytes()
    weights.write_bytes(b"torn")
    await proxy.start()  # the base answers
    body = {"name": "ann", "from": "v1"}
    assert (await call(proxy, "POST", "/rl/lines", body, proxy.local))[0] == 409
    assert await proxy.store.lines.all() == []
    weights.write_bytes(sound)
    assert (await call(proxy, "POST", "/rl/lines", body, proxy.local))[0] == 201


async def test_a_swap_under_way_does_not_bring_a_retired_line_back(proxy: Proxy) -> None:
    await create(proxy, "ann")
    proxy.backend.hold_load.clear()
    await rate(proxy, "ann", 4)
    while await proxy.store.versions.get(1) is None:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)  # its load is under way
    retired = asyncio.create_task(call(proxy, "DELETE", "/rl/lines/ann", key=proxy.local))
    await asyncio.sleep(0.05)
    proxy.backend.hold_load.set()
    assert (await retired)[0] == 200
    assert (await proxy.get("/rl/status"))["lines"] == ["common"]
    assert (await ask(proxy, "ann")).status == 410
    while proxy.backend.adapters:  # nobody uses it
        await asyncio.sleep(0.01)


async def test_a_countdown_counts_the_line_of_the_answer(cli: Proxy, proxy: Proxy) -> None:
    await create(proxy, "ann", users=["ann"])
    await rate(proxy, "common", 3)
    id = (await ask(proxy, "ann")).headers["x-rl-completion-id"]
    code, out, _ = await rlproxy(cli.home, "good", "--id", id)
    assert code == 0 and "1 of 4" in out, out
    assert "1 of 4 ratings" in await proxy.say("x", "You said: x ", "/rl bad"), "not those of the line of the command"
    visit = Visit(proxy.url)
    await visit.get("/")
    await visit.post(f"/page/completions/{id}/rate", rating="good")
    await visit.http.close()
    assert "1 of 4 ratings" in visit.told
    await call(proxy, "DELETE", "/rl/lines/ann", key=proxy.local)
    code, out, _ = await rlproxy(cli.home, "good", "--id", id)
    assert code == 0 and "retired" in out
