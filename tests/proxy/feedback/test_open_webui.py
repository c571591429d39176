"""`POST /v1/feedback/open-webui` over HTTP: what is no feedback, and whose it is. The rest: tests/integrations."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.harness.in_process import Proxy

FEEDBACK: dict[str, Any] = {
    "id": "f-1", "user_id": "u-1", "data": {"rating": 1, "comment": "nice"}, "meta": {"chat_id": "chat-1"},
}  # fmt: skip
MESSAGES = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "You said: hello"}]
BODY: dict[str, Any] = {"feedback": FEEDBACK, "messages": MESSAGES, "rater": "ann"}
CHAT = {"x-openwebui-chat-id": "chat-1", "x-openwebui-user-email": "ann"}


async def send(proxy: Proxy, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    async with proxy.http.post("/v1/feedback/open-webui", json=body, headers=headers) as response:
        return response.status, await response.json()


async def test_it_is_rated_once(proxy: Proxy) -> None:
    id = (await (await proxy.chat("hello", headers=CHAT)).json())["id"]
    status, found = await send(proxy, BODY)
    assert (status, found["result"]) == (201, "rated")
    assert (found["rating"]["completion_id"], found["rating"]["answer"]) == (id, "“You said: hello”")
    status, again = await send(proxy, BODY)
    assert (status, again["result"], again["rating"]["id"]) == (200, "known", found["rating"]["id"])
    status, gone = await send(proxy, {"deleted": "f-1"})
    assert (status, gone["result"]) == (200, "taken back")
    assert (await send(proxy, {"deleted": "f-1"}))[1]["result"] == "nothing"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ([BODY], 400, "must be a JSON object"), ({}, 400, "`feedback` and `messages`"),
        ({**BODY, "how": "else"}, 400, "`how`"), ({**BODY, "rater": 5}, 400, "`rater`"),
        ({**BODY, "messages": ["x"]}, 400, "must be objects"), ({**BODY, "messages": MESSAGES * 2000}, 400, "of over"),
        ({**BODY, "messages": []}, 404, "do not end with an answer"), ({"deleted": 5}, 400, "`deleted`"),
        ({**BODY, "how": "edited"}, 404, "an edit changes nothing"),
        ({**BODY, "feedback": {"id": "f"}}, 400, "no 👍 and no 👎"),
    ],
)  # fmt: skip
async def test_what_is_no_feedback(proxy: Proxy, body: Any, status: int, said: str) -> None:
    await proxy.chat("hello", headers=CHAT)
    found = await send(proxy, body)
    assert found[0] == status and said in found[1]["error"]["message"]
    assert (await proxy.http.post("/v1/feedback/open-webui", data=b"{")).status == 400


async def test_a_comment_that_was_typed_elsewhere_stays(proxy: Proxy) -> None:
    id = (await (await proxy.chat("hello", headers=CHAT)).json())["id"]
    await proxy.rate(completion_id=id, rating="good", comment="to the point", correction="Hi", rater="ann")
    silent = {**FEEDBACK, "data": {"rating": 1}}
    assert (await send(proxy, {**BODY, "feedback": silent}))[1]["result"] == "known"
    await send(proxy, {**BODY, "feedback": {**silent, "data": {"rating": 1, "details": {"rating": 8}}}})
    await send(proxy, {**BODY, "feedback": {**silent, "data": {"rating": 1, "details": {"rating": 9}}}})
    live = await proxy.store.ratings.live(id, "ann")
    assert live is not None and (live.value, live.comment, live.correction) == (0.7778, "to the point", "Hi")


async def test_secrets_in_a_comment_are_not_kept(proxy: Proxy) -> None:
    id = (await (await proxy.chat("hello", headers=CHAT)).json())["id"]
    told = {**BODY, "feedback": {**FEEDBACK, "data": {"rating": 1, "comment": "my card is 4111 1111 1111 1111"}}}
    assert [(await send(proxy, told))[1]["result"] for _ in range(2)] == ["rated", "known"]
    live = await proxy.store.ratings.live(id, "ann")
    assert live is not None and live.comment is not None and "4111" not in live.comment


async def test_without_a_rater_it_is_whom_the_answer_was_for(proxy: Proxy) -> None:
    await proxy.chat("hello", headers=CHAT)
    found = (await send(proxy, {key: value for key, value in BODY.items() if key != "rater"}))[1]
    assert found["rating"]["rater"] == "ann"


async def test_answers_that_fit_alike(proxy: Proxy) -> None:
    """Of a chat that was rewritten above them: nothing is chosen."""
    proxy.backend.says = "It is what I have said before, to the letter."
    for first in ("one", "two"):
        await proxy.chat(first, "And so?", "What is it?", headers={"x-openwebui-user-email": "ann"})
    shown = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": proxy.backend.says}]
    status, found = await send(proxy, {**BODY, "messages": shown})
    assert status == 409 and "several answers" in found["error"]["message"]


async def test_keys_take_back_what_is_theirs(proxy: Proxy) -> None:
    """A key with the role rate neither rates for others nor deletes what another key has brought."""
    await proxy.stop()
    await proxy.start(server__admin_key="a" * 20, server__api_key="k" * 20)
    admin, shared = ({"authorization": f"Bearer {key * 20}"} for key in "ak")
    async with proxy.http.post("/rl/keys", json={"name": "bob", "role": "rate"}, headers=admin) as response:
        bobs = {"authorization": f"Bearer {(await response.json())['key']}"}
    id = (await (await proxy.chat("hello", headers={**CHAT, **shared})).json())["id"]
    assert (await send(proxy, BODY, **shared))[0] == 201
    assert (await send(proxy, BODY, **bobs))[0] in (403, 404)
    for gone in ({"deleted": "f-1"}, {"deleted": "all"}):
        assert (await send(proxy, gone, **bobs))[1]["result"] == "nothing"
    assert (await send(proxy, {"deleted": "all", "rater": "ann"}, **bobs))[0] == 403
    assert await proxy.store.ratings.live(id, "ann") is not None
    assert (await send(proxy, {"deleted": "all"}, **admin))[1]["result"] == "taken back"
