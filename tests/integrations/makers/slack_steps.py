"""Slack: slack_sdk signs each request, and slack_bolt says whether it takes it and what it heard of it."""

from __future__ import annotations

import inspect
import json
import logging
from typing import Any
from urllib.parse import urlencode

from slack_bolt import App, BoltRequest
from slack_bolt.authorization import AuthorizeResult
from slack_sdk import WebClient
from slack_sdk.signature import SignatureVerifier
from slack_sdk.webhook import WebhookClient

from tests.integrations.makers.steps import Script, read_input

LINKED, NEWEST, THREAD, UNKNOWN = "1700000000.000100", "1700000000.000300", "1700000000.000200", "1700000000.000900"
FORM = "application/x-www-form-urlencoded"


class Bolt:
    """The makers' own app, with a listener for all that rlproxy takes."""

    def __init__(self, secret: str) -> None:
        self.heard: list[str] = []
        self.verifier = SignatureVerifier(secret)
        granted = AuthorizeResult(enterprise_id=None, team_id="T1", bot_user_id="UBOT", bot_id="B1", bot_token="xoxb-1")
        self.app = App(signing_secret=secret, authorize=lambda: granted, process_before_response=True)
        for event in ("reaction_added", "reaction_removed"):
            self.app.event(event)(self._reaction)
        self.app.command("/rl")(self._command)

    def _reaction(self, event: dict[str, Any]) -> None:
        self.heard.append(f"{event['type']} {event['reaction']} {event['item'].get('ts')}")

    def _command(self, ack: Any, command: dict[str, Any]) -> None:
        ack()
        self.heard.append(f"{command['command']} {command['text']}")

    def sign(self, body: bytes, at: float, kind: str = "application/json") -> dict[str, str]:
        time = str(int(at))
        signature = self.verifier.generate_signature(timestamp=time, body=body)
        assert signature is not None
        return {"X-Slack-Request-Timestamp": time, "X-Slack-Signature": signature, "Content-Type": kind}

    def check(self, request: tuple[dict[str, str], bytes], status: int, heard: str = "") -> None:
        """The makers' app answers so (404: it has no listener), and has heard that."""
        self.heard.clear()
        headers, body = request
        response = self.app.dispatch(BoltRequest(body=body.decode(), headers=headers))
        if response.status != status or self.heard != ([heard] if heard else []):
            raise AssertionError(f"slack_bolt: {response.status} {self.heard}, not {status} {heard}: {body!r}")


def outer(event: dict[str, Any], id: str, at: float) -> bytes:
    return json.dumps(
        {
            "token": "z26uFbvR1xHJEdHE1OQiO6t8", "team_id": "T1", "api_app_id": "A1", "type": "event_callback",
            "event_id": id, "event_time": int(at), "event_context": "4-x", "is_ext_shared_channel": False,
            "authorizations": [{"team_id": "T1", "user_id": "UBOT", "is_bot": True}], "event": event,
        }
    ).encode()  # fmt: skip


def reaction(
    emoji: str, id: str, at: float, *, removed: bool = False, ts: str = LINKED, person: str = "U1"
) -> bytes:  # fmt: skip
    return outer(
        {
            "type": "reaction_removed" if removed else "reaction_added", "user": person, "reaction": emoji,
            "item": {"type": "message", "channel": "C1", "ts": ts}, "item_user": "UBOT", "event_ts": f"{at:.6f}",
        },
        id, at,
    )  # fmt: skip


def message(id: str, at: float, **event: Any) -> bytes:
    return outer({"type": "message", "channel": "C1", "event_ts": f"{at:.6f}", "ts": f"{at:.6f}", **event}, id, at)


def command(text: str, id: str, name: str = "/rl") -> bytes:
    return urlencode({
        "token": "x", "team_id": "T1", "channel_id": "C1", "user_id": "U1", "command": name, "text": text,
        "response_url": "https://hooks.invalid/commands/1", "trigger_id": id, "api_app_id": "A1",
    }).encode()  # fmt: skip


