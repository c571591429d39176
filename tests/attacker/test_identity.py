"""Somebody who gives another's name: to act as an admin, to reach another's answers, to claim another's events.

A name in a request proves nothing. A key does, and so does a platform's signature.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from multidict import CIMultiDict

from scripts.harness import signing
from scripts.harness.in_process import Proxy
from tests.harness.chats import Chats
from tests.harness.key_holders import CLAUDE_CODE, CLAUDE_CODE_JSON, keys, rated, says

# Admins in the chat

NAMED = [
    ({"x-rl-user": "stranger"}, {}),
    ({"X-RL-User": "stranger"}, {}),
    ({"x-openwebui-user-email": "stranger@example.com"}, {}),
    ({"X-OpenWebUI-User-Id": "7f3"}, {}),
    ({"x-openwebui-user-email": ""}, {}),
    ({"x-openwebui-user-id": "x" * 300}, {}),
    ({}, {"user": "stranger"}),
    ({}, {"user": 42}),
    ({}, {"user": ""}),
    ({}, {"user": "a\nb"}),
    ({}, {"user": "x" * 300}),
    ({}, {"safety_identifier": "stranger"}),
    ({}, {"metadata": {"user_id": "stranger"}}),
    ({}, {"metadata": {"user_id": "user_me_session_01234567"}}),
    ({}, {"metadata": {"user_id": "{}"}}),
    ({}, {"metadata": {"user_id": '{"name": "stranger"}'}}),
    ({"x-rl-user": "ann"}, {"user": "stranger"}),
    ({"x-openwebui-user-email": "stranger@example.com"}, {"user": "ann"}),
    ({"x-rl-user": "ann", "x-openwebui-user-email": "stranger@example.com"}, {}),
    ({}, {"user": "ann", "safety_identifier": "stranger"}),
    ({"x-rl-user": "Ann"}, {}),
]


@pytest.mark.parametrize(("headers", "body"), NAMED)
async def test_nobody_whom_a_request_names_is_an_admin_unless_listed(
    proxy: Proxy, headers: dict[str, str], body: dict[str, Any]
) -> None:
    await proxy.stop()
    await proxy.start(server__chat_admins=["ann"])
    for keyless in (True, False):
        if not keyless:
            headers = {**headers, **(await keys(proxy, gateway="admin"))["gateway"]}
        said = await says(proxy, "/rl pause", headers=headers, **body)
        assert "needs an admin" in said and "server.chat_admins" in said
        async with proxy.http.get("/rl/status", headers=headers) as response:
            assert (await response.json())["training"]["paused"] is False


@pytest.mark.parametrize("name", ["eve", "a b", "", 42, ["ann"], "owner"])
async def test_a_name_on_the_message_names_whoever_typed_it(proxy: Proxy, name: Any) -> None:
    """A bot of several people may say so there: chat completions have a `name` for each message."""
    await proxy.stop()
    await proxy.start(server__chat_admins=["ann"])
    first = [{"role": "user", "name": "ann", "content": "hi"}, {"role": "assistant", "content": "You said: hi"}]
    for before in ([], first):
        for more in ({}, {"user": "ann"}):
            messages = [*before, {"role": "user", "name": name, "content": "/rl pause"}]
            async with proxy.http.post("/v1/chat/completions", json={"messages": messages, **more}) as response:
                assert "needs an admin" in await response.text()
    async with proxy.http.post("/v1/chat/completions", json={"messages": first[:1]}) as response:
        id = response.headers["x-rl-completion-id"]
    for typed, line in ((name, "/rl bad"), ("ann", "/rl good")):
        messages = [*first, {"role": "user", "name": typed, "content": line}]
        async with proxy.http.post("/v1/chat/completions", json={"messages": messages}) as response:
            said = await response.text()
            assert ("nothing was rated" if line == "/rl bad" else "rated good") in said
    assert await rated(proxy) == {id: ["ann"]}
    messages = [{"role": "user", "name": "ann", "content": "/rl pause"}]
    async with proxy.http.post("/v1/chat/completions", json={"messages": messages}) as response:
        assert "paused" in await response.text()


async def test_who_comes_twice_in_a_header_is_no_admin(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__chat_admins=["ann@example.com", "ann"])
    name = "x-openwebui-user-email"
    for order in (("ann@example.com", "eve@example.com"), ("eve@example.com", "ann@example.com")):
        said = await says(proxy, "/rl pause", headers=CIMultiDict([(name, one) for one in order]))
        assert "needs an admin" in said
    twice = CIMultiDict([("x-rl-user", "ann"), ("x-rl-user", "eve")])
    assert (await proxy.chat("/rl pause", headers=twice)).status == 400
    assert "paused" in await says(proxy, "/rl pause", headers={"x-rl-user": "ann", name: "ann@example.com"})


async def test_the_refusal_says_what_to_add_and_that_helps(proxy: Proxy) -> None:
    assert 'server.chat_admins = ["me"]' in await says(proxy, "/rl pause", user="me")
    await proxy.stop()
    await proxy.start(server__chat_admins=["me"])
    assert "paused" in await says(proxy, "/rl pause", user="me")


@pytest.mark.parametrize("user_id", [CLAUDE_CODE, CLAUDE_CODE_JSON])
async def test_the_owners_claude_code_is_the_owners(proxy: Proxy, user_id: str) -> None:
    body = {
        "model": "fake", "max_tokens": 9, "metadata": {"user_id": user_id},
        "messages": [{"role": "user", "content": "/rl pause"}],
    }  # fmt: skip
    headers = {"user-agent": "claude-cli/2.1.329 (external, cli)"}
    async with proxy.http.post("/v1/messages", json=body, headers=headers) as response:
        assert "paused" in str(await response.json())


# `/rl good` of another conversation


async def test_rl_good_never_rates_another_persons_equal_answer(proxy: Proxy) -> None:
    made = await keys(proxy, ann="rate", bob="rate", boss="admin")
    ann = (await proxy.chat("hi", headers=made["ann"])).headers["x-rl-completion-id"]
    reply = "You said: hi"
    for who in ({**made["bob"]}, {**made["bob"], "x-rl-user": "ann"}, {**made["boss"]}):
        assert "nothing was rated" in await says(proxy, "hi", reply, "/rl good", headers=who)
        assert "nothing was rated" in await says(proxy, "hi", reply, "/rl good", headers=who, user="ann")
    assert await rated(proxy) == {}
    assert "rated good" in await says(proxy, "hi", reply, "/rl good", headers=made["ann"])
    assert await rated(proxy) == {ann: ["ann"]}


async def test_who_is_not_named_does_not_rate_for_whom_is(proxy: Proxy) -> None:
    await proxy.chat("hi", headers={"x-rl-user": "ann"})
    assert "nothing was rated" in await says(proxy, "hi", "You said: hi", "/rl bad")
    await proxy.chat("yo")
    assert "nothing was rated" in await says(proxy, "yo", "You said: yo", "/rl bad", headers={"x-rl-user": "ann"})
    assert await rated(proxy) == {}


async def test_rl_good_heeds_system_prompt_and_model(proxy: Proxy) -> None:
    async def ask(system: str, model: str, *said: str) -> tuple[str, str]:
        turns = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(said)]
        body = {"model": model, "messages": [{"role": "system", "content": system}, *turns]}
        async with proxy.http.post("/v1/chat/completions", json=body) as response:
            answer = await response.json()
            return answer["choices"][0]["message"]["content"], response.headers.get("x-rl-completion-id", "")

    reply, pirate = await ask("You are a pirate.", "fake", "hi")
    _, base = await ask("You are a pirate.", "fake@base", "hi")
    _, judge = await ask("You are a judge.", "fake", "hi")
    assert "rated bad" in (await ask("You are a pirate.", "fake", "hi", reply, "/rl bad"))[0]
    assert list(await rated(proxy)) == [pirate]

    said, _ = await ask("You are a clerk.", "fake", "hi", reply, "/rl good")
    assert "nothing was rated" in said and "rlproxy good --id" in said
    assert pirate in said and judge in said and "You said: hi" in said
    assert base not in said, "its model is another one"
    assert list(await rated(proxy)) == [pirate]

    reply, alone = await ask("You are a pirate.", "fake", "ahoy")
    assert "rated good" in (await ask("It is Tuesday now.", "fake", "ahoy", reply, "/rl good"))[0]
    assert alone in await rated(proxy)


async def test_the_same_request_twice_is_the_newest(proxy: Proxy) -> None:
    await proxy.chat("hi")
    newest = (await proxy.chat("hi")).headers["x-rl-completion-id"]
    assert "rated good" in await says(proxy, "hi", "You said: hi", "/rl good")
    assert list(await rated(proxy)) == [newest]


# Answers by their ids


async def test_a_name_in_a_header_opens_no_answer_of_another_key(proxy: Proxy) -> None:
    made = await keys(proxy, ann="use", bob="rate", boss="admin")
    body = {"model": "fake", "input": "the code is 1234"}
    async with proxy.http.post("/v1/responses", json=body, headers=made["ann"]) as response:
        id = (await response.json())["id"]
    async with proxy.http.post("/v1/responses", json={**body, "user": "desk"}, headers=made["ann"]) as response:
        named = (await response.json())["id"]
    for names in ({}, {"x-rl-user": "ann"}, {"x-rl-user": "desk"}, {"x-openwebui-user-email": "ann"}):
        bob = {**made["bob"], **names}
        for one in (id, named):
            for method in ("GET", "DELETE"):
                async with proxy.http.request(method, f"/v1/responses/{one}", headers=bob) as response:
                    assert response.status == 404, (method, names)
            for user in ("ann", "desk"):
                goes_on = {"model": "fake", "input": "repeat it", "previous_response_id": one, "user": user}
                async with proxy.http.post("/v1/responses", json=goes_on, headers=bob) as response:
                    assert response.status == 400
    assert all("1234" not in str(sent["messages"][0]) or len(sent["messages"]) == 1 for sent in proxy.backend.requests)
    for headers in (made["ann"], made["boss"], {**made["ann"], "x-rl-user": "ann"}):
        async with proxy.http.get(f"/v1/responses/{id}", headers=headers) as response:
            assert response.status == 200
    async with proxy.http.delete(f"/v1/responses/{id}", headers=made["ann"]) as response:
        assert response.status == 200


@pytest.mark.parametrize("header", ["x-rl-user", "x-openwebui-user-email", "x-openwebui-user-id"])
async def test_a_name_in_the_body_does_not_replace_the_gateways(proxy: Proxy, header: str) -> None:
    """The gateway has one key for all, and says in a header who speaks; the body is the speaker's own."""
    for gateway in ({"x-api-key": proxy.local}, (await keys(proxy, gateway="use"))["gateway"]):
        ann, eve = {**gateway, header: "ann"}, {**gateway, header: "eve"}
        body = {"model": "fake", "input": "the code is 1234"}
        async with proxy.http.post("/v1/responses", json=body, headers=ann) as response:
            id = (await response.json())["id"]
        goes_on = {"model": "fake", "input": "repeat it", "previous_response_id": id}
        for user in ("ann", "eve"):
            async with proxy.http.post("/v1/responses", json={**goes_on, "user": user}, headers=eve) as response:
                assert response.status == 400
        async with proxy.http.post("/v1/responses", json=goes_on, headers=ann) as response:
            assert response.status == 200
        await proxy.chat("hi", headers=ann)
        assert "nothing was rated" in await says(proxy, "hi", "You said: hi", "/rl bad", headers=eve, user="ann")


