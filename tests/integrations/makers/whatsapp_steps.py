"""WhatsApp: Meta has no package that makes or signs events. pywa, a library of others, reads each and checks its
signature."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

from pywa import WhatsApp
from pywa.types import Message, MessageType
from pywa.utils import webhook_updates_validator

from tests.integrations.makers.steps import Script, read_input

PERSON, NAMED = "491701", "DE.134"
LINKED, NEWEST = "wamid.M", "wamid.N"


def batch(*messages: dict[str, Any], contact: dict[str, Any]) -> dict[str, Any]:
    metadata = {"display_phone_number": "49", "phone_number_id": "1"}
    value = {"messaging_product": "whatsapp", "metadata": metadata, "contacts": [contact], "messages": list(messages)}
    changes = [{"field": "messages", "value": value}]
    return {"object": "whatsapp_business_account", "entry": [{"id": "1", "changes": changes}]}


def script(now: float, secret: str) -> Script:
    client, steps = WhatsApp(phone_id="1", token="x"), Script()

    def sign(body: bytes, key: str = secret) -> tuple[dict[str, str], bytes]:
        signature = "sha256=" + hmac.new(key.encode(), body, hashlib.sha256).hexdigest()
        assert webhook_updates_validator(secret, body, signature) == (key == secret)
        return {"X-Hub-Signature-256": signature, "Content-Type": "application/json"}, body

    def reaction(id: str, emoji: str | None, at: float, message: str = LINKED, *, named: bool = False) -> bytes:
        """With `named`, of somebody who has a user name and shows no number."""
        raw: dict[str, Any] = {"id": id, "timestamp": str(int(now + at)), "type": "reaction"}
        raw["reaction"] = {"message_id": message, **({} if emoji is None else {"emoji": emoji})}
        contact: dict[str, Any] = {"profile": {"name": "Ann"}, "user_id": NAMED}
        if not named:
            raw["from"] = contact["wa_id"] = PERSON
        update = batch(raw, contact=contact)
        heard = Message.from_update(client, update)
        who = heard.from_user.bsuid if named else heard.from_user.wa_id
        assert (heard.reaction.message_id, heard.reaction.emoji or None) == (message, emoji or None)
        assert who == (NAMED if named else PERSON) and int(heard.timestamp.timestamp()) == int(now + at)
        return json.dumps(update).encode()

    def other(type: str, **members: Any) -> bytes:
        raw = {"from": PERSON, "id": f"w-{type}", "timestamp": str(int(now)), "type": type, **members}
        update = batch(raw, contact={"profile": {"name": "Ann"}, "wa_id": PERSON, "user_id": NAMED})
        assert Message.from_update(client, update).type == MessageType(type)
        return json.dumps(update).encode()

    first = sign(reaction("w1", "👍", 0))
    steps.add("a reaction", first, 1.0)
    steps.add("the same again", first)
    steps.add("changed", sign(reaction("w2", "👎", 1)), -1.0)
    steps.add("taken away, with an empty emoji", sign(reaction("w3", "", 2)), None)
    steps.add("once more", sign(reaction("w4", "🎉", 3)), 1.0)
    steps.add("taken away, without an emoji", sign(reaction("w5", None, 4)), None)
    steps.add("the first again, days later", first)
    steps.add("an older one comes late", sign(reaction("w6", "👎", 2)))
    steps.add("a forwarded message", sign(reaction("w7", "👎", 5, "wamid.X")))
    steps.add("an emoji of no meaning", sign(reaction("w8", "🤔", 6)))
    steps.add("a person without a number", sign(reaction("w9", "👎", 7, NEWEST, named=True)), "same", -1.0)
    steps.add("they take it away", sign(reaction("w10", None, 8, NEWEST, named=True)), "same", None)
    steps.add("a text", sign(other("text", text={"body": "/rl bad"})))
    forwarded = other("text", text={"body": "/rl bad"}, context={"forwarded": True})
    steps.add("a text that was forwarded", sign(forwarded))
    answered = {"type": "button_reply", "button_reply": {"id": "rl:bad", "title": "bad"}}
    steps.add("a button of the agent's", sign(other("interactive", interactive=answered)))
    body = reaction("w20", "👍", 9)
    steps.add("another secret", sign(body, "other"), status=401)
    headers = sign(body)[0]
    changed = body.replace(b"w20", b"w21")
    assert not webhook_updates_validator(secret, changed, headers["X-Hub-Signature-256"])
    steps.add("a body that was changed", (headers, changed), status=401)
    steps.add("without a signature", ({}, body), status=401)
    return steps


if __name__ == "__main__":
    given = read_input()
    if given["act"] == "steps":
        script(given["now"], given["whatsapp_secret"]).write()
