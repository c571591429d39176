"""Matrix: what a homeserver pushes becomes ratings; each event once, and nothing of it holds the homeserver up."""

from __future__ import annotations

import io
import json
import re
import time
from itertools import count
from typing import Any

import pytest

from config.webhooks import MatrixSection
from proxy.feedback.webhooks.base import Forged
from proxy.feedback.webhooks.matrix import Matrix
from scripts.harness import signing
from tests.harness.chats import MATRIX_TOKEN, Chats

AGENT, ANN, BOB, ROOM = "@agent:home", "@ann:home", "@bob:home", "!room:home"
HEADERS = {"authorization": f"Bearer {MATRIX_TOKEN}"}
_numbers = count(1)


def event(kind: str, content: dict[str, Any], sender: str = ANN, **members: Any) -> dict[str, Any]:
    number = next(_numbers)
    return {
        "type": kind, "content": content, "sender": sender, "room_id": ROOM, "event_id": f"$event{number}",
        "origin_server_ts": int(time.time() * 1000) + number, "unsigned": {"age": 5}, **members,
    }  # fmt: skip


def message(body: str, sender: str = ANN, **members: Any) -> dict[str, Any]:
    return event("m.room.message", {"msgtype": "m.text", "body": body, **members}, sender)


def answer(completion: str, **members: Any) -> dict[str, Any]:
    return message("An answer.", AGENT, **{"org.rlproxy.completion": completion, **members})


def reaction(to: str, key: str, sender: str = ANN) -> dict[str, Any]:
    return event("m.reaction", {"m.relates_to": {"rel_type": "m.annotation", "event_id": to, "key": key}}, sender)


def redaction(of: str, sender: str = ANN) -> dict[str, Any]:
    return event("m.room.redaction", {"redacts": of}, sender, redacts=of)


def reply(to: str, body: str, sender: str = ANN) -> dict[str, Any]:
    return message(body, sender, **{"m.relates_to": {"m.in_reply_to": {"event_id": to}}})


def edit(of: str, body: str, sender: str = ANN) -> dict[str, Any]:
    new = {"msgtype": "m.text", "body": body}
    return message(
        f"* {body}", sender, **{"m.new_content": new, "m.relates_to": {"rel_type": "m.replace", "event_id": of}}
    )


async def push(chats: Chats, *events: dict[str, Any], status: int = 200, headers: dict[str, str] = HEADERS) -> Any:
    path = f"/rl/webhooks/matrix/_matrix/app/v1/transactions/{next(_numbers)}"
    async with chats.proxy.http.put(path, json={"events": list(events)}, headers=headers) as response:
        assert response.status == status, await response.text()
        assert response.content_length is not None  # without one Synapse counts the answer as failed
        return await response.json()


async def shown(chats: Chats) -> tuple[str, str]:
    """A completion, and the event of the message that shows it."""
    id = await chats.completion(f"question {next(_numbers)}", user=ANN)
    post = answer(id)
    assert await push(chats, post) == {}
    return id, post["event_id"]


async def test_a_reaction_rates_changes_and_is_taken_back(chats: Chats) -> None:
    id, post = await shown(chats)
    good, bad = reaction(post, "👍"), reaction(post, "👎")
    await push(chats, good)
    assert await chats.values(id) == {ANN: 1.0}
    await push(chats, bad)
    assert await chats.values(id) == {ANN: -1.0}
    await push(chats, redaction(bad["event_id"]))
    assert await chats.values(id) == {ANN: 1.0}  # the thumb that is still there
    await push(chats, redaction(good["event_id"]))
    assert await chats.values(id) == {}


async def test_a_moderator_may_take_a_reaction_away(chats: Chats) -> None:
    id, post = await shown(chats)
    good = reaction(post, "👍")
    await push(chats, good, redaction(good["event_id"], "@moderator:home"))
    assert await chats.values(id) == {}


async def test_who_may_redact_in_another_room_takes_nothing_away_here(chats: Chats) -> None:
    id, post = await shown(chats)
    good = reaction(post, "👍")
    await push(chats, good, redaction(good["event_id"], "@mallory:elsewhere") | {"room_id": "!hers:elsewhere"})
    assert await chats.values(id) == {ANN: 1.0}


