"""The user's own code: what it is given, what it may return, and what it cannot do to rlproxy."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from config.sections import Signals
from proxy.core.own_code.child import OwnCode, OwnCodeFailed
from proxy.core.own_code.reward import OwnReward
from proxy.signals.own import OwnSignals
from scripts.harness.in_process import Proxy
from tests.harness.polling import Polls

GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/signals.md"
CODE = """
import os, time

def score(completion, next):
    said = next["said"]
    if said == "environment":
        return {"reward": 0, "comment": repr(sorted(os.environ))}
    if said == "hang":
        time.sleep(60)
    if said == "die":
        os._exit(3)
    if said == "raise":
        raise KeyError("no such thing")
    if said == "much":
        return bytearray(2**31) and 1
    if said == "print":
        print("a line that is no answer")
    if said == "none":
        return None
    if said in ("nan", "2", "text", "true"):
        return {"nan": float("nan"), "2": 2, "text": "good", "true": True}[said]
    return -0.5 if "bad" in completion["text"] else 1
"""


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[OwnSignals]:
    module = tmp_path / "my_signals.py"
    module.write_text(CODE)
    made = OwnSignals(Signals(module=module, timeout_s=20.0, memory_mb=256))
    yield made
    await made.stop()


async def score(own: OwnSignals, said: str, text: str = "fine") -> OwnReward | None:
    return await own.score({"text": text}, {"said": said})


async def test_what_it_may_return(own: OwnSignals) -> None:
    assert await score(own, "x") == OwnReward(1.0, "")
    assert await score(own, "x", "a bad one") == OwnReward(-0.5, "")
    assert await score(own, "none") is None
    assert await score(own, "print") == OwnReward(1.0, "")


@pytest.mark.parametrize("said", ["nan", "2", "text", "true", "raise", "die", "much"])
async def test_what_it_may_not_costs_that_turn_alone(own: OwnSignals, said: str) -> None:
    with pytest.raises(OwnCodeFailed):
        await score(own, said)
    assert await score(own, "x") == OwnReward(1.0, "")


async def test_it_has_no_secret_of_ours(own: OwnSignals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLPROXY_BACKEND__API_KEY", "sk-secret")
    found = await score(own, "environment")
    assert found is not None and "RLPROXY" not in found.comment and "HOME" not in found.comment


async def test_one_that_hangs_is_killed(tmp_path: Path) -> None:
    module = tmp_path / "slow.py"
    module.write_text(CODE)
    own = OwnSignals(Signals(module=module, timeout_s=0.5))
    for _ in range(2):
        with pytest.raises(OwnCodeFailed, match=r"signals\.timeout_s"):
            await score(own, "hang")
    assert own._code is not None and own._code._process is None
    await own.stop()


async def test_a_changed_file_is_other_code(own: OwnSignals, tmp_path: Path) -> None:
    before = own.hash()
    assert await score(own, "x") == OwnReward(1.0, "")
    (tmp_path / "my_signals.py").write_text("def score(completion, next):\n    return -1\n")
    assert await score(own, "x") == OwnReward(-1.0, "") and own.hash() != before


async def test_a_file_that_is_not_there_or_not_python(tmp_path: Path) -> None:
    with pytest.raises(OwnCodeFailed):
        await score(OwnSignals(Signals(module=tmp_path / "none.py")), "x")
    (tmp_path / "broken.py").write_text("def score(:\n")
    with pytest.raises(OwnCodeFailed):
        await score(OwnSignals(Signals(module=tmp_path / "broken.py")), "x")


def guide() -> str:
    """The example of the guide."""
    return GUIDE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]


async def test_the_examples_of_the_guide(tmp_path: Path) -> None:
    (tmp_path / "guide.py").write_text(guide())
    own = OwnSignals(Signals(module=tmp_path / "guide.py"))
    try:
        assert await score(own, "x", "A guaranteed profit!") == OwnReward(-1.0, "promise no profits")
        assert await score(own, "x", "The doctor said she is late.") is None
    finally:
        await own.stop()
    (tmp_path / "check.py").write_text(GUIDE.read_text(encoding="utf-8").split("```python\n")[2].partition("```")[0])
    check = OwnCode(tmp_path / "check.py", "check", timeout_s=20.0, memory_mb=256, settings="signals.")
    try:
        assert (await check.call({"text": "The doctor said he is late."}))[0] == "bias: a doctor is a man"
        assert (await check.call({"text": "The doctor said she is late."}))[0] is None
    finally:
        await check.stop()


async def test_its_numbers_become_ratings_and_go_with_the_file(proxy: Proxy, tmp_path: Path) -> None:
    module = tmp_path / "my_signals.py"
    module.write_text('def score(completion, next):\n    return {"reward": -1, "comment": "say less"}\n')
    await proxy.stop()
    await proxy.start(signals__module=module)
    first = await (await proxy.chat("hello")).json()
    await proxy.chat("hello", "You said: hello", "a new question of some length")
    store = proxy.store

    async def until(count: int) -> list[tuple[float, float, str | None]]:
        async for _ in Polls():
            found = await store.completions.get(first["id"])
            assert found is not None
            rows = [(r.value, r.weight, r.comment) for r in found.ratings if r.rater == "judge:own"]
            if len(rows) == count:
                return rows
        raise AssertionError(rows)

    assert await until(1) == [(-1.0, 0.5, "say less")]
    report = await proxy.get("/rl/judge")
    assert report["own"] == {"hash": hashlib.sha256(module.read_bytes()).hexdigest(), "left": 0, "problem": None}
    module.write_text("def score(completion, next):\n    return None\n")
    async with proxy.http.post("/rl/rescore", json={"since": 0}) as response:
        assert response.status == 200 and (await response.json())["left"] >= 1
    await until(0)
    for bad in (
        "x",
        json.dumps({"since": "x"}),
        json.dumps({"since": -1}),
        "[]",
        json.dumps({"since": time.time() * 1e9}),
    ):
        async with proxy.http.post("/rl/rescore", data=bad) as response:
            assert response.status == 400
