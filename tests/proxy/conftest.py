"""What several packages' tests share: llama.cpp's router, and waits that are short."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.core.sharing import waiting_line
from proxy.training import gpu_sharing, rehearsal, weights_check
from proxy.versions import admission
from scripts.fakes.llamacpp import FakeLlama
from scripts.harness.in_process import Proxy
from tests.harness.llamacpp import PRESETS, make_proxy, with_versions


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[FakeLlama]:
    presets = tmp_path / "presets.ini"
    presets.write_text(PRESETS)
    fake = FakeLlama(presets)
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def routed(tmp_path: Path, router: FakeLlama) -> AsyncIterator[Proxy]:
    proxy = make_proxy(tmp_path / "home", url=router.url, presets=str(router.presets))
    await proxy.start()
    await with_versions(proxy, 1, 2, 3)
    yield proxy
    await proxy.stop()


@pytest.fixture(autouse=True)
def unrehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at answers in a test that takes longer than five seconds, and asks its server for their prompts."""
    monkeypatch.setattr(rehearsal, "TICK_S", 3600.0)


@pytest.fixture
def quick_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, seconds in (
        (waiting_line, "BEAT_S", 0.02),
        (admission, "POLL_S", 0.005),
        (gpu_sharing, "RETRY_S", 0.1),
        (gpu_sharing, "FIRST_PAUSE_S", 0.02),
        (gpu_sharing, "LONGEST_PAUSE_S", 0.1),
    ):
        monkeypatch.setattr(module, name, seconds)
    monkeypatch.setattr("proxy.training.run_supervisor.RECHECK_S", 0.02)


@pytest.fixture
def quick_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "TICK_S", 0.02)
    monkeypatch.setattr(weights_check, "LOOK_S", 0.0)
