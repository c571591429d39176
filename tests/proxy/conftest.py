"""A whole proxy on loopback, with a fake backend and a fake trainer behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.fakes.ollama import FakeOllama
from scripts.harness.in_process import Proxy
from tests.harness.newcomer import LLAMA


@pytest.fixture
async def backend() -> AsyncIterator[FakeBackend]:
    fake = FakeBackend()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def ollama(tmp_path: Path) -> AsyncIterator[FakeOllama]:
    """A newcomer's, with a model that tells what it was made from."""
    fake = FakeOllama(tmp_path / "ollama")
    fake.about = LLAMA
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def proxy(tmp_path: Path, backend: FakeBackend) -> AsyncIterator[Proxy]:
    proxy = Proxy(tmp_path / "home", backend, FakeLauncher())
    await proxy.start()
    yield proxy
    await proxy.stop()
