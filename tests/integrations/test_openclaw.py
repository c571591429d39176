"""OpenClaw itself, with our plugin in it: from a Telegram chat to a stored rating and back.

Real: the `openclaw` package, its gateway, its Telegram channel, its agent; `rlproxy serve`. Fake: Telegram's Bot API
and the model. `scripts/test_openclaw` installs the package, builds the plugin and runs these tests.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from standardwebhooks import Webhook

from scripts.fakes.backend import MODEL, FakeBackend
from scripts.fakes.platforms.telegram import GROUP, TOKEN, FakeTelegram
from scripts.harness.openclaw import NODE, PLUGIN, Gateway
from scripts.harness.serving import Serving
from scripts.harness.signing import OPENCLAW_SECRET

pytestmark = [pytest.mark.openclaw, pytest.mark.timeout(560)]

START_S, TURN_S, SOON_S = 240.0, 120.0, 60.0
OWNER, GUEST, ADMIN = 42, 43, 44


class Claw(Gateway):
    """A gateway whose people are on Telegram."""

    def __init__(self, folder: Path, serving: Serving, telegram: FakeTelegram) -> None:
        super().__init__(folder, serving)
        self.telegram = telegram

    async def start_on_telegram(self) -> None:
        telegram = {
            "enabled": True, "botToken": TOKEN, "apiRoot": self.telegram.url, "dmPolicy": "allowlist",
            "allowFrom": [str(OWNER), str(GUEST), str(ADMIN)], "reactionNotifications": "all",
            "groups": {"*": {"requireMention": False}}, "groupPolicy": "open",
            "commands": {"native": False},
        }  # fmt: skip
        await self.start({"telegram": telegram}, [f"telegram:{ADMIN}"])
        try:
            await self.telegram.polled(START_S)
        except TimeoutError:
            raise AssertionError(self.log) from None

    async def answer(self, number: int) -> dict[str, Any]:
        """The bot's message of that number, counted from 1."""
        try:
            return await self.telegram.answer(number, TURN_S)
        except TimeoutError:
            raise AssertionError(self.log) from None

    async def rated(self, rater: str, value: float) -> bool:
        """Whether this comes to be the only rating of the last completion."""
        return await self._soon(
            lambda row: [(rating["rater"], rating["value"]) for rating in row["ratings"]] == [(rater, value)]
        )

    async def counted(self, result: str, number: int) -> None:
        """Returns when so many events of the plugin have come to this result."""
        async with asyncio.timeout(SOON_S):
            while await self.events("openclaw", result) != number:
                await asyncio.sleep(0.1)

    async def _soon(self, holds: Callable[[dict[str, Any]], bool]) -> bool:
        try:
            async with asyncio.timeout(SOON_S):
                while not holds((await self.rows())[-1]):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{await self.rows()}\n{self.log}") from None
        return True


@pytest.fixture
async def claw(backend: FakeBackend, tmp_path: Path) -> AsyncIterator[Claw]:
    if not (PLUGIN / "dist/index.js").exists():
        pytest.skip("OpenClaw is not installed; `make test-openclaw` does that and runs this test")
    telegram = FakeTelegram()
    await telegram.start()
    serving = Serving(
        tmp_path / "home", tmp_path / "no-weights", "--backend", "openai", "--backend-url", backend.url,
        "--model", MODEL, RLPROXY_WEBHOOKS__OPENCLAW__SECRET=OPENCLAW_SECRET,
        RLPROXY_WEBHOOKS__OPENCLAW__ADMINS=json.dumps([f"telegram:{ADMIN}"]),
    )  # fmt: skip
    await serving.start()
    claw = Claw(tmp_path, serving, telegram)
    try:
        await claw.start_on_telegram()
        yield claw
    finally:
        await claw.stop()
        await serving.stop()
        await telegram.stop()


