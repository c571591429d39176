"""`rlproxy eval` of three versions of a tiny model: killed half-way, and gone on with.

Real: the built-in server, the proxy, the command in a process of its own. Model and adapters are small and random.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from proxy.core.address_file import ADDRESS_FILE
from scripts.harness.command import ROOT
from scripts.harness.in_process import proxy_before
from scripts.harness.lora import random_adapter
from scripts.harness.versions import with_real_versions

PROMPTS = 12
CHECKS = """
max_tokens = 4

[[check]]
name = "says something"
kind = "length"
min_characters = 1
"""


@pytest.mark.model
@pytest.mark.timeout(600)
async def test_three_versions_and_a_kill(tiny_weights: Path, tmp_path: Path) -> None:
    adapters = [random_adapter(tiny_weights, tmp_path / f"a{seed}", seed=seed, size=0.3) for seed in (1, 2)]
    file = tmp_path / "checks.toml"
    prompts = (f'[[prompt]]\nname = "p{n}"\ntext = "Name {n + 2} colours."\n' for n in range(PROMPTS))
    file.write_text(CHECKS + "".join(prompts))
    proxy = proxy_before(
        tmp_path / "home",
        backend__kind="builtin",
        backend__url="",
        backend__model="fake",
        train__weights=str(tiny_weights),
    )
    await proxy.start()
    try:
        (proxy.home / ADDRESS_FILE).write_text(json.dumps({"url": proxy.url, "pid": os.getpid()}))
        await with_real_versions(proxy, adapters)
        command = [sys.executable, "-m", "proxy.cli", "eval", str(file), "--versions", "base,v1,v2", "--json"]
        command += ["--home", str(proxy.home)]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        answers = proxy.home / "checks" / "answers" / "given"
        killed = await asyncio.create_subprocess_exec(*command, env=env)
        while not answers.exists() or len(list(answers.glob("*.json"))) < PROMPTS // 2:
            assert killed.returncode is None
            await asyncio.sleep(0.005)  # the proxy is in this loop: few answers come meanwhile
        killed.send_signal(signal.SIGKILL)
        await killed.wait()
        known = len(list(answers.glob("*.json")))
        assert known < 3 * PROMPTS
        resumed = await asyncio.create_subprocess_exec(*command, env=env, stdout=asyncio.subprocess.PIPE)
        out, _ = await resumed.communicate()
        summary = json.loads(out)
        assert resumed.returncode == 0
        assert sum(version["cached"] for version in summary["versions"]) == known
        counts = [version["all"]["passed"] + version["all"]["failed"] for version in summary["versions"]]
        assert counts == [PROMPTS] * 3 and len(list(answers.glob("*.json"))) == 3 * PROMPTS
        texts = {json.loads(path.read_bytes())["text"] for path in answers.glob("*.json")}
        assert len(texts) > 3  # the versions answer otherwise
    finally:
        await proxy.stop()
