"""From a platform's request to a stored rating, over a real socket."""

from __future__ import annotations

import asyncio
import io
import json
import random
import time
from typing import Any

import aiohttp
import pytest
from yarl import URL

from config.webhooks import PLATFORMS
from scripts.fuzz.mutating import mutated
from scripts.harness import signing
from scripts.harness.in_process import Proxy
from scripts.harness.versions import publish
from tests.harness.chats import Chats
from tests.proxy.test_full_disk import limit_pages

TS = "1700000000.000100"


async def test_a_platform_that_is_not_configured_is_not_there(proxy: Proxy) -> None:
    for name in PLATFORMS:
        path = "/_matrix/app/v1/ping" if name == "matrix" else ""
        async with proxy.http.post(f"/rl/webhooks/{name}{path}", data=b"{}") as response:
            assert response.status == 404
            assert f"webhooks.{name}." in (await response.json())["error"]["message"]
    assert (await proxy.get("/rl/webhooks/whatsapp"))["error"]["code"] == "not_found"


# Slack


async def test_slack_verifies_the_address(chats: Chats) -> None:
    assert await chats.send("slack", {"type": "url_verification", "challenge": "3eZbrw1a"}) == (200, "3eZbrw1a")
    headers, _ = signing.slack({}, time.time())
    status, _ = await chats.post("slack", headers, b'{"type": "url_verification", "challenge": "x"}')
    assert status == 401  # not even that is answered unsigned
    assert await chats.counted("slack", "bad_signature") == 1


async def test_a_slack_reaction_rates_changes_and_is_taken_back(chats: Chats) -> None:
    id = await chats.completion()
    assert await chats.link("slack", "C1", TS, id) == 201
    now = time.time()
    for event, wanted in [
        (signing.slack_reaction("+1", id="E1", timestamp=now), {"ann": 1.0}),
        (signing.slack_reaction("thinking_face", id="E2", timestamp=now + 1), {"ann": 1.0}),
        (signing.slack_reaction("-1::skin-tone-4", id="E3", timestamp=now + 2), {"ann": -1.0}),
        (signing.slack_reaction("-1::skin-tone-4", id="E4", timestamp=now + 3, removed=True), {"ann": 1.0}),
        (signing.slack_reaction("+1", id="E5", timestamp=now + 4, removed=True), {}),
        (signing.slack_reaction("four", id="E6", timestamp=now + 5), {"ann": 0.5}),
    ]:
        assert (await chats.send("slack", event))[0] == 200
        assert await chats.values(id) == wanted
    stored = await chats.store.ratings.live(id, "ann")
    assert (stored.source, stored.source_event_id, stored.scale) == ("slack", "E6", "stars")
    assert await chats.counted("slack", "rated") == 4  # E4 brought the thumb back
    assert await chats.counted("slack", "ignored") == 1


async def test_replayed_and_reordered_events_change_nothing(chats: Chats) -> None:
    id = await chats.completion()
    await chats.link("slack", "C1", TS, id)
    now = time.time()
    added, removed = (
        signing.slack_reaction("+1", id="E1", timestamp=now),
        signing.slack_reaction("+1", id="E2", timestamp=now + 1, removed=True),
    )
    answers = await asyncio.gather(*(chats.send("slack", added) for _ in range(5)))
    assert {status for status, _ in answers} == {200}
    assert len(await chats.store.ratings.history(id)) == 1
    await chats.send("slack", removed)
    assert (await chats.send("slack", added))[1]["results"] == ["this event was taken before"]
    late = signing.slack_reaction("+1", id="E3", timestamp=now + 0.5)
    assert "newer" in (await chats.send("slack", late))[1]["results"][0]
    assert await chats.values(id) == {}


async def test_a_stale_request_is_refused(chats: Chats) -> None:
    id = await chats.completion()
    await chats.link("slack", "C1", TS, id)
    headers, raw = signing.slack(signing.slack_reaction(), time.time() - 600)
    status, body = await chats.post("slack", headers, raw)
    assert status == 401 and "five minutes" in body["error"]["message"]
    assert await chats.values(id) == {}


