"""Answers about pictures before a real llama-server with an mmproj: capture, ratings, a run, its gate, the swap."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.models import picture_servers
from scripts.models.llamacpp import SERVER

pytestmark = [pytest.mark.backends, pytest.mark.timeout(1800)]

CLOSE = 2e-3  # nats, where no picture is resized but to tiles of one colour


@pytest.mark.skipif(not SERVER.is_file(), reason="llama-server is not here: `make test-backends` installs it")
@pytest.mark.parametrize("kind", sorted(picture_servers.SIDES))
async def test_the_whole_loop(tmp_path: Path, kind: str) -> None:
    report = await picture_servers.whole_loop(kind, tmp_path)
    assert report["status"] == "passed" and report["live"] == 1, report["reason"]
    assert report["base"]["one colour"] <= CLOSE and report["version"]["one colour"] <= CLOSE
    assert report["choices"]["samples_with_pictures"]["value"] == 8
    assert not [cause for cause in report["samples"].values() if cause == "unusable"]
    assert not report["weights_changed"]