async def test_the_first_key_locks_its_owner_out_of_nothing(proxy: Proxy) -> None:
    async with proxy.http.post("/v1/responses", json={"model": "fake", "input": "hi"}) as response:
        id = (await response.json())["id"]
    made = await keys(proxy, boss="admin", bob="rate")
    async with proxy.http.get(f"/v1/responses/{id}", headers=made["bob"]) as response:
        assert response.status == 404
    async with proxy.http.get(f"/v1/responses/{id}", headers=made["boss"]) as response:
        assert response.status == 200
    assert "rated good" in await says(proxy, "hi", "You said: hi", "/rl good", headers=made["boss"])


async def test_the_key_of_the_settings_and_one_that_was_handed_out_are_two(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__api_key="key-of-the-settings")
    shared = {"x-api-key": "key-of-the-settings"}
    made = await keys(proxy, bob="rate")
    async with proxy.http.post("/v1/responses", json={"model": "fake", "input": "hi"}, headers=shared) as response:
        id = (await response.json())["id"]
    async with proxy.http.post("/v1/responses", json={"model": "fake", "input": "hi"}, headers=made["bob"]) as response:
        bobs = (await response.json())["id"]
    for headers, one, status in ((made["bob"], id, 404), (shared, bobs, 404), (shared, id, 200)):
        async with proxy.http.get(f"/v1/responses/{one}", headers=headers) as response:
            assert response.status == status
    named = {**shared, "x-rl-user": "bob"}
    async with proxy.http.get(f"/v1/responses/{bobs}", headers=named) as response:
        assert response.status == 404