async def test_only_the_person_it_was_for_and_those_who_are_named_may_rate(chats: Chats) -> None:
    id = await chats.completion(user="U9")
    await chats.link("slack", "C1", TS, id)
    for n, person in enumerate(("U2", "U9", "U1")):
        await chats.send("slack", signing.slack_reaction("-1", id=f"E{n}", person=person, timestamp=time.time()))
    assert await chats.values(id) == {"U9": -1.0, "ann": -1.0}
    assert await chats.counted("slack", "stranger") == 1
    linked = await chats.completion("again")
    await chats.link("slack", "C1", "2.1", linked, person="U5")
    for n, person in enumerate(("U5", "U6")):
        await chats.send("slack", signing.slack_reaction(id=f"F{n}", person=person, ts="2.1", timestamp=time.time()))
    assert await chats.values(linked) == {"slack:U5": 1.0}


async def test_a_message_without_a_link_is_known_by_its_text(chats: Chats) -> None:
    await chats.completion("one", session="C1")
    id = await chats.completion("two", session="C1")
    chats.platforms.messages["C1", TS] = "You said: *two*"
    await chats.send("slack", signing.slack_reaction(timestamp=time.time()))
    assert await chats.values(id) == {"ann": 1.0}
    chats.platforms.messages["C1", "1700000009.1"] = "You said: one"
    chats.platforms.in_threads.add("1700000009.1")
    await chats.send("slack", signing.slack_reaction(id="E2", ts="1700000009.1", timestamp=time.time()))
    assert await chats.counted("slack", "rated") == 2
    assert [path.rpartition(".")[2] for path in chats.platforms.asked] == ["history", "history", "replies"]


async def test_a_text_of_another_session_does_not_count(chats: Chats) -> None:
    mine = await chats.completion("two", session="slack:C1")
    theirs = await chats.completion("two", session="C2")
    chats.platforms.messages["C1", TS] = "You said: two"
    await chats.send("slack", signing.slack_reaction(timestamp=time.time()))
    assert (await chats.values(mine), await chats.values(theirs)) == ({"ann": 1.0}, {})


async def test_an_ambiguous_text_rates_nothing_and_says_why(chats: Chats) -> None:
    ids = [await chats.completion("two", session="C1") for _ in range(2)]
    chats.platforms.messages["C1", TS] = "You said: two"
    status, body = await chats.send("slack", signing.slack_reaction(timestamp=time.time()))
    assert status == 200 and "2 recent answers" in body["results"][0]
    assert [await chats.values(id) for id in ids] == [{}, {}]
    assert await chats.counted("slack", "ambiguous") == 1


async def test_a_message_of_somebody_else_is_passed_over(chats: Chats) -> None:
    chats.platforms.messages["C1", TS] = "lunch?"
    await chats.completion("two")
    status, body = await chats.send("slack", signing.slack_reaction(timestamp=time.time()))
    assert status == 200 and "no recent answer has that text" in body["results"][0]
    chats.platforms.broken = True
    status, body = await chats.send("slack", signing.slack_reaction(id="E2", timestamp=time.time()))
    assert status == 200 and "its text is not known" in body["results"][0]
    assert await chats.counted("slack", "unmatched") == 2