READ = """
import { reactionOf, Reactions } from "PLUGIN/dist/reactions.js";
import { signature } from "PLUGIN/dist/rlproxy.js";
import { Messages, Turns } from "PLUGIN/dist/turns.js";

const turns = new Turns();
turns.asked("s", "telegram:1");
turns.calling("id", "s", "run-1");
const one = await turns.of("id");
turns.calling("id", "s", "run-1"); // its second call
const again = await turns.of("id");
turns.calling("id", "s", "run-2"); // a heartbeat
const none = await turns.of("id");
turns.asked("s", "telegram:1");
turns.asked("s", "telegram:2");
turns.calling("id", "s", "run-3");
const both = await turns.of("id");
turns.answered("s", { id: "a", text: "**Yes**, it is. And more." });
turns.answered("s", { id: "b", text: "No." });
const shown = ["Yes, it is.", "And more.", "…", "Other"].map((text) => turns.shown("s", text)?.id ?? null);
const messages = new Messages();
const sent = ({ platform, chat, message }) => messages.of(platform, chat, message) !== undefined;
const reactions = new Reactions();
const at = (now) => reactions.due(sent, now).map(({ id }) => id);
const queue = ["7", "8"].map((m) => ({ id: m, ts: 1, contextKey: `telegram:reaction:add:1:${m}:42:👍` }));
reactions.see(queue, 0);
const early = at(500);
messages.sent("telegram", { message: "7", channel: "telegram:1", text: "Yes.", session: "s" });
messages.sent("matrix", { message: "$Ab-1", channel: "matrix:!Room:home", text: "Yes.", session: "s" });
const inMatrix = messages.of("matrix", "!room:home", "$ab-1")?.message;
reactions.see(queue, 1000);
const due = [early, at(1000), at(9000), at(10000), at(20000)];
const keys = JSON.parse(process.argv[1]);
console.log(JSON.stringify({
  reactions: keys.map(reactionOf), signature: signature(process.argv[2], "m1", 1700000000, "{}"),
  people: [one, again, none, both].map(({ person }) => person ?? null), shown, due, inMatrix,
}));
"""


async def test_what_it_reads_and_how_it_signs() -> None:
    """The parts of the plugin that need no OpenClaw."""
    if not (PLUGIN / "dist/index.js").exists():
        pytest.skip("OpenClaw is not installed; `make test-openclaw` does that and runs this test")
    keys = [
        "telegram:reaction:add:-100500:7:42:👍", "telegram:reaction:add:1:7:anon:👍",
        "slack:reaction:added:c1:1700000000.000100:u07abc:+1::skin-tone-2:ev1",
        "slack:reaction:t9:removed:c1:1700000000.000100:u07abc:tada:ev2",
        "discord:reaction:removed:900:70:👎", "discord:reaction:added:900:70:❤️:burst",
        "matrix:reaction:add:!room:home:8448:$ab-1:@ann:home:8448:👍", "matrix:reaction:add:!r12:$ab-1:@ann:home:👎",
        "cron:reaction:add:1:2:3:x", "telegram:poll:1", None, "constructor",
    ]  # fmt: skip
    script = READ.replace("PLUGIN", str(PLUGIN))
    command = [str(NODE), "--input-type=module", "-e", script, json.dumps(keys), OPENCLAW_SECRET]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    found = json.loads((await process.communicate())[0])
    told = ("what", "platform", "chat", "message", "person", "emoji")
    assert [None if one is None else tuple(one.get(key) for key in told) for one in found["reactions"]] == [
        ("reaction", "telegram", "-100500", "7", "42", "👍"), None,
        ("reaction", "slack", "C1", "1700000000.000100", "U07ABC", "+1::skin-tone-2"),
        ("retraction", "slack", "C1", "1700000000.000100", "U07ABC", "tada"),
        ("retraction", "discord", None, "900", "70", "👎"), ("reaction", "discord", None, "900", "70", "❤️"),
        ("reaction", "matrix", "!room:home:8448", "$ab-1", "@ann:home:8448", "👍"),
        ("reaction", "matrix", "!r12", "$ab-1", "@ann:home", "👎"),
        None, None, None, None,
    ]  # fmt: skip
    assert found["inMatrix"] == "$Ab-1", "by its own letters, though OpenClaw's queue has small ones"
    at = datetime.fromtimestamp(1700000000, UTC)
    assert found["signature"] == Webhook(OPENCLAW_SECRET).sign("m1", at, "{}")
    assert found["people"] == ["telegram:1", "telegram:1", None, None]
    assert found["shown"] == ["a", "a", None, None]
    # A reaction waits until its message is known, at most ten seconds, and is told once.
    assert found["due"] == [[], ["7"], [], ["8"], []]


