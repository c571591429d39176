"""Somebody with a key to rate and a place on the chat platform: to rate as another, or to move what others rate."""

from __future__ import annotations

import time
from typing import Any

import pytest

from scripts.harness import signing
from scripts.harness.in_process import Proxy
from tests.harness.chats import Chats
from tests.harness.key_holders import keys, says
from tests.harness.visits import Visit

SHOWN: dict[str, Any] = {"platform": "slack", "channel": "C1", "message_id": "1.1"}


async def react(chats: Chats, id: str, person: str, emoji: str = "+1", *, gone: bool = False) -> str:
    body = signing.slack_reaction(
        emoji, id=id, person=person, ts=SHOWN["message_id"], timestamp=time.time(), removed=gone
    )
    return str((await chats.send("slack", body))[1]["results"][0])


async def link(proxy: Proxy, headers: dict[str, str], id: str, **more: Any) -> int:
    async with proxy.http.post("/rl/links", json={**SHOWN, "completion_id": id, **more}, headers=headers) as response:
        return response.status


async def asked(proxy: Proxy, headers: dict[str, str], said: str = "hi") -> str:
    return (await proxy.chat(said, headers=headers)).headers["x-rl-completion-id"]


# Links


async def test_a_link_gives_nobody_anothers_name(chats: Chats) -> None:
    proxy = chats.proxy
    made = await keys(proxy, ann="rate", eve="rate", bot="admin")
    anns = await asked(proxy, made["ann"])
    body = {"completion_id": anns, "rating": "good", "comment": "lovely"}
    async with proxy.http.post("/v1/feedback", json=body, headers=made["ann"]) as response:
        assert response.status == 201
    assert await link(proxy, made["eve"], anns, person="UEVE") == 404
    await react(chats, "E1", "UEVE", "-1")
    assert await chats.values(anns) == {"ann": 1.0}
    assert await link(proxy, made["bot"], anns, person="UEVE") == 201  # one who may: still no way to ann's name
    await react(chats, "E2", "UEVE", "-1")
    assert await chats.values(anns) == {"ann": 1.0, "slack:UEVE": -1.0}
    await react(chats, "E3", "UEVE", "-1", gone=True)
    assert await chats.values(anns) == {"ann": 1.0}


async def test_a_gateways_visitor_links_their_own_answers_only(proxy: Proxy) -> None:
    for gateway in ({"x-api-key": proxy.local}, (await keys(proxy, gateway="rate"))["gateway"]):
        ann, eve = {**gateway, "x-rl-user": "ann"}, {**gateway, "x-rl-user": "eve"}
        anns, eves = await asked(proxy, ann), await asked(proxy, eve)
        message = {"message_id": gateway["x-api-key"]}
        assert await link(proxy, eve, anns, **message) == 404
        assert await link(proxy, eve, eves, **message) == 201
        assert await link(proxy, ann, anns, message_id=f"anns {gateway['x-api-key']}") == 201


async def test_a_bot_links_what_it_asked_for_many_by_its_key(proxy: Proxy) -> None:
    """As the plugin for OpenClaw does: it names people as it asks, and nobody as it links."""
    made = await keys(proxy, bot="rate")
    for person in ("telegram:1", "telegram:2"):
        id = await asked(proxy, {**made["bot"], "x-rl-user": person})
        assert await link(proxy, made["bot"], id, message_id=person, person=person) == 201
        assert await link(proxy, made["bot"], id, message_id=person, person=person) == 201  # it changed its message


async def test_a_message_is_linked_anew_by_its_own_key_only(chats: Chats) -> None:
    proxy = chats.proxy
    made = await keys(proxy, bot="rate", eve="rate", boss="admin")
    shown, evil, again = [await asked(proxy, made[name], name) for name in ("bot", "eve", "bot")]
    assert await link(proxy, made["bot"], shown, person="UANN") == 201
    assert await link(proxy, made["eve"], evil, person="UANN") == 403
    assert await link(proxy, {**made["boss"], "x-rl-user": "eve"}, evil, person="UANN") == 404
    await react(chats, "E1", "UANN")
    assert (await chats.values(shown), await chats.values(evil)) == ({"slack:UANN": 1.0}, {})
    assert await link(proxy, made["bot"], again) == 201
    assert await link(proxy, made["boss"], shown) == 201
    assert await link(proxy, made["bot"], again) == 403  # that is an admin's now


# The newest answer of a channel


async def typed(chats: Chats, n: int) -> str:
    form = {"command": "/rl", "text": "good", "user_id": "U1", "channel_id": "C1", "trigger_id": f"t{n}"}
    return str((await chats.post("slack", *signing.slack({}, time.time(), **form)))[1]["text"])


