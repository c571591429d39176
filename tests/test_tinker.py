"""A whole home that trains at a Tinker server: rated here, stepped there, judged here, and live here."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.harness.serving import ROOT, Serving
from tests.harness import tinker_server
from tests.harness.kills import LENIENT, until_quiet

pytestmark = [
    pytest.mark.scale,
    pytest.mark.skipif(tinker_server.lacks() is not None, reason=str(tinker_server.lacks())),
]
RATINGS = 8


@pytest.fixture
def url(tiny_weights: Path, tmp_path: Path) -> Iterator[str]:
    command = [
        sys.executable,
        "-m",
        "scripts.fakes.tinker",
        str(tiny_weights),
        str(tmp_path / "server"),
        "--key",
        "tml-a",
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield str(json.loads(process.stdout.readline())["url"])
        process.kill()


async def rate(serving: Serving) -> None:
    for n in range(RATINGS):
        answer, _ = await serving.chat(f"Question {n}", max_tokens=4, stop=None)
        await serving.rate(answer["id"], "good" if n % 2 else "bad")


@pytest.mark.model
@pytest.mark.timeout(900)
async def test_a_version_of_a_tinker_server_goes_live(tiny_weights: Path, tmp_path: Path, url: str) -> None:
    environment = {
        **LENIENT,
        "TINKER_API_KEY": "tml-a",
        "RLPROXY_TRAIN__WHERE": url.replace("http://", "tinker+http://"),
    }
    home = tmp_path / "home"
    serving = Serving(home, tiny_weights, "--start-at", str(RATINGS), **environment)
    await serving.start()
    await rate(serving)
    async with asyncio.timeout(120):
        while "where_takes_texts" not in str((await serving.status())["training"]):
            await asyncio.sleep(0.2)
    assert await serving.stop() == 0, "without consent no run began"

    serving = Serving(
        home, tiny_weights, "--start-at", str(RATINGS), **environment, RLPROXY_TRAIN__WHERE_TAKES_TEXTS="true"
    )
    await serving.start()
    await until_quiet(serving)
    _, adapter = await serving.chat("And now?", max_tokens=4)
    status = await serving.status()
    assert await serving.stop() == 0, serving.log
    assert adapter == "v1", (adapter, status["training"])
    (run,) = home.glob("runs/r*")
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "passed" and result["gate"]
    assert (Path(result["adapter"]) / "tinker.json").is_file()
