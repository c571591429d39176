"""The client in scripts/, as a person runs it."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook

from scripts.harness import signing
from scripts.send_signed import signed_headers
from tests.harness.chats import Chats

SCRIPT = Path(__file__).parents[2] / "scripts/send_signed.py"


async def run(url: str, *arguments: str, secret: str = signing.SIGNED_SECRET) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SCRIPT), "--url", url, "--platform", "mattermost", "--person", "p1", *arguments,
        env={**os.environ, "RLPROXY_SIGNED_SECRET": secret},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    return process.returncode, said.decode()


async def test_from_the_command_line_to_a_rating(chats: Chats) -> None:
    id = await chats.completion("two", session="room")
    url, where = chats.proxy.url, ("--channel", "room")
    assert await chats.link("mattermost", "room", "m1", id) == 201
    assert (await run(url, *where, "--message", "m1", "reaction", "👍"))[0] == 0
    assert await chats.values(id) == {"ann": 1.0}
    assert (await run(url, *where, "--message", "m1", "retraction"))[0] == 0
    assert await chats.values(id) == {}
    assert (await run(url, *where, "--message", "m9", "--said", "You said: two", "reaction", "x"))[0] == 0
    assert await chats.values(id) == {"ann": -1.0}
    code, said = await run(url, *where, "--id", "m-1", "command", "good at last")
    assert code == 0 and "rated good" in said
    assert (await chats.store.ratings.live(id, "ann")).source == "mattermost"


async def test_what_is_refused_is_said(chats: Chats) -> None:
    code, said = await run(chats.proxy.url, "--message", "m1", "reaction", "👍")
    assert code == 1 and "nobody has linked that message" in said
    code, said = await run(chats.proxy.url, "--message", "m1", "reaction", "👍", secret=signing.OPENCLAW_SECRET)
    assert code == 1 and "not signed" in said
    code, said = await run("http://127.0.0.1:9", "--message", "m1", "--id", "m7", "reaction", "👍")
    assert code == 2 and "--id m7" in said


@given(st.text(alphabet=st.characters(codec="ascii", exclude_characters="\x00"), min_size=1), st.text())
def test_the_library_takes_its_signature(id: str, text: str) -> None:
    body = f'{{"text": "{len(text)}"}}'
    headers = signed_headers(signing.SIGNED_SECRET, id, body.encode(), time.time())
    assert Webhook(signing.SIGNED_SECRET).verify(body, headers) == {"text": str(len(text))}
