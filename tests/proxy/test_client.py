"""`proxy.client` against a whole proxy: what it stores, what it returns, what it says, and that its types hold."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.client import AsyncClient, Client, NotTrained, Refused, Unreachable
from scripts.fakes.another_program import AnotherProgram
from scripts.harness.in_process import Proxy
from tests.harness.lines import create, rate
from tests.harness.runs import rated, until

ROOT = Path(__file__).resolve().parents[2]


async def test_rated_replaced_and_taken_back(proxy: Proxy) -> None:
    openai = pytest.importorskip("openai")
    async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="x") as sdk, AsyncClient(proxy.url) as rlproxy:
        answer = await sdk.chat.completions.create(model="fake", messages=[{"role": "user", "content": "hi"}])
        first = await rlproxy.rate(answer, "bad", comment="too long", correction="Hi.", rater="ann", event_id="e1")
        again = await rlproxy.rate(answer, "bad", comment="too long", correction="Hi.", rater="ann", event_id="e1")
        assert first.id == again.id and first.completion_id == answer.id
        assert (first.value, first.comment, first.correction, first.rater) == (-1.0, "too long", "Hi.", "ann")
        better = await rlproxy.rate(answer.id, "4/5", rater="ann")
        assert better.value == 0.5 and better.replaced == first.id
        assert (await rlproxy.undo(better)).id == better.id
        with pytest.raises(Refused, match="no rating to undo") as refused:
            await rlproxy.undo(rater="ann")
        assert (refused.value.status, refused.value.code) == (409, "conflict")


@pytest.mark.parametrize(("rating", "value"), [("good", 1.0), (True, 1.0), (False, -1.0), (1, 1.0), (-0.5, -0.5)])
async def test_what_a_rating_may_be(proxy: Proxy, rating: str | bool | float, value: float) -> None:
    """A bare 1 is full praise here, never one star: stars are words."""
    await proxy.say("hi")
    given = await asyncio.to_thread(Client(f"{proxy.url}/v1/").rate, "last", rating)
    assert given.value == value


async def test_waiting_for_the_version_that_ratings_make(proxy: Proxy) -> None:
    async with AsyncClient(proxy.url) as rlproxy:
        before = await rlproxy.status()
        assert (before.model, before.live, before.needed, before.last_run) == ("fake", 0, 4, 0)
        for _ in range(4):
            await proxy.say("hi")
            await rlproxy.rate("last", "good")
        assert await rlproxy.wait_until_trained(before, timeout_s=30) == 1
        (version,) = await rlproxy.versions()
        assert (version.version, version.parent, version.run, version.live) == (1, 0, 1, True)
        with pytest.raises(NotTrained, match="No new version answers after 0 s: training waits"):
            await rlproxy.wait_until_trained(timeout_s=0)
        proxy.launcher.outcome = "rejected"
        before = await rlproxy.status()
        for _ in range(4):
            await proxy.say("hi")
            await rlproxy.rate("last", "bad")
        with pytest.raises(NotTrained, match="Run 2 ended rejected, so no version is new: it rejected"):
            await asyncio.to_thread(Client(proxy.url).wait_until_trained, before, timeout_s=30)


@pytest.mark.parametrize("outcome", ["passed", "rejected"])
async def test_runs_of_other_lines_are_not_waited_for(proxy: Proxy, outcome: str) -> None:
    """Run 2 is Ann's; run 3 is the common line's."""
    await create(proxy, "ann")
    await rated(proxy, 4)
    await until(proxy, live=1)
    async with AsyncClient(proxy.url) as rlproxy:
        before = await rlproxy.status()
        proxy.launcher.outcome = outcome
        await rate(proxy, "ann", 4)
        while not any(run["id"] == 2 and run["ended_at"] for run in (await proxy.get("/rl/runs"))["data"]):
            await asyncio.sleep(0.01)
        proxy.launcher.outcome = "passed"
        await rated(proxy, 4)
        version = await rlproxy.wait_until_trained(before, timeout_s=30)
        assert version == (await rlproxy.status()).live
        assert {each.run for each in await rlproxy.versions() if each.version == version} == {3}


async def test_what_it_says_where_there_is_no_rlproxy() -> None:
    nobody = "http://127.0.0.1:1"
    with pytest.raises(Unreachable, match=r"No rlproxy answers at http://127.0.0.1:1 .*`rlproxy serve`"):
        await asyncio.to_thread(Client(nobody).status)
    async with AsyncClient(nobody) as rlproxy:
        with pytest.raises(Unreachable, match="No rlproxy answers"):
            await rlproxy.rate("rl-1", "good")
    page = AnotherProgram()
    await page.start()
    try:
        with pytest.raises(Unreachable, match="is another program"):
            await asyncio.to_thread(Client(page.url).versions)
    finally:
        await page.stop()


async def test_a_key_goes_along(proxy: Proxy) -> None:
    await proxy.say("hi")
    await proxy.stop()
    await proxy.start(server__api_key="k" * 20)
    with pytest.raises(Refused, match="needs a key, and none came"):
        await asyncio.to_thread(Client(proxy.url).status)
    (said,) = await proxy.store.completions.page(limit=1)  # before there was a key: `last` is a key's own newest
    assert (await asyncio.to_thread(Client(proxy.url, "k" * 20).rate, said.new.id, "good")).value == 1.0


def test_its_types_hold_in_a_script_of_ten_lines(tmp_path: Path) -> None:
    """As the person's own mypy sees it: strict, outside of this repository, through py.typed."""
    pytest.importorskip("mypy")
    page = (ROOT / "docs/guides/rating-from-code.md").read_text()
    script = tmp_path / "mine.py"
    script.write_text(page.split("```python\n")[1].split("```")[0] + "\nreveal_type(rating.value)\n")
    wrong = tmp_path / "wrong.py"
    wrong.write_text('from proxy.client import Client\n\nClient().rate(7, "good")\n')
    site = tmp_path / "site"
    site.mkdir()
    (site / "proxy").symlink_to(ROOT / "proxy")
    (site / "rlproxy").symlink_to(ROOT / "proxy/public")  # as a wheel has it (test_packaging)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--config-file",
        "",
        str(script),
        str(wrong),
    ]
    said = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True,
        env={"MYPYPATH": str(site), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    lines = said.stdout.splitlines()
    mine = [line for line in lines if "mine.py" in line]
    assert len(mine) == 1 and "Revealed type is" in mine[0] and "float" in mine[0], said.stdout
    assert any("wrong.py" in line and "incompatible type" in line for line in lines), said.stdout
