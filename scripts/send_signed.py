#!/usr/bin/env python3
"""Tell rlproxy of a reaction or a `/rl` line from any chat, signed. Needs nothing but Python; copy it into your bot.

    export RLPROXY_SIGNED_SECRET=whsec_...          # the same as webhooks.signed.secret of rlproxy
    send_signed.py --platform mattermost --person u1 --channel town --message m7 reaction 👍
    send_signed.py --platform mattermost --person u1 --channel town --message m7 retraction 👍
    send_signed.py --platform mattermost --person p1 --channel c1 command 'bad too long'

Prints rlproxy's answer. Exit code 0: taken. 1: refused, and it says why. 2: rlproxy could not be reached; send it again
with the same --id, and it is stored once.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import json
import os
import secrets
import sys
import time
import urllib.error
import urllib.request


def signed_headers(secret: str, id: str, body: bytes, now: float) -> dict[str, str]:
    """The three headers of the Standard Webhooks specification."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    seconds = str(int(now))
    signature = hmac.new(key, f"{id}.{seconds}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": id,
        "webhook-timestamp": seconds,
        "webhook-signature": "v1," + base64.b64encode(signature).decode(),
        "content-type": "application/json",
    }


def send(url: str, secret: str, event: dict[str, object], id: str) -> tuple[int, str]:
    """Status and body of the answer. Raises OSError where rlproxy does not answer."""
    body = json.dumps(event).encode()
    request = urllib.request.Request(
        f"{url}/rl/webhooks/signed", data=body, headers=signed_headers(secret, id, body, time.time()), method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def main() -> int:
    parser = argparse.ArgumentParser(description="Tell rlproxy of a reaction or a /rl line from any chat, signed.")
    parser.add_argument("what", choices=["reaction", "retraction", "command"])
    parser.add_argument("text", nargs="?", default="", help="the emoji, or what follows /rl; not needed to retract all")
    parser.add_argument("--url", default="http://127.0.0.1:8484", help="where rlproxy is (%(default)s)")
    parser.add_argument("--platform", default="signed", help="its name, kept as the rating's source (%(default)s)")
    parser.add_argument("--person", required=True, help="who did it, by their id on the platform")
    parser.add_argument("--channel", default="", help="where; also the name of the session, if the agent uses it so")
    parser.add_argument("--message", help="the id of the message that it is about")
    parser.add_argument("--completion", help="the completion's id, where the bot knows it: then nothing is searched")
    parser.add_argument("--said", help="the text of that message, to know the completion by")
    parser.add_argument(
        "--id", default="msg_" + secrets.token_hex(12), help="of this event; the same again counts once"
    )
    given = parser.parse_args()
    secret = os.environ.get("RLPROXY_SIGNED_SECRET")
    if not secret:
        parser.error("set RLPROXY_SIGNED_SECRET")
    event = {
        "platform": given.platform, "person": given.person, "channel": given.channel, "what": given.what,
        "text": given.text, "message_id": given.message, "completion_id": given.completion, "said": given.said,
    }  # fmt: skip
    try:
        status, answer = send(given.url, secret, {key: value for key, value in event.items() if value}, given.id)
    except OSError as error:
        print(f"rlproxy does not answer at {given.url} ({error}); send it again with --id {given.id}.", file=sys.stderr)
        return 2
    print(answer)
    return 2 if status >= 500 else 1 if status >= 400 else 0


if __name__ == "__main__":
    sys.exit(main())
