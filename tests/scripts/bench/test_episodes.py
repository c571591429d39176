"""The short form of `scripts.bench.episodes`: agents at once while versions go live among their episodes."""

from __future__ import annotations

from pathlib import Path

from scripts.bench.episodes import measured


async def test_each_episode_is_on_one_version_and_each_reward_counts_once(tmp_path: Path) -> None:
    found = await measured(tmp_path, episodes=96, clients=16, swaps=2, start_at=24, think_s=0.05)
    assert found["wrong"] == [], found
    assert len(found["episodes_by_version"]) >= 3, found
