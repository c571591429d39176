"""`rlproxy train --tune`: each rate as it is tried, what was found, and what Ctrl-C leaves."""

from __future__ import annotations

import asyncio
import json
import signal
import sys

from proxy.training.retraining.retraining import TUNED
from scripts.harness.in_process import Proxy
from tests.harness.runs import until

TRIED = [{"event": "tune", "rate": rate, "moved": moved} for rate, moved in ((1e-4, 0.01), (2e-4, 0.05), (4e-4, None))]
FOUND = {"event": "tuned", "rate": 2e-4, "why": "at 0.0004 they moved it further"}


async def rated(proxy: Proxy, count: int = 4) -> None:
    for n in range(count):
        response = await proxy.chat(f"question {n}")
        await response.read()
        await proxy.rate(completion_id=response.headers["x-rl-completion-id"], rating="good" if n % 2 else "bad")


async def command(proxy: Proxy, *more: str) -> asyncio.subprocess.Process:
    port = proxy.url.rsplit(":", 1)[1]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy.cli", "train", "--tune", "--home", str(proxy.home), *more,
        env={"RLPROXY_SERVER__PORT": port, "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def test_it_shows_what_is_tried_and_the_rate_outlives_the_run(proxy: Proxy) -> None:
    proxy.launcher.progress, proxy.launcher.outcome = [*TRIED, FOUND], "rejected"
    await rated(proxy, 3)
    process = await command(proxy)
    out, err = (each.decode() for each in await process.communicate())
    assert process.returncode == 0, err
    assert "0.0001: two steps move the model 0.010 nats a token" in out and "out of all bounds" in out
    assert "0.0002 is the highest rate without harm; run 1 trains with it" in out
    await until(proxy, ended="rejected")
    assert await proxy.store.meta.get(TUNED, {}) == {"fake": 2e-4}
    spec = json.loads((proxy.launcher.started[0] / "run.json").read_text())
    assert spec["tune"] == "anew" and spec["tuned"] is None
    proxy.launcher.progress, proxy.launcher.outcome = [], "passed"
    await rated(proxy, 4)
    await until(proxy, live=1)
    spec = json.loads((proxy.launcher.started[-1] / "run.json").read_text())
    assert spec["tune"] is False and spec["tuned"] == 2e-4


async def test_ctrl_c_leaves_the_run_alone_and_says_so(proxy: Proxy) -> None:
    proxy.launcher.progress, proxy.launcher.hold = TRIED[:1], True
    await rated(proxy, 3)
    process = await command(proxy, "--json")
    assert process.stderr is not None
    async with asyncio.timeout(30):
        while b"0.0001" not in await process.stderr.readline():
            pass
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    assert process.returncode == 130 and b"the sweep goes on" in err
    assert json.loads(out) == {"run": 1, "sweep": [{"rate": 1e-4, "moved": 0.01}], "tuned": None}
    assert (await proxy.get("/rl/status"))["training"]["run"]


async def test_a_rate_of_ones_own_goes_before_a_sweep(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(train__overrides={"learning_rate": 1e-4})
    await rated(proxy, 3)
    status, told = await proxy.post("/rl/train?tune")
    assert status == 409 and "train.overrides.learning_rate = 0.0001" in told["error"]["message"]
