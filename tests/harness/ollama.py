"""A whole proxy in front of Ollama, of two generations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.in_process import Proxy

OLD, NEW = "0.33.2", "0.34.4"


def make_proxy(home: Path, url: str, **flags: Any) -> Proxy:
    proxy = Proxy(home, FakeBackend(), FakeLauncher())
    proxy.kind = None
    proxy.flags |= {"backend.kind": "ollama", "backend.url": url, **flags}
    return proxy
