"""A visitor of a gateway that says who speaks, and the route for Open WebUI's feedback: it is theirs alone there, too.

The gateway's key is one for all its visitors, and its header `x-rl-user` is the visitor's name.
"""

from __future__ import annotations

from typing import Any

import pytest

from scripts.harness.in_process import Proxy

ANN, BOB = {"x-rl-user": "ann"}, {"x-rl-user": "bob"}
CHAT = {"x-openwebui-chat-id": "bobs"}
KEYS: dict[str, dict[str, str]] = {
    "an admin's key": {}, "the shared key": {"authorization": "Bearer " + "k" * 20},
}  # fmt: skip


def feedback(id: str, answer: str, rater: str | None = None, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": answer}]
    given = {"id": id, "user_id": "u", "data": {"rating": 1}, "meta": {"chat_id": "bobs"}, **more}
    return {"feedback": given, "messages": messages} | ({} if rater is None else {"rater": rater})


async def send(proxy: Proxy, body: Any, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
    async with proxy.http.post("/v1/feedback/open-webui", json=body, headers=headers) as response:
        return response.status, await response.json()


@pytest.fixture(params=KEYS)
async def key(request: pytest.FixtureRequest, proxy: Proxy) -> dict[str, str]:
    if found := KEYS[request.param]:
        await proxy.stop()
        await proxy.start(server__api_key="k" * 20)
    return found


async def asked(proxy: Proxy, headers: dict[str, str]) -> tuple[str, str]:
    answer = await (await proxy.chat("hello", headers={**headers, **CHAT})).json()
    return answer["id"], answer["choices"][0]["message"]["content"]


async def test_a_visitor_takes_back_no_rating_of_another(proxy: Proxy, key: dict[str, str]) -> None:
    id, said = await asked(proxy, {**key, **BOB})
    assert (await send(proxy, feedback("f-1", said), {**key, **BOB}))[0] == 201
    for gone in ("f-1", "all"):
        assert (await send(proxy, {"deleted": gone}, {**key, **ANN}))[1]["result"] == "nothing"
        assert (await send(proxy, {"deleted": gone, "rater": "bob"}, {**key, **ANN}))[0] == 403
    _, said = await asked(proxy, {**key, **ANN})
    await send(proxy, feedback("f-1", said, rater="ann"), {**key, **ANN})  # the id of another's, used again
    assert await proxy.store.ratings.live(id, "bob") is not None
    assert (await send(proxy, {"deleted": "all"}, {**key, **BOB}))[1]["result"] == "taken back"
    assert await proxy.store.ratings.live(id, "bob") is None


async def test_a_visitor_rates_no_answer_of_another(proxy: Proxy, key: dict[str, str]) -> None:
    """Not by the session of its chat, by its words, or by naming whom it was for in Open WebUI's form."""
    id, said = await asked(proxy, {**key, **BOB})
    for body in (feedback("f", said), feedback("f", said, rater="ann"), feedback("f", said, user_id="bob")):
        status, found = await send(proxy, body, {**key, **ANN})
        assert status == 404, found
    status, found = await send(proxy, feedback("f", said, rater="bob"), {**key, **ANN})
    assert status == 403 and "You said" not in str(found)
    assert await proxy.store.ratings.history(id) == []


async def test_a_visitor_learns_nothing_of_answers_by_naming_another(proxy: Proxy, key: dict[str, str]) -> None:
    """Whether there is such an answer or not, what is said is the same."""
    _, said = await asked(proxy, {**key, **BOB})
    found = [await send(proxy, feedback("f", text, rater="bob"), {**key, **ANN}) for text in (said, "else")]
    assert found[0] == found[1]
