"""The Open WebUI function, called as Open WebUI 0.12.4 calls it, against a whole proxy."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from typing import Any

import pytest

from scripts.harness.in_process import Proxy
from tests.proxy.conftest import backend, proxy  # noqa: F401

FILE = Path(__file__).parents[2] / "integrations/open-webui/rlproxy_thumbs.py"
USER = {"id": "u-1", "email": "ann@example.org", "name": "Ann", "role": "user"}
CHAT = {"x-openwebui-chat-id": "chat-1", "x-openwebui-user-email": USER["email"]}


class Clicks:
    def __init__(self, url: str) -> None:
        spec = importlib.util.spec_from_file_location("rlproxy_thumbs", FILE)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.action = module.Action()
        self.action.valves = module.Action.Valves(url=url)
        self.said: list[tuple[str, str]] = []

    async def click(self, which: str, content: str, chat: str = "chat-1") -> None:
        """`chat_action` of open_webui/utils/actions.py: parameters by name, those that the function has."""
        messages = [
            {"id": "m-1", "role": "user", "content": "hello", "timestamp": 1},
            {"id": "m-2", "role": "assistant", "content": content, "timestamp": 2},
        ]
        body = {"model": "fake", "messages": messages, "chat_id": chat, "session_id": "s-1", "id": "m-2"}
        given = {
            "body": body, "__user__": USER, "__id__": which, "__event_emitter__": self._emit,
            "__model__": {}, "__event_call__": None, "__request__": None,
        }  # fmt: skip
        taken = inspect.signature(self.action.action).parameters
        await self.action.action(**{key: value for key, value in given.items() if key in taken})

    async def _emit(self, event: dict[str, Any]) -> None:
        assert event["type"] == "notification"
        self.said.append((event["data"]["type"], event["data"]["content"]))


@pytest.fixture
def clicks(proxy: Proxy) -> Clicks:  # noqa: F811
    return Clicks(proxy.url)


async def test_a_click_rates_the_message_that_it_is_under(proxy: Proxy, clicks: Clicks) -> None:  # noqa: F811
    first = (await (await proxy.chat("hello", headers=CHAT)).json())["id"]
    await proxy.chat("another", headers=CHAT)
    shown = '<details type="reasoning" done="true">\n> hm\n</details>\nYou  said: **hello**'
    await clicks.click("good", shown)
    await clicks.click("bad", shown)
    assert clicks.said == [("success", "Rated good."), ("success", "Rated bad.")]
    live = [one for one in await proxy.store.ratings_of(first) if one.live]
    assert [(one.rater, one.value, one.source) for one in live] == [("ann@example.org", -1.0, "open-webui")]


async def test_what_cannot_be_rated_is_said(proxy: Proxy, clicks: Clicks) -> None:  # noqa: F811
    await proxy.chat("hello", headers=CHAT)
    await clicks.click("good", "An answer of another model")
    await clicks.click("good", "You said: hello", chat="chat-2")
    assert [kind for kind, _ in clicks.said] == ["error", "error"]
    assert all("knows no such answer" in said for _, said in clicks.said)
    clicks.action.valves.url = "http://127.0.0.1:9"
    await clicks.click("good", "You said: hello")
    assert clicks.said[-1][0] == "error" and clicks.said[-1][1].startswith("Not rated: ")


def test_two_thumbs_with_pictures(clicks: Clicks) -> None:
    assert [one["id"] for one in clicks.action.actions] == ["good", "bad"]
    assert all(one["icon_url"].startswith("data:image/svg+xml;utf8,<svg ") for one in clicks.action.actions)