REDIRECTED = """
import { Rlproxy } from "PLUGIN/dist/rlproxy.js";
const rlproxy = new Rlproxy(process.argv[1], process.argv[2], "a key");
const link = { channel: "telegram:1", message_id: "1", completion_id: "oc-1" };
console.log(JSON.stringify(await rlproxy.link(link).then(() => "sent on", (error) => String(error))));
"""


async def test_its_key_does_not_follow_a_redirect() -> None:
    if not (PLUGIN / "dist/index.js").exists():
        pytest.skip("OpenClaw is not installed; `make test-openclaw` does that and runs this test")
    paths: list[str] = []

    async def take(request: web.Request) -> web.Response:
        paths.append(request.path)
        raise web.HTTPTemporaryRedirect("/elsewhere")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    script = REDIRECTED.replace("PLUGIN", str(PLUGIN))
    process = await asyncio.create_subprocess_exec(
        str(NODE), "--input-type=module", "-e", script, url, OPENCLAW_SECRET, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    await runner.cleanup()
    assert "fetch failed" in json.loads(output) and set(paths) == {"/rl/links"}


async def test_from_the_chat_to_ratings_and_back(claw: Claw, backend: FakeBackend) -> None:
    """One gateway for all of it: it takes half a minute to start."""
    await _a_reaction_becomes_a_rating(claw, backend)
    await _a_command_is_answered_by_rlproxy(claw, backend)
    await _in_a_group_the_one_who_asked_rates(claw, backend)
    await _admin_verbs_are_for_those_named(claw)


async def _a_reaction_becomes_a_rating(claw: Claw, backend: FakeBackend) -> None:
    backend.says = "Forty-two, as far as I know."
    await claw.telegram.says(OWNER, "What is six times seven?")
    message = await claw.answer(1)
    assert message["text"] == backend.says and backend.requests[-1]["stream"] and backend.requests[-1]["tools"]
    row = (await claw.rows())[-1]
    assert row["id"].startswith("oc-") and (row["session"], row["user"]) == ("agent:main:main", f"telegram:{OWNER}")
    await claw.telegram.reacts(OWNER, message["message_id"], "👍")
    assert await claw.rated(f"telegram:{OWNER}", 1.0)
    await claw.telegram.reacts(OWNER, message["message_id"], "👎", old_emoji="👍")
    assert await claw.rated(f"telegram:{OWNER}", -1.0)


async def _a_command_is_answered_by_rlproxy(claw: Claw, backend: FakeBackend) -> None:
    asked = len(backend.requests)
    await claw.telegram.says(OWNER, "/rl good at last")
    said = (await claw.answer(2))["text"]
    assert "rated good" in said and "“at last”" in said
    assert await claw.rated(f"telegram:{OWNER}", 1.0)
    assert len(backend.requests) == asked


async def _in_a_group_the_one_who_asked_rates(claw: Claw, backend: FakeBackend) -> None:
    backend.says = "Good morning to the town."
    await claw.telegram.says(OWNER, "Say something to everybody", GROUP)
    message = await claw.answer(3)
    assert message["text"] == backend.says and message["chat"] == GROUP
    row = (await claw.rows())[-1]
    assert "telegram:group" in row["session"] and row["user"] == f"telegram:{OWNER}"
    await claw.telegram.reacts(GUEST, message["message_id"], "👎", GROUP)
    await claw.counted("stranger", 1)
    assert (await claw.rows())[-1]["ratings"] == []
    await claw.telegram.reacts(OWNER, message["message_id"], "❤️", GROUP)
    assert await claw.rated(f"telegram:{OWNER}", 1.0)


async def _admin_verbs_are_for_those_named(claw: Claw) -> None:
    await claw.telegram.says(OWNER, "/rl pause")
    assert "people named in this plugin's admins" in (await claw.answer(4))["text"]
    assert not (await claw.serving.status())["training"]["paused"]
    await claw.telegram.says(ADMIN, "/rl pause")
    assert "rlproxy:" in (await claw.answer(5))["text"]
    assert (await claw.serving.status())["training"]["paused"]