@pytest.mark.parametrize("name", ["x-rl-completion-id", "idempotency-key"])
async def test_a_retry_with_anothers_id_gets_no_answer_of_theirs(proxy: Proxy, name: str) -> None:
    made = await keys(proxy, ann="use", bob="use")
    mine = {name: "mine", "x-stainless-retry-count": "0"}
    await proxy.chat("hi", headers={**made["ann"], **mine})
    again = await proxy.chat("hi", headers={**made["bob"], **mine, "x-stainless-retry-count": "1"})
    assert again.status == (409 if name == "x-rl-completion-id" else 200)
    assert len([c for c in await proxy.store.completions.page() if c.new.user == "ann"]) == 1
    assert len(proxy.backend.requests) == (1 if again.status == 409 else 2)


async def test_last_is_ones_own_keys(proxy: Proxy) -> None:
    made = await keys(proxy, ann="rate", bob="rate")
    session = {"x-rl-session": "s"}
    mine = (await proxy.chat("one", headers={**made["bob"], **session})).headers["x-rl-completion-id"]
    await proxy.chat("two", headers={**made["ann"], **session, "x-rl-user": "bob"})
    await proxy.chat("three", headers={"x-api-key": proxy.local, **session})

    async def last(**body: Any) -> str:
        async with proxy.http.post("/v1/feedback", json={"rating": "good", **body}, headers=made["bob"]) as response:
            assert response.status in (200, 201), await response.text()
            return str((await response.json())["completion_id"])

    assert await last(completion_id="last") == mine
    assert await last(session="s") == mine
    async with proxy.http.post(
        "/v1/completions", json={"model": "fake", "prompt": "/rl bad"}, headers={**made["bob"], **session}
    ) as response:
        assert "rated bad" in str(await response.json())
    assert await rated(proxy) == {mine: ["bob"]}


