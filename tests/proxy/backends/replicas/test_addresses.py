"""Servers that a name of the DNS stands for: read, joined, and let go of while they answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from pydantic import ValidationError

from config.sections import BackendSection
from config.settings import load
from proxy.backends import make_backend
from proxy.backends.replicas import addresses
from proxy.backends.replicas.addresses import NameUnknown, ServerName
from proxy.core.errors import BadRequest
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.in_process import Proxy
from scripts.harness.versions import publish
from tests.proxy.backends.replicas.test_replicas import answered_anywhere, said_at_last, state, until

pytestmark = pytest.mark.allow_hosts(["127.0.0.1", "127.0.0.2", "127.0.0.3", "::1"])

HERE = ("127.0.0.1", "127.0.0.2", "127.0.0.3")  # all of them are this machine


class Records:
    """A fake DNS: the addresses of one name."""

    def __init__(self, *known: str) -> None:
        self.known: Sequence[str] = known
        self.error: OSError | None = None

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        if self.error is not None:
            raise self.error
        return self.known


@pytest.fixture
async def fakes() -> AsyncIterator[list[FakeBackend]]:
    """Three servers of one port, each at an address of its own."""
    fakes = [FakeBackend() for _ in HERE]
    port = 0
    for fake, host in zip(fakes, HERE, strict=True):
        await fake.start(port, host)
        port = fake.port
    yield fakes
    for fake in fakes:
        await fake.stop()


@pytest.fixture
async def records(monkeypatch: pytest.MonkeyPatch) -> Records:
    records = Records(*HERE[:2])
    monkeypatch.setattr(addresses, "system_lookup", records)
    monkeypatch.setattr("proxy.backends.replicas.replicas.LOOK_DOWN_S", 0.05)
    monkeypatch.setattr("proxy.backends.replicas.replicas.LOOK_UP_S", 0.1)
    return records


@pytest.fixture
async def named(tmp_path: Path, fakes: list[FakeBackend], records: Records) -> AsyncIterator[Proxy]:
    """A proxy before all servers of one name, with a version that is live."""
    proxy = Proxy(tmp_path / "home", fakes[0], FakeLauncher())
    proxy.kind = None
    proxy.flags["backend.url"] = f"dns://vllm.models.svc:{fakes[0].port}"
    await proxy.start()
    await proxy.post("/rl/pause")
    await proxy.chat("q")
    await proxy.rate(completion_id="last", rating="good")
    await publish(proxy, 1)
    assert (await proxy.post("/rl/promote/1"))[0] == 200
    yield proxy
    await proxy.stop()


async def test_one_that_comes_has_the_version_before_it_is_asked(
    named: Proxy, fakes: list[FakeBackend], records: Records
) -> None:
    assert await state(named) == "vllm, 2 of 2 replicas answer" and not fakes[2].adapters
    records.known = HERE
    await said_at_last(named, "3 of 3")
    assert set(fakes[2].adapters) == {f"fake@v1-{named.mark}"}
    while not fakes[2].asked:
        assert await answered_anywhere(named) == "v1"
    assert fakes[2].unknown == 0


async def test_one_that_goes_ends_its_answers_and_gets_no_more(
    named: Proxy, fakes: list[FakeBackend], records: Records
) -> None:
    fakes[1].hold.clear()
    fakes[1].requests.clear()
    asked = []
    while not fakes[1].requests:
        asked.append(asyncio.create_task(named.chat(f"before {len(asked)}")))
        await asyncio.sleep(0.02)
    records.known = HERE[:1]
    await said_at_last(named, "does not have it any more")
    count = len(fakes[1].requests)
    for _ in range(6):
        assert await answered_anywhere(named) == "v1"
    assert len(fakes[1].requests) == count
    records.known = HERE[:2]  # it comes back before it has gone
    await said_at_last(named, "2 of 2")
    records.known = HERE[:1]
    await said_at_last(named, "does not have it any more")
    fakes[1].hold.set()
    assert {response.status for response in await asyncio.gather(*asked)} == {200}
    await said_at_last(named, "1 of 1 replicas answer")


async def test_a_dns_that_fails_sends_nobody_away(named: Proxy, fakes: list[FakeBackend], records: Records) -> None:
    records.error = socket.gaierror("temporary failure in name resolution")
    text = await said_at_last(named, "temporary failure")
    assert "2 of 2 replicas answer" in text
    assert await answered_anywhere(named) == "v1"
    records.error, records.known = None, ()
    assert "has no address now" in await said_at_last(named, "no address now")
    assert await answered_anywhere(named) == "v1"
    records.known = HERE
    await said_at_last(named, "3 of 3")


async def test_one_that_hangs_keeps_nobody_from_being_looked_at(
    named: Proxy, fakes: list[FakeBackend], records: Records
) -> None:
    fakes[2].hold_lists.clear()
    records.known = HERE
    await said_at_last(named, "of 3 replicas")
    fakes[1].adapters.clear()  # restarted: its next look gives it back
    await until(lambda: set(fakes[1].adapters) == {f"fake@v1-{named.mark}"})
    fakes[2].hold_lists.set()
    await said_at_last(named, "3 of 3")


async def test_one_that_is_no_model_server_is_left_out(
    named: Proxy, fakes: list[FakeBackend], records: Records
) -> None:
    fakes[2].mood = "error"
    fakes[2].model = "other"
    records.known = HERE
    assert "2 of 3" in await said_at_last(named, "serves other")
    assert await answered_anywhere(named) == "v1"


async def test_one_of_another_address_with_nobody_behind_it_is_left_out(
    named: Proxy, fakes: list[FakeBackend], records: Records
) -> None:
    await fakes[1].stop()
    assert await answered_anywhere(named) == "v1"
    await said_at_last(named, "1 of 2")
    records.known = HERE[:1]
    await said_at_last(named, "1 of 1")


async def test_a_name_that_nobody_knows_yet_is_asked_until_somebody_does(
    tmp_path: Path, fakes: list[FakeBackend], records: Records
) -> None:
    records.known = ()
    flags = {"backend.kind": "vllm", "backend.url": f"dns://later.svc:{fakes[0].port}", "home": tmp_path}
    proxy = Proxy(tmp_path / "home", fakes[0], FakeLauncher())
    proxy.kind = None
    proxy.flags["backend.url"] = flags["backend.url"]
    await proxy.start()
    try:
        assert (await proxy.chat("q")).status == 503
        records.known = HERE[:1]
        await until_answered(proxy)
    finally:
        await proxy.stop()


async def until_answered(proxy: Proxy) -> None:
    async with asyncio.timeout(10):
        while (await proxy.chat("q")).status != 200:
            await asyncio.sleep(0.05)


async def test_addresses_are_urls_in_one_order() -> None:
    name = ServerName("dns://vllm.svc:8000", Records("10.0.0.9", "10.0.0.2", "fd00::1"))
    assert await name.urls() == ["http://10.0.0.2:8000", "http://10.0.0.9:8000", "http://[fd00::1]:8000"]


async def test_this_systems_resolver_is_asked() -> None:
    assert "http://127.0.0.1:8000" in await ServerName("dns://localhost:8000").urls()
    with pytest.raises(NameUnknown, match=r"no-such-name\.invalid has no address now"):
        await ServerName("dns://no-such-name.invalid:8000").urls()


async def test_names_are_for_vllm_and_have_a_host(tmp_path: Path) -> None:
    flags = {"backend.kind": "openai", "backend.url": "dns://host:8000", "home": tmp_path}
    with pytest.raises(BadRequest, match="are for vLLM"):
        make_backend(load(flags, environ={}).settings, FakeLauncher())
    for wrong in ("dns://", "dns://host:0", "dns://key@host:1"):
        with pytest.raises(ValidationError):
            BackendSection(url=wrong)


async def test_one_that_goes_while_it_is_warmed_up_keeps_no_version_from_going_live(
    named: Proxy, fakes: list[FakeBackend], records: Records
) -> None:
    await named.chat("q2")
    await named.rate(completion_id="last", rating="good")
    await publish(named, 2)
    fakes[1].hold.clear()
    fakes[1].requests.clear()
    swap = asyncio.create_task(named.post("/rl/promote/2"))
    await until(lambda: bool(fakes[1].requests))
    records.known = HERE[:1]  # its pod is being ended
    await said_at_last(named, "1 of 1 replicas answer")
    await fakes[1].stop()
    status, body = await swap
    assert status == 200, body
    assert await answered_anywhere(named) == "v2"


async def test_one_that_has_gone_gets_no_request_when_its_last_look_ends(
    named: Proxy, fakes: list[FakeBackend], records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes[1].hold.clear()
    fakes[1].requests.clear()
    asked = []
    while not fakes[1].requests:  # so that it is not forgotten yet
        asked.append(asyncio.create_task(named.chat(f"before {len(asked)}")))
        await asyncio.sleep(0.02)
    fakes[1].hold_lists.clear()
    count = fakes[1].lists
    await until(lambda: fakes[1].lists > count)
    records.known = HERE[:1]
    await said_at_last(named, "does not have it any more")
    monkeypatch.setattr("proxy.backends.replicas.replicas.LOOK_UP_S", 60.0)  # the DNS is not asked again
    fakes[1].hold_lists.set()
    await asyncio.sleep(0.3)
    assert "does not have it any more" in await state(named)
    fakes[1].hold.set()
    assert {response.status for response in await asyncio.gather(*asked)} == {200}


async def test_one_that_was_late_for_a_version_that_another_refused_does_not_keep_it(
    named: Proxy, fakes: list[FakeBackend], records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.backends.replicas.replicas.GRACE_S", 0.2)
    records.known = HERE
    await said_at_last(named, "3 of 3")
    await named.chat("q2")
    await named.rate(completion_id="last", rating="good")
    await publish(named, 2)
    fakes[1].refuse_load = True
    fakes[2].hold_load.clear()
    status, _ = await named.post("/rl/promote/2")
    assert status == 502
    fakes[2].adapters[f"fake@v2-{named.mark}"] = "/its/path"  # vLLM ends a load that nobody waits for any more
    fakes[2].hold_load.set()
    await said_at_last(named, "3 of 3")
    await until(lambda: set(fakes[2].adapters) == {f"fake@v1-{named.mark}"})


async def test_a_version_that_nobody_waits_for_any_more_stays_in_none(
    named: Proxy, fakes: list[FakeBackend], records: Records
) -> None:
    await named.chat("q2")
    await named.rate(completion_id="last", rating="good")
    await publish(named, 2)
    adapter = await named.store.versions.get(2)
    assert adapter is not None
    fakes[1].hold_load.clear()
    load = asyncio.create_task(named.app_backend.load("fake@v2", Path(adapter.path)))
    await until(lambda: f"fake@v2-{named.mark}" in fakes[0].adapters)
    load.cancel()
    await asyncio.wait([load])
    fakes[1].hold_load.set()
    await until(lambda: set(fakes[0].adapters) == {f"fake@v1-{named.mark}"})


async def test_one_that_goes_while_memory_is_taken_back_leaves_no_other_asleep(
    named: Proxy, fakes: list[FakeBackend], records: Records
) -> None:
    records.known = HERE
    await said_at_last(named, "3 of 3")
    for fake in fakes:
        fake.sleeps = True
    records.known = HERE[1:]
    backend = named.app_backend
    await asyncio.gather(backend.reclaim(), backend._ask_names())
    assert [fake.sleeps for fake in fakes[1:]] == [False, False]