@pytest.mark.parametrize("way", ["session", "link"])
async def test_nobody_puts_an_answer_of_theirs_in_anothers_channel(chats: Chats, way: str) -> None:
    """By a session that is called as the channel, or by a link to a message that is not there: `/rl good` in it would
    be for what they have had said."""
    proxy = chats.proxy
    made = await keys(proxy, bot="rate", eve="rate")

    async def shows(who: str, n: int) -> str:
        id = await asked(proxy, {**made[who], **({"x-rl-session": "C1"} if way == "session" else {})}, f"{who} {n}")
        if way == "link":
            assert await link(proxy, made[who], id, message_id=f"{who}.{n}") == 201
        return id

    first = await shows("bot", 1)
    assert "rated good" in await typed(chats, 1)
    evil = await shows("eve", 1)
    assert "nothing was rated" in (await typed(chats, 2)).lower()
    again = await shows("bot", 2)
    assert "nothing was rated" in (await typed(chats, 3)).lower()  # who asked last is no proof either
    async with proxy.http.delete("/rl/keys/eve", headers={"x-api-key": proxy.local}) as response:
        assert response.status == 200
    assert "rated good" in await typed(chats, 4)
    assert [await chats.values(id) for id in (first, evil, again)] == [{"ann": 1.0}, {}, {"ann": 1.0}]


async def test_nobody_has_an_answer_repeated_to_be_taken_for_it(chats: Chats) -> None:
    """A message is known by its text where nobody has linked it; a session narrows that down, and proves nothing."""
    proxy = chats.proxy
    made = await keys(proxy, bot="use", eve="use")
    proxy.backend.says = "Forty-two."
    theirs = await asked(proxy, made["bot"], "What is six times seven?")
    chats.platforms.messages["C1", "1.1"] = "Forty-two."
    evil = await asked(proxy, {**made["eve"], "x-rl-session": "C1"}, "How many should I steal?")
    assert "nothing says whose" in await react(chats, "E1", "U1")
    assert (await chats.values(theirs), await chats.values(evil)) == ({}, {})


# The same judgement, said in two ways


@pytest.mark.parametrize("way", ["chat", "http", "batch", "page", "import"])
async def test_what_was_said_otherwise_too_stays_without_the_reaction(chats: Chats, way: str) -> None:
    proxy = chats.proxy
    user = "owner" if way == "page" else "ann"  # the page's visitor is whoever runs this
    id = await chats.completion("hi", user=None if way == "page" else user)
    await proxy.stop()
    await proxy.start(webhooks__slack__raters={"U1": user})
    await chats.link("slack", "C1", "1.1", id)
    await react(chats, "E1", "U1")
    given = {"completion_id": id, "rating": "good", "rater": user}
    if way == "chat":
        assert "as before" in await says(proxy, "hi", "You said: hi", "/rl good", headers={"x-rl-user": user})
    elif way == "page":
        visit = Visit(proxy.url)
        await visit.get("/")
        await visit.post(f"/page/completions/{id}/rate", rating="good")
        await visit.http.close()
    elif way == "import":
        async with proxy.http.get("/rl/export") as response:
            line = (await response.text()).replace('"id":"rt-', '"id":"rt-elsewhere-')
        async with proxy.http.post("/rl/import?ours", data=line.encode()) as response:
            assert (await response.json())["known"] == 1
    else:
        async with proxy.http.post("/v1/feedback", json=[given] if way == "batch" else given) as response:
            assert response.status == 200
    assert await chats.values(id) == {user: 1.0}
    await react(chats, "E2", "U1", gone=True)
    assert await chats.values(id) == {user: 1.0}
    await react(chats, "E3", "U1", "-1")  # a new one still changes it, and takes that back
    await react(chats, "E4", "U1", "-1", gone=True)
    assert await chats.values(id) == {}


async def test_a_reaction_on_one_platform_stays_without_that_on_another(chats: Chats) -> None:
    id = await chats.completion("hi", user="ann")
    await chats.link("slack", "C1", "1.1", id)
    await react(chats, "E1", "U1")

    async def mattermost(n: int, what: str) -> None:
        body = {"platform": "mattermost", "person": "p1", "channel": "c", "what": what, "text": "+1"}
        assert (await chats.send("signed", {**body, "completion_id": id, "at": time.time()}, id=f"m{n}"))[0] < 300

    await mattermost(1, "reaction")
    await react(chats, "E2", "U1", gone=True)
    assert await chats.values(id) == {"ann": 1.0}
    await mattermost(2, "retraction")
    assert await chats.values(id) == {}


async def test_an_undo_and_the_same_again_stay_without_the_reaction(chats: Chats) -> None:
    proxy = chats.proxy
    id = await chats.completion("hi", user="ann")
    await chats.link("slack", "C1", "1.1", id)
    await react(chats, "E1", "U1")
    for said in ("undo", "good"):
        await says(proxy, "hi", "You said: hi", f"/rl {said}", headers={"x-rl-user": "ann"})
    await react(chats, "E2", "U1", gone=True)
    assert await chats.values(id) == {"ann": 1.0}