async def test_another_keys_turn_joins_no_conversation(proxy: Proxy) -> None:
    made = await keys(proxy, ann="use", bob="use")
    session = {"x-rl-session": "s"}
    await proxy.chat("hi", headers={**made["ann"], **session})
    await proxy.chat("hi", "You said: hi", "more", headers={**made["bob"], **session, "x-rl-user": "ann"})
    await proxy.chat("hi", "You said: hi", "and", headers={**made["ann"], **session})
    found = [await proxy.store.inbox.get(one.new.id) for one in reversed(await proxy.store.completions.page())]
    first, other, again = (one.conversation for one in found if one is not None)
    assert first == again != other


# Events


async def test_a_key_claims_no_event_of_a_platform(chats: Chats) -> None:
    proxy = chats.proxy
    made = await keys(proxy, eve="rate", boss="admin")
    id = (await proxy.chat("x", headers=made["boss"])).headers["x-rl-completion-id"]

    async def claim(**body: Any) -> int:
        given = {"completion_id": id, "rating": "bad", **body}
        async with proxy.http.post("/v1/feedback", json=given, headers=made["eve"]) as response:
            return response.status

    for source in ("slack", "telegram", "discord", "whatsapp", "signed", "openclaw", "Slack", " slack "):
        assert await claim(source=source, source_event_id="Ev1") == 403, source
    assert await claim(source="mattermost", source_event_id="m1") == 201  # a name that `signed` may have, too
    body = {"platform": "mattermost", "person": "p1", "channel": "c", "what": "command", "completion_id": id}
    status, answer = await chats.send("signed", {**body, "text": "good"}, id="m1")
    assert status == 200 and "rated good" in answer["line"]
    assert await chats.values(id) == {"ann": 1.0, "eve": -1.0}