async def test_who_may_redact_or_edit_in_another_room_takes_no_command_back(chats: Chats) -> None:
    id, post = await shown(chats)
    command = reply(post, "/rl good")
    there = {"room_id": "!hers:elsewhere"}
    await push(chats, command, redaction(command["event_id"], "@mallory:elsewhere") | there)
    assert await chats.values(id) == {ANN: 1.0}
    await push(chats, edit(command["event_id"], "/rl bad") | there, edit(command["event_id"], "never mind") | there)
    assert await chats.values(id) == {ANN: 1.0}
    spaced = {"room_id": f"{ROOM} {command['event_id']}"}
    await push(chats, redaction("$x", "@mallory:elsewhere") | spaced)
    assert await chats.values(id) == {ANN: 1.0}
    await push(chats, redaction(command["event_id"], "@moderator:home"))
    assert await chats.values(id) == {}


async def test_a_transaction_has_so_many_events(chats: Chats) -> None:
    """Four million empty ones held the loop for 39 s."""
    await push(chats, *({} for _ in range(10_000)))
    await push(chats, *({} for _ in range(10_001)), status=413)


async def test_stars_and_custom_emoji(chats: Chats) -> None:
    id, post = await shown(chats)
    await push(chats, reaction(post, "4️⃣"))
    assert await chats.values(id) == {ANN: 0.5}
    custom = reaction(post, "mxc://home/picture")
    custom["content"]["shortcode"] = ":thumbsdown:"
    await push(chats, custom)
    assert await chats.values(id) == {ANN: -1.0}


async def test_what_is_repeated_changes_nothing(chats: Chats) -> None:
    id, post = await shown(chats)
    good = reaction(post, "👍")
    gone = redaction(good["event_id"])
    await push(chats, good, gone)
    for _ in range(3):
        await push(chats, good, gone)
    assert await chats.values(id) == {}
    command = reply(post, "/rl bad too long")
    for _ in range(3):
        await push(chats, command)
    assert await chats.values(id) == {ANN: -1.0}
    assert len([rating for rating in await chats.store.ratings.history(id) if rating.comment]) == 1


@pytest.mark.parametrize(
    "body",
    [
        "/rl bad too long",
        "rl:bad too long",
        "!rl bad too long",
        "> <@agent:home> An answer.\n> of two lines\n\n/rl bad too long",
    ],
)
async def test_a_command_is_about_what_it_replies_to(chats: Chats, body: str) -> None:
    id, post = await shown(chats)
    other, _ = await shown(chats)
    await push(chats, reply(post, body))
    (rating,) = await chats.store.ratings.history(id)
    assert (rating.value, rating.comment, rating.rater, rating.source) == (-1.0, "too long", ANN, "matrix")
    assert await chats.values(other) == {}


async def test_an_edited_command_speaks_anew_and_its_redaction_takes_all_back(chats: Chats) -> None:
    id, post = await shown(chats)
    command = reply(post, "/rl bad")
    await push(chats, command, edit(command["event_id"], "/rl good"))
    assert await chats.values(id) == {ANN: 1.0}
    await push(chats, redaction(command["event_id"]))
    assert await chats.values(id) == {}
    again = reply(post, "/rl bad")
    await push(chats, again, edit(again["event_id"], "never mind"))
    assert await chats.values(id) == {}


async def test_an_edit_of_somebody_elses_command_is_theirs_to_make(chats: Chats) -> None:
    id, post = await shown(chats)
    command = reply(post, "/rl good")
    await push(chats, command, edit(command["event_id"], "never mind", "@mallory:home"))
    await push(chats, edit(command["event_id"], "/rl bad", "@mallory:home"))
    assert await chats.values(id) == {ANN: 1.0}