def script(now: float, secret: str) -> Script:
    bolt, steps = Bolt(secret), Script()

    def send(name: str, body: bytes, status: int, heard: str = "", *values: Any, **more: Any) -> None:
        request = ({**bolt.sign(body, now, more.pop("form", "application/json")), **more.pop("headers", {})}, body)
        bolt.check(request, status, heard)
        steps.add(name, request, *values, **more)

    added = reaction("+1", "E1", now)
    send("a reaction", added, 200, f"reaction_added +1 {LINKED}", 1.0)
    send("the same again", added, 200, f"reaction_added +1 {LINKED}")
    retry = {"X-Slack-Retry-Num": "1", "X-Slack-Retry-Reason": "http_timeout"}
    send("Slack's retry", added, 200, f"reaction_added +1 {LINKED}", headers=retry)
    dark = "thumbsdown::skin-tone-5"
    send("another one, of a shade", reaction(dark, "E2", now + 1), 200, f"reaction_added {dark} {LINKED}", -1.0)
    gone = reaction(dark, "E3", now + 2, removed=True)
    send("that one removed", gone, 200, f"reaction_removed {dark} {LINKED}", 1.0)
    send("the first removed", reaction("+1", "E4", now + 3, removed=True), 200, f"reaction_removed +1 {LINKED}", None)
    send("an older event comes late", reaction("+1", "E5", now + 2), 200, f"reaction_added +1 {LINKED}")
    send("stars", reaction("four", "E6", now + 4), 200, f"reaction_added four {LINKED}", 0.5)
    send("a stranger", reaction("-1", "E7", now + 5, person="U2"), 200, f"reaction_added -1 {LINKED}")
    send("an emoji of no meaning", reaction("eyes", "E8", now + 5), 200, f"reaction_added eyes {LINKED}")
    send("a reply in a thread", reaction("-1", "E9", now, ts=NEWEST), 200, f"reaction_added -1 {NEWEST}", "same", -1.0)
    send("a forwarded message", reaction("+1", "E10", now, ts=UNKNOWN), 200, f"reaction_added +1 {UNKNOWN}")
    edited = {"user": "UBOT", "type": "message", "text": "new", "ts": LINKED, "edited": {"user": "UBOT", "ts": LINKED}}
    send(
        "the answer is edited", message("E11", now, subtype="message_changed", message=edited), 200
    )  # by the bot itself
    send("a reaction to the edited answer", reaction("tada", "E12", now + 6), 200, f"reaction_added tada {LINKED}", 1.0)
    send("a message is deleted", message("E13", now, subtype="message_deleted", deleted_ts=UNKNOWN), 404)
    send("a message with a command", message("E14", now, user="U1", text="/rl bad"), 404)
    file = {"type": "reaction_added", "user": "U1", "reaction": "-1", "item": {"type": "file", "file": "F1"}}
    send("a file", outer({**file, "event_ts": f"{now}"}, "E15", now), 200, "reaction_added -1 None")
    send("an event of another kind", outer({"type": "emoji_changed", "subtype": "add"}, "E16", now), 404)
    send("too many events", json.dumps({"type": "app_rate_limited", "team_id": "T1"}).encode(), 404)
    challenge = json.dumps({"token": "x", "type": "url_verification", "challenge": "3eZbrw1a"}).encode()
    send("the address is verified", challenge, 200, kind="challenge")
    send("a command", command("good why &lt;", "T1"), 200, "/rl good why &lt;", "same", 1.0, form=FORM, kind="command")
    send("a command of another app", command("good", "T2", "/other"), 404, form=FORM)
    send("a command taken back", command("undo", "T3"), 200, "/rl undo", "same", None, form=FORM, kind="command")
    button = json.dumps(
        {"type": "block_actions", "user": {"id": "U1"}, "team": {"id": "T1"}, "actions": [{"action_id": "a"}]}
    )
    send("a button of the agent's", urlencode({"payload": button}).encode(), 404, form=FORM)

    check = ({"Content-Type": FORM}, urlencode({"ssl_check": "1", "token": "x"}).encode())
    bolt.check(check, 200)
    steps.add("the certificate is looked at", check)
    bad = reaction("-1", "E20", now + 9)
    headers = bolt.sign(bad, now)
    refused = {
        "a body that was changed": (headers, bad.replace(b"U1", b"U3")),
        "another secret": (Bolt("other").sign(bad, now), bad),
        "six minutes old": (bolt.sign(bad, now - 360), bad),
        "six minutes ahead": (bolt.sign(bad, now + 360), bad),
        "without a signature": ({"Content-Type": "application/json"}, bad),
        "an old signature with a new time": ({**headers, "X-Slack-Request-Timestamp": str(int(now) + 1)}, bad),
    }
    for name, request in refused.items():
        bolt.check(request, 401)
        steps.add(name, request, status=401)
    for name, skew, id in (("four minutes old", -240, "E21"), ("four minutes ahead", 240, "E22")):
        body = reaction("-1", id, now + 10)
        request = (bolt.sign(body, now + skew), body)
        bolt.check(request, 200, f"reaction_added -1 {LINKED}")
        steps.add(name, request, -1.0)
    return steps


def read(kind: str, answer: str) -> None:
    """The makers' code takes what rlproxy answered. Raises what is wrong with it."""
    if kind == "challenge":
        assert answer == "3eZbrw1a"
    elif kind == "command":
        said = json.loads(answer)
        inspect.signature(WebhookClient("https://hooks.invalid").send).bind(**said)
        assert said["response_type"] == "ephemeral" and said["text"]


def texts(url: str, token: str) -> dict[str, str]:
    """By slack_sdk's own client, with the arguments that rlproxy asks with."""
    client = WebClient(token=token, base_url=url + "/slack/", proxy=None)
    window = {"channel": "C1", "inclusive": True, "limit": 1}
    history = client.conversations_history(latest=LINKED, **window)
    replies = client.conversations_replies(ts=THREAD, latest=THREAD, **window)
    return {LINKED: history["messages"][0]["text"], THREAD: replies["messages"][0]["text"]}


def put_buttons(url: str, token: str) -> None:
    """By slack_sdk's own client."""
    client = WebClient(token=token, base_url=url + "/slack/", proxy=None)
    for name in ("+1", "-1"):
        client.reactions_add(channel="C1", timestamp=LINKED, name=name)


if __name__ == "__main__":
    logging.disable()  # slack_bolt suggests a listener for each event that it has none for
    given = read_input()
    if given["act"] == "steps":
        script(given["now"], given["slack_secret"]).write()
    elif given["act"] == "buttons":
        put_buttons(given["url"], given["token"])
    elif given["act"] == "texts":
        print(json.dumps(texts(given["url"], given["token"])))
    else:
        for answer in given["answers"]:
            read(answer["kind"], answer["text"])