async def test_a_key_claims_no_event_of_another_key(proxy: Proxy) -> None:
    made = await keys(proxy, ann="rate", eve="rate")
    id = (await proxy.chat("x", headers=made["ann"])).headers["x-rl-completion-id"]
    found = []
    for who, rating in (("eve", "bad"), ("ann", "good"), ("ann", "good")):
        body = {"completion_id": id, "rating": rating, "source": "my-app", "source_event_id": f"{id} good"}
        async with proxy.http.post("/v1/feedback", json=body, headers=made[who]) as response:
            found.append((response.status, (await response.json())["rater"]))
    assert found == [(201, "eve"), (201, "ann"), (200, "ann")]


@pytest.mark.parametrize("way", ["gateway", "shared key", "no key"])
async def test_nobody_uses_up_the_event_of_another_rater(proxy: Proxy, way: str) -> None:
    """Visitors behind one key, whose events an app names as docs/guides/rating-from-code.md does."""
    headers: dict[str, str] = {}
    if way == "gateway":
        headers = (await keys(proxy, gateway="admin"))["gateway"]
    elif way == "shared key":
        await proxy.stop()
        await proxy.start(server__api_key="a-key-of-everybody")
        headers = {"x-api-key": "a-key-of-everybody"}
    id, other = [(await proxy.chat(said, headers=headers)).headers["x-rl-completion-id"] for said in ("hi", "other")]
    event = {"source": "my-app", "source_event_id": f"{id} bad"}

    async def send(who: str, **body: Any) -> tuple[int, Any]:
        if way == "no key":
            more, body = {}, {**body, "rater": who}
        else:
            more = {"x-rl-user": who}
        async with proxy.http.post("/v1/feedback", json={**event, **body}, headers={**headers, **more}) as response:
            return response.status, await response.json()

    assert (await send("eve", completion_id=other, rating="good"))[0] == 201
    for status in (201, 200):
        code, answer = await send("ann", completion_id=id, rating="bad", comment="harmful")
        assert (code, answer["rater"], answer["comment"]) == (status, "ann", "harmful")
    assert await rated(proxy) == {id: ["ann"], other: ["eve"]}


@pytest.mark.parametrize(
    "more", [{"completion_id": "other"}, {"rating": "good"}, {"comment": "no"}, {"correction": "so"}, {"weight": 0.5}]
)
async def test_an_event_that_says_something_else_now_is_told_so(proxy: Proxy, more: Any) -> None:
    id, other = [(await proxy.chat(said)).headers["x-rl-completion-id"] for said in ("hi", "other")]
    given = {"completion_id": id, "rating": "bad", "comment": "harmful", "source": "my-app", "source_event_id": "1"}
    code, stored = await proxy.rate(**given)
    assert code == 201
    code, answer = await proxy.rate(
        **{**given, **more, **({"completion_id": other} if "completion_id" in more else {})}
    )
    assert code == 409 and stored["id"] in answer["error"]["message"] and id in answer["error"]["message"]
    assert [(one.value, one.comment, one.weight) for one in await proxy.store.ratings.history(id)] == [
        (-1.0, "harmful", 1.0)
    ]
    assert (await proxy.rate(**{**given, "comment": None}))[0] == 200  # what is left out says nothing else
    code, answer = await proxy.rate(**{**given, "completion_id": "last"})
    assert code == 200 and answer["id"] == stored["id"]  # sent again: `last` was that one then


async def test_a_command_that_is_sent_again_means_the_answer_of_then(chats: Chats) -> None:
    first = await chats.completion("one", session="c")
    body = {"person": "p1", "channel": "c", "what": "command", "text": "good"}
    assert (await chats.send("signed", body, id="m1"))[0] == 200
    second = await chats.completion("two", session="c")
    assert "as before" in (await chats.send("signed", body, id="m1"))[1]["line"]
    assert (await chats.values(first), await chats.values(second)) == ({"ann": 1.0}, {})