async def test_a_reaction_waits_for_the_link_that_is_on_its_way(chats: Chats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.feedback.webhooks.resolve.WAIT_S", 60.0)
    id = await chats.completion()
    sending = asyncio.create_task(chats.send("slack", signing.slack_reaction(timestamp=time.time())))
    await asyncio.sleep(0.1)
    await chats.link("slack", "C1", TS, id)
    await sending
    assert await chats.values(id) == {"ann": 1.0}


async def test_what_takes_too_long_is_asked_for_again_and_stored_once(
    chats: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.feedback.webhooks.routes.BUDGET_S", 0.1)
    monkeypatch.setattr("proxy.feedback.webhooks.resolve.WAIT_S", 60.0)
    id = await chats.completion()
    event = signing.slack_reaction(timestamp=time.time())
    status, body = await chats.send("slack", event)
    assert status == 503 and body["error"]["code"] == "not_yet_stored"
    await chats.link("slack", "C1", TS, id)
    while (await chats.send("slack", event))[0] == 503:
        await asyncio.sleep(0.05)
    assert len(await chats.store.ratings.history(id)) == 1


async def test_the_slash_command_rates_the_newest_answer_of_the_channel(chats: Chats) -> None:
    id = await chats.completion("one", session="C1")
    said = {"command": "/rl", "user_id": "U1", "channel_id": "C1"}
    status, body = await chats.send("slack", b"", **said, text="bad too long", trigger_id="1")
    assert status == 200 and body["response_type"] == "ephemeral" and "rated bad" in body["text"]
    assert (await chats.store.ratings.live(id, "ann")).comment == "too long"
    _, body = await chats.send("slack", b"", **said, text="undo", trigger_id="2")
    assert "taken back" in body["text"] and await chats.values(id) == {}
    _, body = await chats.send("slack", b"", **said, text="good", trigger_id="1")  # a copy of the first
    assert await chats.values(id) == {}
    _, body = await chats.send("slack", b"", **{**said, "user_id": "U2"}, text="good", trigger_id="3")
    assert "somebody else" in body["text"] and await chats.values(id) == {}
    _, body = await chats.send("slack", b"", **{**said, "channel_id": "C7"}, text="good", trigger_id="4")
    assert "no answer in this channel" in body["text"]


async def test_an_admins_acts_are_for_those_who_are_named(chats: Chats) -> None:
    said: dict[str, Any] = {"command": "/rl", "text": "pause", "channel_id": "C1"}
    for n, (person, answer) in enumerate(
        (("U2", "nothing was done"), ("U1", "nothing was done"), ("UADMIN", "paused"))
    ):
        _, body = await chats.send("slack", b"", **said, user_id=person, trigger_id=str(n))
        assert answer in body["text"]
    assert (await chats.proxy.get("/rl/status"))["training"]["paused"] is True
    said["user_id"] = "UADMIN"
    await chats.send("slack", b"", **{**said, "text": "resume"}, trigger_id="9")
    _, body = await chats.send("slack", b"", **said, trigger_id="2")  # the old one, sent again
    assert "paused" in body["text"]  # what it was answered then
    assert (await chats.proxy.get("/rl/status"))["training"]["paused"] is False
    _, body = await chats.send("slack", b"", **{**said, "user_id": "U2", "text": "status"}, trigger_id="10")
    assert "nothing was done" in body["text"]
    _, body = await chats.send("slack", b"", **{**said, "user_id": "U2", "text": ""}, trigger_id="11")
    assert "/rl good" in body["text"]


async def test_a_command_that_took_too_long_is_answered_when_it_is_sent_again(
    chats: Chats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.feedback.webhooks.routes.BUDGET_S", 0.1)
    await with_live_version(chats.proxy)
    chats.proxy.backend.hold.clear()
    rollback = signing.telegram_message("/rl rollback", person=9)
    assert (await chats.send("telegram", rollback))[0] == 503
    chats.proxy.backend.hold.set()
    while (await chats.proxy.get("/rl/status"))["live"]:
        await asyncio.sleep(0.02)
    while (answer := await chats.send("telegram", rollback))[0] == 503:
        await asyncio.sleep(0.02)
    assert answer[1]["text"] == "rlproxy: the base model is live again."
    assert await chats.send("telegram", rollback) == answer
    await chats.proxy.stop()
    await chats.proxy.start()
    assert "taken before" in (await chats.send("telegram", rollback))[1]["text"]  # known, though not what was said


async def test_a_command_that_the_backend_fails_says_why(chats: Chats) -> None:
    await with_live_version(chats.proxy)
    await chats.proxy.backend.stop()
    rollback = signing.telegram_message("/rl rollback", person=9)
    answer = await chats.send("telegram", rollback)
    assert answer[0] == 200 and str(chats.proxy.backend.port) in answer[1]["text"]
    assert await chats.send("telegram", rollback) == answer


async def with_live_version(proxy: Proxy) -> None:
    await proxy.post("/rl/pause")
    await (await proxy.chat("q")).read()
    await proxy.rate(completion_id="last", rating="good")
    await publish(proxy, 1)
    assert (await proxy.post("/rl/promote/1"))[0] == 200


async def test_a_reaction_on_an_answer_that_failed_says_so_and_is_not_asked_for_again(chats: Chats) -> None:
    chats.proxy.backend.fail_next = 2  # asked for log-probs, and without
    id = await chats.completion()
    await chats.link("slack", "C1", TS, id)
    status, body = await chats.send("slack", signing.slack_reaction("+1", id="E1", timestamp=time.time()))
    assert status == 200 and "has no answer" in json.dumps(body)
    assert await chats.values(id) == {}


async def test_what_the_disk_does_not_take_is_asked_for_again(chats: Chats) -> None:
    id = await chats.completion()
    await chats.link("slack", "C1", TS, id)
    filler = await chats.completion("x")
    await limit_pages(chats.proxy, 1)
    for n in range(200):  # until no page has room left
        status, _ = await chats.proxy.rate(completion_id=filler, rating="good", rater=f"r{n}", comment="y" * 2000)
        if status == 507:
            break
    for n in range(40):  # and none of the smaller rows either
        if (await chats.send("slack", signing.slack_reaction(id=f"E{n}" + "x" * 400, timestamp=time.time())))[0] == 507:
            break
    before = await chats.values(id)
    last = signing.slack_reaction("-1", id="last" + "x" * 400, timestamp=time.time())
    status, body = await chats.send("slack", last)
    assert status == 507 and "not stored" in body["error"]["message"]
    assert await chats.values(id) == before
    await limit_pages(chats.proxy, 1_000_000)
    assert (await chats.send("slack", last))[0] == 200
    assert await chats.values(id) == {"ann": -1.0}


async def test_events_are_known_after_a_restart(chats: Chats) -> None:
    id = await chats.completion()
    await chats.link("slack", "C1", TS, id)
    event = signing.slack_reaction(timestamp=time.time())
    await chats.send("slack", event)
    (rating,) = await chats.store.ratings.history(id)
    await chats.store.ratings.retract(rating.id)
    await chats.proxy.stop()
    await chats.proxy.start()
    assert (await chats.send("slack", event))[1]["results"] == ["this event was taken before"]
    assert await chats.values(id) == {}


# Telegram


async def test_telegram_reactions(chats: Chats) -> None:
    id = await chats.completion()
    await chats.link("telegram", "-100", "42", id)
    for n, (emoji, wanted) in enumerate(
        ((["👍"], 1.0), (["👎"], -1.0), (["🤔"], None), (["🔥", "👍"], 1.0), ([], None))
    ):
        assert (await chats.send("telegram", signing.telegram_reaction(*emoji, id=n, timestamp=signing.NOW + n)))[
            0
        ] == 200
        assert (await chats.values(id)).get("ann") == wanted
    replay = signing.telegram_reaction("👍", id=0, timestamp=signing.NOW)
    await chats.send("telegram", replay)
    assert await chats.values(id) == {}


async def test_telegram_commands_are_answered_in_the_chat(chats: Chats) -> None:
    id = await chats.completion("two")
    above = {"message_id": 42, "text": "You said: two", "chat": {"id": -100}}
    status, body = await chats.send("telegram", signing.telegram_message("/rl 4 quite good", reply_to=above))
    assert status == 200 and body["method"] == "sendMessage" and body["chat_id"] == -100
    assert body["reply_parameters"]["message_id"] == 50 and "rated 4 of 5" in body["text"]
    assert (await chats.store.ratings.live(id, "ann")).comment == "quite good"
    _, body = await chats.send("telegram", signing.telegram_message("/rl fix: a better text", id=2, reply_to=above))
    stored = await chats.store.ratings.live(id, "ann")
    assert (stored.correction, stored.source, stored.source_event_id) == ("a better text", "telegram", "2")


async def test_telegram_in_a_topic_is_answered_in_the_topic(chats: Chats) -> None:
    await chats.completion("two", session="telegram:-100")
    for topic, marks in ((9, {"is_topic_message": True, "message_thread_id": 9}), (None, {"message_thread_id": 9})):
        update = signing.telegram_message("/rl good", id=topic or 1)
        update["message"] |= marks
        _, body = await chats.send("telegram", update)
        assert "rated good" in body["text"] and body.get("message_thread_id") == topic


async def test_telegram_updates_of_one_second_may_come_in_any_order(chats: Chats) -> None:
    id = await chats.completion()
    await chats.link("telegram", "-100", "42", id)
    for update, emoji in ((12, "👎"), (11, "👍")):
        await chats.send("telegram", signing.telegram_reaction(emoji, id=update))
    assert await chats.values(id) == {"ann": -1.0}


async def test_a_telegram_reply_to_another_chat_does_not_rate_the_newest_here(chats: Chats) -> None:
    id = await chats.completion("two", session="telegram:-100")
    update = signing.telegram_message("/rl bad")
    update["message"]["external_reply"] = {"origin": {"type": "hidden_user"}, "chat": {"id": -200}, "message_id": 3}
    _, body = await chats.send("telegram", update)
    assert "Nothing was rated" in body["text"] and body["chat_id"] == -100
    assert await chats.values(id) == {}


# Discord


async def test_discord_commands_and_buttons(chats: Chats) -> None:
    assert await chats.send("discord", {"id": "1", "type": 1}) == (200, {"type": 1})
    id = await chats.completion("two", session="discord:60")
    status, body = await chats.send("discord", signing.discord_command("bad why"))
    assert status == 200 and body["type"] == 4 and "rated bad" in body["data"]["content"]
    assert body["data"]["flags"] == 64
    await chats.send("discord", signing.discord_button("rl:good", text="You said: two"))
    assert await chats.values(id) == {"ann": 1.0}
    other = await chats.completion("other")
    await chats.send("discord", signing.discord_button(f"rl:2:{other}", id="902", message="81"))
    assert await chats.values(other) == {"ann": -0.5}
    assert (await chats.send("discord", signing.discord_button("vote", id="903")))[1]["type"] == 4
    typing = signing.discord_command("go", id="904") | {"type": 4}
    assert (await chats.send("discord", typing))[1] == {"type": 8, "data": {"choices": []}}


async def test_without_pynacl_discord_says_what_to_install(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "nacl.signing", None)
    await proxy.stop()
    with pytest.raises(Exception, match=r"rlproxy\[discord\]"):
        await proxy.start(webhooks__discord__public_key=signing.DISCORD_PUBLIC)
    await proxy.store.close()
    await proxy.start()


# WhatsApp


async def test_whatsapp(chats: Chats) -> None:
    query = {"hub.mode": "subscribe", "hub.verify_token": signing.WHATSAPP_TOKEN, "hub.challenge": "77"}
    async with chats.proxy.http.get("/rl/webhooks/whatsapp", params=query) as response:
        assert (response.status, await response.text()) == (200, "77")
    async with chats.proxy.http.get("/rl/webhooks/whatsapp", params=query | {"hub.verify_token": "x"}) as response:
        assert response.status == 401
    id = await chats.completion()
    await chats.link("whatsapp", "491701", "wamid.M", id)
    batch = signing.whatsapp_reaction("👍", "👎")
    assert (await chats.send("whatsapp", batch))[0] == 200
    assert await chats.values(id) == {"ann": -1.0}
    await chats.send("whatsapp", signing.whatsapp_reaction(None, id="wamid.S", timestamp=signing.NOW + 9))
    assert await chats.values(id) == {}
    await chats.send("whatsapp", batch)  # Meta sends for a week
    assert await chats.values(id) == {}


# Anything that signs


async def test_signed_answers_say_what_became_of_it(chats: Chats) -> None:
    id = await chats.completion()
    await chats.link("mattermost", "c", "m", id)
    body = {"platform": "mattermost", "person": "p1", "channel": "c", "message_id": "m", "what": "reaction"}
    for n, (more, status, result) in enumerate([
        ({"text": "+1"}, 201, "rated"), ({"text": "eyes"}, 200, "ignored"),
        ({"text": "+1", "person": "p2"}, 403, "stranger"), ({"text": "+1", "message_id": "n"}, 404, "unmatched"),
        ({"what": "retraction"}, 200, "retracted"), ({"completion_id": id, "text": "five"}, 201, "rated"),
        ({"completion_id": "rl-none", "text": "+1"}, 404, "unmatched"),
        ({"what": "command", "text": "bad why", "completion_id": id}, 200, "command"),
    ]):  # fmt: skip
        got, answer = await chats.send("signed", body | more, id=f"m{n}")
        assert (got, answer["result"]) == (status, result), answer
    stored = await chats.store.ratings.live(id, "ann")
    assert (stored.source, stored.source_event_id, stored.value, stored.comment) == ("mattermost", "m7", -1.0, "why")
    assert (await chats.send("signed", body | {"text": "+1"}, id="m0"))[1]["result"] == "duplicate"
    assert (await chats.send("signed", {"what": "dance"}, id="m9"))[0] == 400


async def test_openclaw_has_a_secret_of_its_own(chats: Chats) -> None:
    id = await chats.completion(user="telegram:7")
    body = {"person": "telegram:7", "channel": "telegram:-100", "message_id": "1", "what": "reaction", "text": "👍"}
    await chats.link("openclaw", "telegram:-100", "1", id)
    assert (await chats.send("openclaw", body))[0] == 401
    status, answer = await chats.send("openclaw", body, secret=signing.OPENCLAW_SECRET)
    assert status == 201 and await chats.values(id) == {"telegram:7": 1.0}
    assert (await chats.store.ratings.get(answer["rating_id"])).source == "openclaw"


# Around them


async def test_links(chats: Chats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.feedback.webhooks.links.WAIT_S", 60.0)
    id = await chats.completion()
    linking = asyncio.create_task(chats.link("slack", "C1", TS, "rl-soon"))
    await asyncio.sleep(0.05)
    await chats.proxy.chat("x", headers={"x-rl-completion-id": "rl-soon"})
    assert await linking == 201
    monkeypatch.setattr("proxy.feedback.webhooks.links.WAIT_S", 0.1)
    assert await chats.link("slack", "C1", TS, "rl-none") == 404
    assert await chats.link("slack", "", TS, id) == 400
    assert await chats.link("telegram", -100, 42, id) == 201  # type: ignore[arg-type]  # ids there are numbers
    assert (await chats.store.reactions.linked("telegram", "-100", "42")).completion_id == id


async def test_a_webhook_needs_no_key_and_no_loopback_name_but_all_else_does(chats: Chats) -> None:
    id = await chats.completion()
    await chats.link("slack", "C1", TS, id)
    headers, raw = signing.slack(signing.slack_reaction(timestamp=time.time()), time.time())
    headers["host"] = "abc.tunnel.example"
    assert (await chats.post("slack", headers, raw))[0] == 200
    assert await chats.values(id) == {"ann": 1.0}
    async with chats.proxy.http.get("/rl/status", headers={"host": "abc.tunnel.example"}) as response:
        assert response.status == 403
    await chats.proxy.stop()
    await chats.proxy.start(server__api_key="use", server__admin_key="admin")
    assert (await chats.post("slack", *signing.slack(signing.slack_reaction(id="E2"), time.time())))[0] == 200
    assert await chats.link("slack", "C1", TS, id) == 401


@pytest.mark.parametrize("name", ["slack", "telegram", "discord", "whatsapp", "signed"])
async def test_a_broken_body_that_is_signed_breaks_nothing(
    chats: Chats, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.feedback.webhooks.resolve.WAIT_S", 0.0)
    id = await chats.completion()
    for channel, message in (("C1", TS), ("-100", "42"), ("60", "80"), ("491701", "wamid.M"), ("c", "m")):
        await chats.link("signed" if channel == "c" else name, channel, message, id)
    bodies = [
        {"slack": signing.slack_reaction(), "telegram": signing.telegram_message("/rl good"),
         "discord": signing.discord_command("good"), "whatsapp": signing.whatsapp_reaction("👍", None),
         "signed": {"what": "command", "person": "p1", "channel": "c", "text": "good", "said": "x"}}[name],
        {"slack": signing.slack_reaction("-1"), "telegram": signing.telegram_reaction("👍"),
         "discord": signing.discord_button("rl:good"), "whatsapp": signing.whatsapp_reaction("x"),
         "signed": {"what": "reaction", "person": "p1", "channel": "c", "message_id": "m", "text": "👍"}}[name],
    ]  # fmt: skip
    for seed in range(100):
        raw = mutated(random.Random(seed), json.dumps(bodies[seed % 2]).encode())
        if name in ("slack", "signed"):
            raw = raw.decode(errors="replace").encode()  # their libraries sign text
        status, answer = await chats.send(name, raw)
        assert status in (200, 201, 400, 403, 404, 409), (seed, answer)


@pytest.mark.parametrize("path", ["../status", "%2e%2e/status", "..%2fstatus", "slack/../../status"])
async def test_no_way_leads_around_the_key(chats: Chats, path: str) -> None:
    await chats.proxy.stop()
    await chats.proxy.start(server__api_key="use", server__admin_key="admin")
    url = URL(f"{chats.proxy.url}/rl/webhooks/{path}", encoded=True)
    async with aiohttp.request("GET", url) as response:
        assert response.status in (400, 401, 404)


async def test_a_huge_body_is_not_read(chats: Chats) -> None:
    async with chats.proxy.http.post("/rl/webhooks/slack", data=io.BytesIO(b"x" * ((1 << 20) + 1))) as response:
        assert response.status == 413 and (await response.json())["error"]["code"] == "body_too_large"


async def test_a_rating_from_a_chat_wakes_whoever_listens(chats: Chats) -> None:
    id = await chats.completion()
    await chats.link("slack", "C1", TS, id)
    async with chats.proxy.http.get("/rl/events", timeout=aiohttp.ClientTimeout(total=10)) as events:
        await chats.send("slack", signing.slack_reaction(timestamp=time.time()))
        await chats.send("slack", signing.slack_reaction(id="E2", timestamp=time.time() + 1, removed=True))
        seen = b""
        while b"event: retracted" not in seen:
            seen += await events.content.readany()
    assert b"event: rating" in seen and id.encode() in seen
