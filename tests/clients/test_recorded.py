"""Recorded clients, played back: each request that the person sees is a main turn, each other one a side turn.

The recordings are of the real programs (`python -m scripts.clients.record`), their long texts shortened.
"""

from __future__ import annotations

from typing import Any

import pytest

from scripts.clients.replay import recordings, replay

RECORDINGS = recordings()


@pytest.mark.parametrize("name", RECORDINGS)
async def test_turns(name: str) -> None:
    steps: list[dict[str, Any]] = RECORDINGS[name]
    turns = await replay(steps)
    wrong = [turn for turn in turns if turn.turn != turn.expected]
    assert not wrong, wrong
    assert {turn.expected for turn in turns} == {"main", "side"}, "a client that asks nothing on the side shows nothing"
