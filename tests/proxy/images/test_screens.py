"""A GUI agent's screenshots in episodes: each turn trains with the screens that it saw, and the outcome rewards it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from proxy.images import examiner
from scripts.harness.in_process import Proxy
from scripts.harness.pictures import picture
from tests.harness.episodes import open_one, reward
from tests.harness.runs import until
from tests.proxy.images.test_examiner import looked_into
from tests.proxy.images.test_run_pictures import rows, sees, url, weights  # noqa: F401  a fixture

SCREENS = [picture(color=(60 * n, 90, 200 - 60 * n)) for n in range(3)]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examiner, "LOOK_S", 0.02)


async def turns(proxy: Proxy, session: str) -> list[str]:
    """An agent's clicks; each result is a screenshot, and the next request has all before it."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "close the window"}]
    ids = []
    for number, screen in enumerate(SCREENS):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "click", "arguments": "{}"}}
        shot = [{"type": "image_url", "image_url": {"url": url(screen)}}, {"type": "text", "text": "now"}]
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": shot},
        ]
        body = {"model": "fake", "messages": messages}
        async with proxy.http.post(f"/s/{session}/v1/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
            ids.append(response.headers["x-rl-completion-id"])
            reply = (await response.json())["choices"][0]["message"]
        messages = [*messages, reply]
    return ids


async def test_the_outcome_trains_turns_with_their_screens(proxy: Proxy, weights: Path) -> None:  # noqa: F811
    await sees(proxy, weights, train__start_at_episodes=2, train__group_size=2)
    ids = []
    for name, value in (("a", 1.0), ("b", 0.0)):
        assert (await open_one(proxy, id=name, group="g0"))[0] == 201
        ids += await turns(proxy, name)
        await looked_into(proxy, ids[-1])
        assert (await reward(proxy, name, reward=value))[0] in (200, 201)
    await until(proxy, live=1)
    folder = proxy.launcher.started[0]
    lines = {line["completion"]: line for line in rows(folder, "samples.jsonl")}
    assert set(lines) == set(ids)
    names = [hashlib.sha256(screen).hexdigest() for screen in SCREENS]
    for turn, id in enumerate(ids[:3]):
        seen = [
            part["sha256"]
            for message in lines[id]["messages"]
            if isinstance(message["content"], list)
            for part in message["content"]
            if part["type"] == "image"
        ]
        assert seen == names[: turn + 1] and lines[id]["episode"]["turn"] == turn
    assert {row["sha256"] for row in rows(folder, "pictures.jsonl")} == set(names), "each once"
    assert "base64," not in json.dumps([*lines.values()])