async def test_an_agents_edit_keeps_its_link_and_its_own_reactions_rate_nothing(chats: Chats) -> None:
    id, post = await shown(chats)
    other = await chats.completion("another", user=ANN)
    changed = edit(post, "A better answer.", AGENT)
    changed["content"]["org.rlproxy.completion"] = other
    await push(chats, changed, reaction(post, "👎", AGENT), reaction(post, "👍"))
    assert await chats.values(id) == {ANN: 1.0} and await chats.values(other) == {}


async def test_an_impostor_names_another_persons_answer(chats: Chats) -> None:
    """Only agents say what a message shows: else a joke with Ann's completion in it would collect her thumbs."""
    id = await chats.completion("hers", user=ANN)
    joke = answer(id)
    joke["sender"] = "@mallory:home"
    await push(chats, joke, reaction(joke["event_id"], "👎"))
    assert await chats.values(id) == {}


async def test_a_strangers_room_says_nothing_of_an_answer_in_another(chats: Chats) -> None:
    """A stranger invites the agent and Ann to another room, and names an event of Ann's room there."""
    id, post = await shown(chats)
    there = {"room_id": "!hers:elsewhere"}
    await push(chats, reaction(post, "👎") | there, reply(post, "/rl bad") | there, message("/rl bad") | there)
    copy = answer(id) | there
    copy["sender"] = "@mallory:elsewhere"
    await push(chats, copy, reaction(copy["event_id"], "👎") | there, edit(post, "/rl bad") | there)
    assert await chats.values(id) == {}
    assert await chats.counted("matrix", "rated") == await chats.counted("matrix", "command") == 0


async def test_openclaws_rooms_are_the_homeservers_where_it_tells_of_them(chats: Chats) -> None:
    """OpenClaw's plugin links, the homeserver says what people did; the plugin saying it too counts for nothing."""
    id = await chats.completion("hers", user=f"matrix:{ANN}")
    person = f"matrix:{ANN}"
    assert await chats.link("openclaw", f"matrix:{ROOM}", "$answer", id, person=person) == 201
    about = {"person": person, "channel": f"matrix:{ROOM}", "message_id": "$answer"}
    for number, (what, text) in enumerate((("reaction", "👎"), ("command", "bad"), ("command", "train"))):
        event_of_plugin = {"what": what, "text": text, **about}
        status, taken = await chats.send("openclaw", event_of_plugin, id=f"m{number}", secret=signing.OPENCLAW_SECRET)
        assert (status, taken["result"], taken["line"]) == (200, "ignored", "")
    assert await chats.values(id) == {}
    await push(chats, reaction("$answer", "👍"))
    assert await chats.values(id) == {person: 1.0}
    await push(chats, message("/rl bad"))  # the newest answer in the room
    assert await chats.values(id) == {person: -1.0}


async def test_strangers_rate_nothing_and_named_raters_do(chats: Chats) -> None:
    id, post = await shown(chats)
    await push(chats, reaction(post, "👎", "@mallory:elsewhere"), reaction(post, "👎", BOB))
    assert await chats.values(id) == {"bob": -1.0}
    assert await chats.counted("matrix", "stranger") == 1


async def test_a_person_named_with_the_answer_may_rate_it(chats: Chats) -> None:
    id = await chats.completion("for carol")
    post = answer(id, **{"org.rlproxy.person": "@carol:home"})
    await push(chats, post, reaction(post["event_id"], "👍", "@carol:home"))
    assert await chats.values(id) == {"matrix:@carol:home": 1.0}


async def test_a_redacted_reaction_that_comes_late_is_none(chats: Chats) -> None:
    id, post = await shown(chats)
    late = reaction(post, "👍")
    late["content"] = {}
    late["unsigned"]["redacted_because"] = redaction(late["event_id"])
    await push(chats, late)
    assert await chats.values(id) == {}


async def test_a_wrong_token_is_401_and_its_body_is_not_read(chats: Chats) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": MATRIX_TOKEN}):
        answer_body = await push(chats, status=401, headers=headers)
        assert answer_body["error"]["code"] == "bad_signature"
    assert await chats.counted("matrix", "bad_signature") == 3


