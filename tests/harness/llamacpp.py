"""A whole proxy in front of llama.cpp, and the versions that it has."""

from __future__ import annotations

from pathlib import Path

import psutil

from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.in_process import Proxy
from scripts.harness.versions import publish

PRESETS = "[*]\nctx-size = 512\n\n[fake]\nmodel = /m/fake.gguf\n"


def make_proxy(home: Path, **flags: str) -> Proxy:
    proxy = Proxy(home, FakeBackend(), FakeLauncher())
    proxy.kind = None
    proxy.flags |= {"backend.kind": "llamacpp", **{f"backend.{key}": value for key, value in flags.items()}}
    return proxy


async def with_versions(proxy: Proxy, *versions: int) -> None:
    """None of them live."""
    await proxy.post("/rl/pause")
    for version in versions:
        await (await proxy.chat(f"q{version}")).read()
        await proxy.rate(completion_id="last", rating="good")
        await publish(proxy, version)


async def said_by(proxy: Proxy, model: str = "fake") -> str:
    """Who answered, by its own word."""
    return (await proxy.say("who?", model=model)).split()[0]


def servers() -> list[int]:
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            line = child.cmdline()
        except psutil.Error:
            continue
        if "scripts.fakes.llamacpp" in line and line[0] != "sh":
            found.append(child.pid)
    return found