async def test_behind_a_server_that_says_who_speaks_nobody_speaks_for_another(proxy: Proxy) -> None:
    """As docs have it for thumbs in a page: the server adds `x-rl-user`, and the visitor writes the body."""
    id = (await proxy.chat("x")).headers["x-rl-completion-id"]
    eve, ann = {"x-rl-user": "eve"}, {"x-rl-user": "ann"}

    async def send(method: str, path: str, headers: Any, **body: Any) -> int:
        async with proxy.http.request(method, path, headers=headers, json=body or None) as response:
            return response.status

    good = {"completion_id": id, "rating": "good"}
    assert await send("POST", "/v1/feedback", ann, **good) == 201
    mine = await proxy.store.ratings.live(id, "ann")
    assert await send("POST", "/v1/feedback", eve, **good, rater="ann") == 403
    for source in ("slack", "Slack ", "sl\u200back", "\uff33lack", "\u017flack", "s.l-a_c k"):
        assert await send("POST", "/v1/feedback", eve, **good, source=source, source_event_id="Ev1") == 403
    assert await send("DELETE", f"/v1/feedback/{mine.id}", eve) == 403
    assert await send("DELETE", "/v1/feedback/last?rater=ann", eve) == 403
    twice = CIMultiDict([("x-rl-user", "ann"), ("x-rl-user", "eve")])
    assert await send("POST", "/v1/feedback", twice, **good) == 400
    assert await rated(proxy) == {id: ["ann"]}
    assert await send("POST", "/v1/feedback", eve, **good, rater="eve") == 201
    assert await send("DELETE", f"/v1/feedback/{mine.id}", ann) == 200
    assert await rated(proxy) == {id: ["eve"]}


async def test_an_empty_name_is_not_the_owners(proxy: Proxy) -> None:
    """Of a visitor whom the gateway does not know."""
    id = (await proxy.chat("x")).headers["x-rl-completion-id"]
    await proxy.rate(completion_id=id, rating="good")
    for name in ("", " ", "a\tb", "x" * 201):
        headers = {"x-rl-user": name}
        body = {"completion_id": id, "rating": "bad"}
        async with proxy.http.post("/v1/feedback", json=body, headers=headers) as response:
            assert response.status == 400
        async with proxy.http.delete("/v1/feedback/last", headers=headers) as response:
            assert response.status == 400
        link = {"platform": "slack", "channel": "C1", "message_id": "1", "completion_id": id}
        async with proxy.http.post("/rl/links", json=link, headers=headers) as response:
            assert response.status == 400
    assert [(one.value, one.live) for one in await proxy.store.ratings.history(id)] == [(1.0, True)]


NO_NAMES: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({}, {"user": 42}),
    ({}, {"user": ""}),
    ({}, {"user": "a\nb"}),
    ({}, {"user": "x" * 300}),
    ({}, {"user": "owner"}),
    ({}, {"safety_identifier": ["x"]}),
    ({}, {"metadata": {"user_id": "owner"}}),
    ({"x-openwebui-user-email": ""}, {}),
    ({"x-openwebui-user-id": "x" * 300}, {}),
    ({"x-openwebui-user-email": "owner"}, {}),
]


@pytest.mark.parametrize(("headers", "body"), NO_NAMES)
async def test_who_is_named_by_what_is_no_name_is_not_the_owner(
    proxy: Proxy, headers: dict[str, str], body: dict[str, Any]
) -> None:
    """Neither of the owner's answers nor by the owner's name, whom no share bounds; also not of whom calls themself
    so. Their own they may rate."""
    mine = (await proxy.chat("hi")).headers["x-rl-completion-id"]
    assert "nothing was rated" in await says(proxy, "hi", "You said: hi", "/rl bad", headers=headers, **body)
    theirs = (await proxy.chat("yo", headers=headers, **body)).headers["x-rl-completion-id"]
    assert "rated good" in await says(proxy, "yo", "You said: yo", "/rl good", headers=headers, **body)
    assert await rated(proxy) == {theirs: ["unknown"]}
    assert "rated good" in await says(proxy, "hi", "You said: hi", "/rl good")
    assert (await rated(proxy))[mine] == ["owner"]


async def test_a_key_of_one_person_is_theirs_by_whatever_name(proxy: Proxy) -> None:
    bob = (await keys(proxy, bob="rate"))["bob"]
    for user in ("", "owner", 42):
        id = (await proxy.chat("hi", headers=bob, user=user)).headers["x-rl-completion-id"]
        assert "rated good" in await says(proxy, "hi", "You said: hi", "/rl good", headers=bob, user=user)
        assert (await rated(proxy))[id] == ["bob"]