async def test_a_homeserver_gone_mad_leaves_one_warning_a_kind(
    chats: Chats, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything again and again, wrong tokens, strangers, bodies that are none: the log stays readable."""
    id, post = await shown(chats)
    joke = answer(id)
    joke["sender"] = "@mallory:home"
    events = [
        reaction(post, "👍"), reply(post, "/rl bad too long"), reaction(post, "👎", "@mallory:home"), joke,
        reaction(joke["event_id"], "👎"), event("org.example.unknown", {}), message("hello"), redaction("$nowhere"),
    ]  # fmt: skip
    capsys.readouterr()
    path = "/rl/webhooks/matrix/_matrix/app/v1/transactions/same"
    for _ in range(20):
        await push(chats, *events)
        await push(chats, status=401, headers={"authorization": "Bearer wrong"})
        await push(chats, *({} for _ in range(10_001)), status=413)
        async with chats.proxy.http.put(path, data=b"{" * 1000, headers=HEADERS) as response:
            assert response.status == 200
    assert await chats.values(id) == {ANN: -1.0}
    assert len(await chats.store.ratings.history(id)) == 2
    output = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)  # without colours
    assert "result=stranger" in output, "the log is read here"
    kinds = re.findall(r"\[(?:warning|error) .*", output)
    assert len(kinds) == len(set(kinds)), kinds


async def test_a_thousand_events_of_unknown_kinds_are_nothing(chats: Chats) -> None:
    """Two hundred messages without a link are waited for together: in turn they would take minutes."""
    id, post = await shown(chats)
    noise = [event(f"org.example.{n}", {"m.relates_to": [n], "body": None}) for n in range(500)]
    noise += [message(f"word {n}") for n in range(300)]
    noise += [reaction(f"$nowhere{n}", "👍") for n in range(200)]
    await push(chats, *noise, reaction(post, "👍"))
    assert await chats.values(id) == {ANN: 1.0}


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"events": 5}', b'{"events": [1, null, {}, {"event_id": 5}]}', b"\xff" * 1000, b"{" * 100_000],
)
async def test_a_body_that_is_not_a_transaction_is_nothing(chats: Chats, body: bytes) -> None:
    path = "/rl/webhooks/matrix/_matrix/app/v1/transactions/odd"
    async with chats.proxy.http.put(path, data=body, headers=HEADERS) as response:
        assert (response.status, await response.json()) == (200, {})


async def test_a_transaction_may_be_larger_than_other_webhooks_and_has_a_bound(chats: Chats) -> None:
    path = "/rl/webhooks/matrix/_matrix/app/v1/transactions/large"
    large = json.dumps({"events": [message("x" * 60_000) for _ in range(175)]}).encode()
    assert len(large) > 10_000_000
    async with chats.proxy.http.put(path, data=io.BytesIO(large), headers=HEADERS) as response:
        assert response.status == 200
    async with chats.proxy.http.put(path, data=io.BytesIO(b" " * (1 << 24) + large), headers=HEADERS) as response:
        assert response.status == 413


async def test_a_ping_and_names_that_are_not_ours(chats: Chats) -> None:
    base = "/rl/webhooks/matrix/_matrix/app/v1"
    async with chats.proxy.http.post(f"{base}/ping", json={"transaction_id": "t"}, headers=HEADERS) as response:
        assert (response.status, await response.json()) == (200, {})
    async with chats.proxy.http.post(f"{base}/ping", json={}) as response:
        assert response.status == 401
    async with chats.proxy.http.get(f"{base}/users/@nobody:home", headers=HEADERS) as response:
        assert (response.status, (await response.json())["errcode"]) == (404, "M_NOT_FOUND")


def test_a_time_in_the_future_is_now() -> None:
    matrix = Matrix(MATRIX_TOKEN, MatrixSection(agents=(AGENT,)).agents)
    future = reaction("$answer", "👍") | {"origin_server_ts": 1 << 52}
    (seen,) = matrix.verify(HEADERS, json.dumps({"events": [future]}).encode(), 1000.0)
    assert seen.happened_at == 1000.0
    with pytest.raises(Forged):
        matrix.verify({"authorization": "Bearer"}, b"{}", 1000.0)
