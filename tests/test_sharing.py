"""Several relays on one database: one captures, another rates, one learns, all follow, and none needs it to answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from proxy.access.security import KEYS
from proxy.relay.rollouts import sampler
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.in_process import Proxy
from scripts.harness.postgres import PostgresServer
from scripts.harness.versions import publish
from tests.proxy.web.test_importing import exported, imported

pytestmark = pytest.mark.postgres


def relay(home: Path, backend: FakeBackend, url: str) -> Proxy:
    proxy = Proxy(home, backend, FakeLauncher())
    proxy.flags |= {"store.url": url, "train.adapters_dir": home.parent / "adapters"}
    return proxy


@pytest.fixture
async def pair(tmp_path: Path, backend: FakeBackend, database: str) -> AsyncIterator[tuple[Proxy, Proxy]]:
    first, second = (relay(tmp_path / name, backend, database) for name in ("1", "2"))
    await first.start()
    await until(lambda: leads(first))
    await second.start()
    yield first, second
    await second.stop()
    await first.stop()


def leads(proxy: Proxy) -> bool:
    assert proxy.store.sharing is not None
    return proxy.store.sharing.following.leads


async def until(condition: Callable[[], bool | Awaitable[bool]], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            holds = condition()
            if holds if isinstance(holds, bool) else await holds:
                return
            await asyncio.sleep(0.05)


async def ask(proxy: Proxy, text: str = "hello") -> str:
    answer = await proxy.chat(text)
    assert answer.status == 200
    await answer.read()
    return answer.headers["x-rl-completion-id"]


async def test_an_answer_of_one_relay_is_rated_at_the_other(pair: tuple[Proxy, Proxy]) -> None:
    first, second = pair
    id = await ask(first)
    status, body = await second.rate(completion_id=id, rating="good")
    assert status == 201, body
    completion = await first.store.completions.get(id)
    assert completion is not None and [rating.id for rating in completion.ratings] == [body["id"]]
    assert [leads(first), leads(second)] == [True, False]
    status, body = await second.rate(completion_id="rl-unknown", rating="good")
    assert status == 404 and "another relay" in body["error"]["message"]


async def test_a_swap_at_one_relay_is_a_swap_at_the_other(pair: tuple[Proxy, Proxy], backend: FakeBackend) -> None:
    first, second = pair
    await first.post("/rl/pause")
    await first.rate(completion_id=await ask(first), rating="good")
    await publish(first, 1)

    async def version(proxy: Proxy) -> str:
        answer = await proxy.chat("which?")
        await answer.read()
        assert answer.status == 200
        return answer.headers["x-rl-adapter"]

    async def both_are(name: str) -> None:
        async def are() -> bool:
            return [await version(first), await version(second)] == [name, name]

        await until(are, seconds=10.0)

    assert (await first.post("/rl/promote/1"))[0] == 200
    await both_are("v1")
    assert (await second.post("/rl/rollback"))[0] == 200
    await both_are("base")
    assert backend.unknown == 0, "no relay asked for a version that the server did not have"


async def test_what_one_relay_forgot_no_import_at_the_other_brings_back(pair: tuple[Proxy, Proxy]) -> None:
    first, second = pair
    id = await ask(first)
    rows = await exported(first)
    assert [row["id"] for row in rows] == [id]
    async with first.http.post("/rl/forget", json={"completion": id}) as response:
        assert response.status == 200, await response.text()
    reply = await imported(second, rows)
    assert (reply["stored"], reply["forgotten"]) == (0, 1)
    assert await exported(second) == []


async def test_another_relay_learns_when_the_learner_stops(pair: tuple[Proxy, Proxy]) -> None:
    first, second = pair
    await first.stop()
    await until(lambda: leads(second))
    await first.start()
    assert not leads(first)


async def test_both_rate_the_same_answer_at_once(pair: tuple[Proxy, Proxy]) -> None:
    first, second = pair
    id = await ask(first)
    replies = await asyncio.gather(
        *(relay.rate(completion_id=id, rating=value) for relay in pair for value in ("good", "bad") * 2)
    )
    assert {status for status, _ in replies} <= {200, 201}
    completion = await second.store.completions.get(id)
    assert completion is not None and len(completion.ratings) == 1
    assert (await first.store.meta.audit_log(10)) == (await second.store.meta.audit_log(10))


async def test_a_key_that_one_relay_revokes_opens_nothing_at_the_other(pair: tuple[Proxy, Proxy]) -> None:
    first, second = pair
    key, text = await first.app[KEYS].create("ann", "use", "me")
    headers = {"authorization": f"Bearer {text}"}

    async def status() -> int:
        async with second.http.get("/v1/models", headers=headers) as response:
            return response.status

    async def works() -> bool:
        return await status() == 200

    async def is_refused() -> bool:
        return await status() == 401

    await until(works)
    await first.store.keys.revoke(key.id, "me")
    await until(is_refused)


async def test_while_the_database_is_away_answers_go_on_and_are_delivered_once(
    tmp_path: Path, backend: FakeBackend, durable: PostgresServer
) -> None:
    url = durable.url(durable.create())
    proxy = relay(tmp_path / "1", backend, url)
    await proxy.start()
    before = await ask(proxy, "before")
    durable.kill()
    ids = [await ask(proxy, f"away {n}") for n in range(5)]
    assert proxy.store.sharing is not None and proxy.store.sharing.spooled == 5
    status, body = await proxy.rate(completion_id=before, rating="good")
    assert (status, body["error"]["code"]) == (503, "database_away")
    assert "send this again" in body["error"]["message"]
    durable.start()
    await until(lambda: proxy.store.sharing is not None and proxy.store.sharing.spooled == 0)

    async def is_rated() -> bool:  # sent again, as the 503 asks for: connections that read come back a moment later
        return (await proxy.rate(completion_id=ids[0], rating="good"))[0] in (200, 201)

    await until(is_rated)
    stored = [row["id"] async for row in proxy.store.transfer.export()]
    assert stored == [before, *ids]
    await proxy.stop()


async def test_what_was_spooled_survives_the_relay(
    tmp_path: Path, backend: FakeBackend, durable: PostgresServer
) -> None:
    url = durable.url(durable.create())
    proxy = relay(tmp_path / "1", backend, url)
    await proxy.start()
    durable.kill()
    ids = [await ask(proxy, f"away {n}") for n in range(3)]
    await proxy.stop()
    durable.start()
    await proxy.start()
    await until(lambda: proxy.store.sharing is not None and proxy.store.sharing.spooled == 0)
    assert [row["id"] async for row in proxy.store.transfer.export()] == ids
    await proxy.stop()


async def test_the_relay_that_learns_samples_rollouts_and_no_other(
    pair: tuple[Proxy, Proxy], backend: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    file = tmp_path / "my.py"
    file.write_text("def reward(episode):\n    return 1\n")
    for name, seconds in (("SILENCE_S", 0.3), ("LOOK_S", 0.02), ("REST_S", 0.02)):
        monkeypatch.setattr(sampler, name, seconds)
    await second.stop()
    await first.stop()
    await first.start(train__reward=f"{file}:reward", train__rollouts=4)
    await until(lambda: leads(first))
    await second.start(train__reward=f"{file}:reward", train__rollouts=4)
    asked = len(backend.requests)
    await ask(second)

    async def sampled() -> bool:
        return bool((await second.get("/rl/status"))["rollouts"]["answers"] == 4)

    await until(sampled)
    await asyncio.sleep(0.5)
    assert len(backend.requests) == asked + 1 + 4
    assert (await second.get("/rl/status"))["rollouts"]["line"].endswith("the relay that learns samples")
    backend.hold.clear()  # a question at the other one: its row is in the database a second later
    asking = asyncio.create_task(ask(second, "another"))

    async def waits() -> bool:
        return "another relay was asked" in (await first.get("/rl/status"))["rollouts"]["line"]

    await until(waits)
    backend.hold.set()
    await asking


FULL = """CREATE FUNCTION rlproxy.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON rlproxy.completions
FOR EACH STATEMENT EXECUTE FUNCTION rlproxy.refuse()"""
FREED = "DROP TRIGGER full_disk ON rlproxy.completions"


async def test_while_the_databases_disk_is_full_answers_are_spooled_and_none_is_refused(
    tmp_path: Path, backend: FakeBackend, durable: PostgresServer
) -> None:
    name = durable.create()
    proxy = relay(tmp_path / "1", backend, durable.url(name))
    await proxy.start()
    before = await ask(proxy, "before")
    durable.execute(FULL, name)
    ids = [await ask(proxy, "full")]
    assert proxy.store.sharing is not None
    await asyncio.sleep(2.0)  # a delivery is tried meanwhile
    ids += [await ask(proxy, f"full {n}") for n in range(3)]
    assert (proxy.store.sharing.spooled, proxy.store.sharing.refused) == (4, None)
    durable.execute(FREED, name)
    await until(lambda: proxy.store.sharing is not None and proxy.store.sharing.spooled == 0)
    assert [row["id"] async for row in proxy.store.transfer.export()] == [before, *ids]
    await proxy.stop()