async def test_a_visitor_who_is_called_owner_is_not_the_owner(proxy: Proxy) -> None:
    id = (await proxy.chat("hi")).headers["x-rl-completion-id"]
    await proxy.rate(completion_id=id, rating="good")
    made = await keys(proxy, gateway="admin")
    for headers in ({"x-rl-user": "owner", "x-api-key": proxy.local}, {"x-rl-user": "owner", **made["gateway"]}):
        assert (await proxy.chat("hi", headers=headers)).status == 400
        for method, path in (("POST", "/v1/feedback"), ("DELETE", "/v1/feedback/last"), ("POST", "/rl/links")):
            body = {"completion_id": id, "rating": "bad", "platform": "slack", "channel": "C1", "message_id": "1"}
            async with proxy.http.request(method, path, json=body, headers=headers) as response:
                assert response.status == 400, await response.text()
                assert "owner" in await response.text()
    assert [(one.rater, one.value, one.live) for one in await proxy.store.ratings.history(id)] == [("owner", 1.0, True)]


async def test_an_event_of_the_same_name_is_another_on_another_platform_at_once(chats: Chats) -> None:
    ids = {name: await chats.completion(name, user=f"{name}:p9") for name in ("zulip", "mattermost", "irc")}
    body = {"person": "p9", "channel": "c", "message_id": "m", "what": "reaction", "text": "+1"}
    sent = (chats.send("signed", {**body, "platform": n, "completion_id": id}, id="m1") for n, id in ids.items())
    assert [status for status, _ in await asyncio.gather(*sent)] == [201] * 3
    assert [await chats.values(id) for id in ids.values()] == [{f"{name}:p9": 1.0} for name in ids]


async def test_one_person_of_two_platforms_is_two(chats: Chats) -> None:
    id = await chats.completion(user="p1")
    await chats.proxy.stop()
    raters = {"mattermost:p1": "ann", "p1": "bob", "irc:p9": "cyd"}
    await chats.proxy.start(webhooks__signed__raters=raters, webhooks__signed__admins=["mattermost:p1"])

    async def send(n: int, platform: str | None, person: str, **more: Any) -> tuple[int, Any]:
        body = {"person": person, "channel": "c", "what": "reaction", "text": "+1", "completion_id": id, **more}
        return await chats.send("signed", body | ({"platform": platform} if platform else {}), id=f"m{n}")

    status, answer = await send(0, "irc", "p1")
    assert (status, answer["result"]) == (403, "stranger") and "irc:p1" in answer["line"]
    assert (await send(1, "zulip", "mattermost:p1"))[0] == 403
    assert (await send(2, "irc", "p1", what="command", text="reset"))[1]["result"] == "stranger"
    assert (await send(3, "mattermost", "p1"))[0] == 201
    assert (await send(4, "irc", "p9"))[0] == 201
    assert set(await chats.values(id)) == {"ann", "cyd"}
    assert (await send(5, None, "p1"))[0] == 201
    assert set(await chats.values(id)) == {"ann", "cyd", "p1"}
    assert "nothing was done" not in (await send(6, "mattermost", "p1", what="command", text="pause"))[1]["line"]


async def test_a_secret_speaks_for_its_own_platforms_only(chats: Chats) -> None:
    body = {"person": "p1", "channel": "c", "what": "command", "text": "good", "platform": "mattermost"}
    headers, raw = signing.signed(body, time.time(), secret=signing.OPENCLAW_SECRET)
    status, answer = await chats.post("openclaw", headers, raw)
    assert status == 400 and "`platform`" in answer["error"]["message"]


async def test_an_event_that_comes_at_once_by_two_ways_counts_for_both(chats: Chats) -> None:
    id = await chats.completion()
    event = {"person": "p1", "channel": "c", "what": "command", "text": "good", "completion_id": id}
    http = chats.proxy.rate(completion_id=id, rating="bad", rater="eve", source="http", source_event_id="e1")
    await asyncio.gather(chats.send("signed", event, id="e1"), http)
    assert set(await chats.values(id)) == {"ann", "eve"}
