"""Who sent it, and what happened: against the platforms' own libraries, and against whatever else may come."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nacl.signing import SigningKey
from slack_sdk.signature import Clock, SignatureVerifier
from standardwebhooks.webhooks import Webhook

from config.errors import SettingsError
from proxy.core.errors import BadRequest, Unauthorized
from proxy.feedback.webhooks.base import Forged, Platform, PlatformEvent, Stale
from proxy.feedback.webhooks.discord import Discord
from proxy.feedback.webhooks.signed import Signed
from proxy.feedback.webhooks.slack import Slack
from proxy.feedback.webhooks.telegram import Telegram
from proxy.feedback.webhooks.whatsapp import WhatsApp
from scripts.harness import signing
from scripts.harness.signing import NOW

ALL: dict[str, tuple[Platform, Callable[..., signing.Signed]]] = {
    "slack": (Slack(signing.SLACK_SECRET), signing.slack),
    "telegram": (Telegram(signing.TELEGRAM_SECRET), signing.telegram),
    "discord": (Discord(signing.DISCORD_PUBLIC), signing.discord),
    "whatsapp": (WhatsApp(signing.WHATSAPP_SECRET, None), signing.whatsapp),
    "signed": (Signed("signed", signing.SIGNED_SECRET), signing.signed),
}
REACTIONS: dict[str, dict[str, Any]] = {
    "slack": signing.slack_reaction(),
    "telegram": signing.telegram_reaction("👍"),
    "discord": signing.discord_button("rl:good"),
    "whatsapp": signing.whatsapp_reaction("👍"),
    "signed": {"what": "reaction", "person": "p", "channel": "c", "message_id": "m", "text": "👍"},
}
names = pytest.mark.parametrize("name", list(ALL))
TIMED = [name for name in ALL if name not in ("telegram", "whatsapp")]  # those two sign no time


def verified(name: str, body: dict[str, Any] | bytes, now: float = NOW, **more: Any) -> tuple[PlatformEvent, ...]:
    platform, sign = ALL[name]
    return platform.verify(*sign(body, now, **more), now)


@names
def test_what_is_signed_by_the_platforms_own_library_is_taken(name: str) -> None:
    (event,) = verified(name, REACTIONS[name])
    assert event.platform == name and event.person and event.message_id


@pytest.mark.parametrize(
    ("name", "change"),
    # Telegram does not sign the body
    [(n, c) for n in ALL for c in ("body", "header", "no header", "another secret") if (n, c) != ("telegram", "body")],
)
def test_what_is_forged_is_refused(name: str, change: str) -> None:
    platform, sign = ALL[name]
    headers, body = sign(REACTIONS[name])
    proof = next(key for key in headers if "time" not in key and ("signature" in key or "token" in key))
    if change == "body":
        body += b" "
    elif change == "header":
        last = headers[proof][-1]
        headers[proof] = headers[proof][:-1] + ("0" if last != "0" else "1")
    elif change == "no header":
        del headers[proof]
    else:
        platform = {
            "slack": Slack("other"), "telegram": Telegram("other"), "whatsapp": WhatsApp("other", None),
            "discord": Discord(SigningKey(b"\x08" * 32).verify_key.encode().hex()),
            "signed": Signed("signed", signing.OPENCLAW_SECRET),
        }[name]  # fmt: skip
    with pytest.raises(Forged):
        platform.verify(headers, body, NOW)


@pytest.mark.parametrize("name", TIMED)
@pytest.mark.parametrize("seconds", [301, -301, 86400])
def test_what_was_signed_long_ago_is_refused(name: str, seconds: int) -> None:
    platform, sign = ALL[name]
    request = sign(REACTIONS[name])
    assert platform.verify(*request, NOW + 299) and platform.verify(*request, NOW - 299)
    with pytest.raises(Stale):
        platform.verify(*request, NOW + seconds)


@pytest.mark.parametrize("name", TIMED)
@pytest.mark.parametrize("time", ["", "x", "1e9", "-1", "١٧٠٠٠٠٠٠٠٠", "9" * 40])
def test_a_time_that_is_none_is_refused(name: str, time: str) -> None:
    platform, sign = ALL[name]
    headers, body = sign(REACTIONS[name])
    with pytest.raises(Unauthorized):
        platform.verify({k: time if "timestamp" in k else v for k, v in headers.items()}, body, NOW)


# The verdict is that of the platform's own library.


class _At(Clock):
    def now(self) -> float:
        return NOW


@given(st.text(max_size=200), st.integers(NOW - 400, NOW + 400), st.booleans())
def test_slack_agrees_with_its_library(text: str, time: int, right: bool) -> None:
    body = text.encode()
    headers, _ = signing.slack(body, time)
    if not right:
        headers["x-slack-signature"] = "v0=" + "0" * 64
    theirs = SignatureVerifier(signing.SLACK_SECRET, _At()).is_valid_request(
        body, {"X-Slack-Request-Timestamp": str(time), "X-Slack-Signature": headers["x-slack-signature"]}
    )
    assert _taken(ALL["slack"][0], headers, body) == theirs


@given(st.text(max_size=100), st.integers(-400, 400), st.sampled_from(["good", "second", "wrong", "v2"]))
def test_standard_webhooks_agree_with_their_library(text: str, ago: int, kind: str) -> None:
    now = datetime.now(UTC).replace(microsecond=0)  # their library reads the clock itself
    if abs(abs(ago) - 300) < 5:
        ago = 0
    body = json.dumps({**REACTIONS["signed"], "said": text})
    good = Webhook(signing.SIGNED_SECRET).sign("m1", now - timedelta(seconds=ago), body)
    signature = {"good": good, "second": f"v1,AAAA {good}", "wrong": "v1,AAAA", "v2": "v2," + good[3:]}[kind]
    headers = {
        "webhook-id": "m1", "webhook-signature": signature, "webhook-timestamp": str(int(now.timestamp()) - ago)
    }  # fmt: skip
    try:
        Webhook(signing.SIGNED_SECRET).verify(body, headers)
        theirs = True
    except Exception:  # theirs has several, and one of them is Exception's own
        theirs = False
    assert _taken(ALL["signed"][0], headers, body.encode(), now.timestamp()) == theirs


def _taken(platform: Platform, headers: dict[str, str], body: bytes, now: float = NOW) -> bool:
    try:
        platform.verify(headers, body, now)
    except Unauthorized:
        return False
    except BadRequest:
        return True  # signed, and no good for another reason
    return True


# Whatever comes.

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


@names
@given(headers=st.dictionaries(st.text(max_size=30), st.text(max_size=80), max_size=5), body=st.binary(max_size=300))
def test_nothing_unsigned_is_ever_taken(name: str, headers: dict[str, str], body: bytes) -> None:
    platform, sign = ALL[name]
    with pytest.raises(Unauthorized):
        platform.verify(headers, body, NOW)
    if name in ("slack", "signed"):
        body = body.decode(errors="replace").encode()  # their libraries sign text
    known = {key: headers.get(key, value[::-1] + "é\udc80") for key, value in sign(body or b"{}", NOW)[0].items()}
    with pytest.raises(Unauthorized):
        platform.verify(known, body, NOW)


@names
@given(body=st.binary(max_size=200) | anything.map(lambda value: json.dumps(value).encode()))
@example(body=b"[" * 50_000)
def test_a_signed_body_of_any_kind_is_an_event_or_none(name: str, body: bytes) -> None:
    if name in ("slack", "signed"):
        body = body.decode(errors="replace").encode()  # their libraries sign text
    try:
        events = verified(name, body)
    except BadRequest:
        assert name == "signed"  # our own JSON has errors; of a platform's what is unknown is passed over
    else:
        assert events == () or name == "signed"


@names
@given(data=st.data())
def test_a_known_body_with_one_thing_broken_is_an_event_or_none(name: str, data: st.DataObject) -> None:
    body = json.loads(json.dumps(REACTIONS[name]))
    places = list(_places(body))
    holder, key = data.draw(st.sampled_from(places))
    holder[key] = data.draw(anything)
    try:
        events = verified(name, body)
    except BadRequest:
        assert name == "signed"
        return
    for event in events:
        assert event.event_id and event.person and isinstance(event.text, str) and event.happened_at >= 0


def _places(value: Any) -> Any:
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


# What they mean.


def test_slack_events() -> None:
    (added,) = verified("slack", signing.slack_reaction("thumbsup::skin-tone-3", timestamp=NOW + 0.25))
    assert added == PlatformEvent(
        "slack", "Ev1", "U1", "C1", "1700000000.000100", "reaction", "thumbsup::skin-tone-3", NOW + 0.25,
        slot="thumbsup::skin-tone-3",
    )  # fmt: skip
    assert verified("slack", signing.slack_reaction(removed=True))[0].kind == "retraction"
    assert verified("slack", {"type": "url_verification", "challenge": "x"}) == ()
    on_a_file = signing.slack_reaction()
    on_a_file["event"]["item"] = {"type": "file", "file": "F1"}
    assert verified("slack", on_a_file) == ()
    (command,) = verified(
        "slack", b"", command="/rl", text="good why &lt; &amp;amp;", user_id="U1", channel_id="C1", trigger_id="1.2"
    )
    assert (command.kind, command.text, command.event_id, command.message_id) == (
        "command",
        "good why < &amp;",
        "1.2",
        None,
    )
    assert verified("slack", b"", command="/other", text="x", user_id="U1", channel_id="C1", trigger_id="1") == ()


def test_slack_looks_at_the_certificate_without_a_signature() -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert ALL["slack"][0].verify(form, b"ssl_check=1&token=z26uFbvR1xHJEdHE1OQiO6t8", NOW) == ()
    for headers, body in ((form, b"ssl_check=10"), ({}, b"ssl_check=1"), (form, b"text=ssl_check%3D1")):
        with pytest.raises(Unauthorized):
            ALL["slack"][0].verify(headers, body, NOW)


def test_telegram_updates() -> None:
    (both,) = verified("telegram", signing.telegram_reaction("👍", "🔥"))
    assert (both.kind, both.text, both.slot, both.person, both.channel) == ("reaction", "👍 🔥", "", "7", "-100")
    assert verified("telegram", signing.telegram_reaction())[0].kind == "retraction"
    anonymous = signing.telegram_reaction("👍")
    anonymous["message_reaction"]["actor_chat"] = anonymous["message_reaction"].pop("user")
    assert verified("telegram", anonymous) == ()
    (typed,) = verified("telegram", signing.telegram_message("/rl@our_bot bad too long"))
    assert (typed.kind, typed.text, typed.message_id) == ("command", "bad too long", None)
    above = {"message_id": 42, "text": "an answer", "chat": {"id": -100}}
    (reply,) = verified("telegram", signing.telegram_message("/rl", reply_to=above))
    assert (reply.text, reply.message_id, reply.message_text) == ("", "42", "an answer")
    for text in ("/rlgood", "say /rl good", "/start"):
        assert verified("telegram", signing.telegram_message(text)) == ()


def test_telegram_reactions_of_one_second_have_the_order_of_their_updates() -> None:
    first, second = (verified("telegram", signing.telegram_reaction("👍", id=id))[0] for id in (41, 42))
    assert NOW <= first.happened_at < second.happened_at < NOW + 1


def test_telegram_without_a_list_of_reactions_has_none() -> None:
    none = signing.telegram_reaction()
    del none["message_reaction"]["new_reaction"]  # so python-telegram-bot's Update.to_json() writes an empty one
    assert verified("telegram", none)[0].kind == "retraction"


@pytest.mark.parametrize(
    ("external", "channel", "message"),
    [
        ({"external_reply": {"chat": {"id": -200}, "message_id": 3}}, "-200", "3"),
        ({"external_reply": {"origin": {"type": "hidden_user"}}}, "-100", "0"),
        ({"reply_to_story": {"chat": {"id": 5}, "id": 9}}, "5", "0"),
    ],
)
def test_a_telegram_reply_to_another_chat_is_not_about_this_one(
    external: dict[str, Any], channel: str, message: str
) -> None:
    update = signing.telegram_message("/rl bad")
    update["message"] |= external
    (typed,) = verified("telegram", update)
    assert (typed.channel, typed.message_id) == (channel, message)


def test_discord_interactions() -> None:
    assert verified("discord", {"id": "1", "type": 1}) == ()
    (typed,) = verified("discord", signing.discord_command("good why"))
    assert (typed.text, typed.person, typed.channel, typed.event_id) == ("good why", "70", "60", "900")
    sub = signing.discord_command("")
    sub["data"]["options"] = [{"type": 1, "name": "bad", "options": [{"type": 3, "name": "why", "value": "long"}]}]
    assert verified("discord", sub)[0].text == "bad long"
    (pressed,) = verified("discord", signing.discord_button("rl:4:rl-abc", text="hi"))
    assert (pressed.text, pressed.message_id, pressed.completion_id, pressed.message_text) == (
        "4",
        "80",
        "rl-abc",
        "hi",
    )
    assert verified("discord", signing.discord_button("vote:good")) == ()
    assert verified("discord", signing.discord_command("go") | {"type": 4}) == ()


def test_whatsapp_batches() -> None:
    first, gone = verified("whatsapp", signing.whatsapp_reaction("👍", None))
    assert first.received_at == gone.received_at == signing.NOW  # else each waits a second for its link
    assert (first.kind, first.text, first.person, first.channel) == ("reaction", "👍", "491701", "491701")
    assert (gone.kind, gone.text, gone.slot) == ("retraction", "", "")
    text = signing.whatsapp_reaction("👍")
    text["entry"][0]["changes"][0]["value"]["messages"][0]["type"] = "text"
    assert verified("whatsapp", text) == ()


def test_whatsapp_people_with_a_user_name_show_no_number() -> None:
    batch = signing.whatsapp_reaction("👍")
    value = batch["entry"][0]["changes"][0]["value"]
    del value["messages"][0]["from"]
    value["contacts"] = [{"profile": {"username": "ann"}, "user_id": "US.134"}]
    (event,) = verified("whatsapp", batch)
    assert (event.person, event.channel) == ("US.134", "US.134")
    value["contacts"] *= 2  # whose reaction is it?
    assert verified("whatsapp", batch) == ()


def test_whatsapp_answers_the_subscription_only_to_who_knows_the_token() -> None:
    ours = WhatsApp("s", "token")
    query = {"hub.mode": "subscribe", "hub.verify_token": "token", "hub.challenge": "123"}
    assert ours.subscribe(query) == "123"
    for wrong in ({"hub.verify_token": "x"}, {"hub.mode": "x"}, {"hub.verify_token": ""}):
        with pytest.raises(Forged):
            ours.subscribe(query | wrong)
    with pytest.raises(Forged):
        WhatsApp("s", None).subscribe(query | {"hub.verify_token": ""})


def test_our_own_json() -> None:
    body = {"what": "reaction", "person": 5, "channel": "c", "message_id": 9, "text": "+1", "platform": "mattermost"}
    assert verified("signed", {**body, "at": NOW * 2})[0].happened_at == NOW
    (event,) = verified("signed", {**body, "at": 5.5}, id="m-7")
    assert event == PlatformEvent("mattermost", "m-7", "5", "c", "9", "reaction", "+1", 5.5, slot="+1", shared=True)
    (gone,) = verified("signed", {"what": "retraction", "person": "p", "message_id": "9"})
    assert (gone.platform, gone.slot, gone.happened_at) == ("signed", "", NOW)
    (typed,) = verified("signed", {"what": "command", "person": "p", "text": "/rl good x", "session": "s"})
    assert (typed.text, typed.session) == ("good x", "s")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "what"), ({"what": "x"}, "what"), ({"what": "reaction"}, "person"),
        ({"what": "reaction", "person": "p", "text": "👍"}, "message_id"),
        ({"what": "reaction", "person": "p", "message_id": "m"}, "text"),
        ({"what": "reaction", "person": "p", "message_id": "m", "text": "x", "at": "soon"}, "at"),
        ({"what": "reaction", "person": "p", "message_id": "m", "text": "x", "platform": "slack"}, "platform"),
        ({"what": "reaction", "person": ["p"], "message_id": "m", "text": "x"}, "person"),
    ],
)  # fmt: skip
def test_our_own_json_says_what_is_wrong(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        verified("signed", body)
    assert caught.value.param == param


@pytest.mark.parametrize("secret", ["whsec_", "whsec_%%%", "c2hvcnQ="])
def test_a_secret_that_is_none(secret: str) -> None:
    with pytest.raises(SettingsError, match="base64"):
        Signed("signed", secret)
