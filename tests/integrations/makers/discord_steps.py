"""Discord: interactions and events of the Gateway as discord.py types and reads them, signed as PyNaCl does and
checked by discord-interactions."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import aiohttp
import discord
import discord_interactions
from discord.enums import InteractionResponseType
from discord.gateway import DiscordWebSocket
from nacl.signing import SigningKey

from tests.integrations.makers.steps import Script, read_input

ANN, BOB, STRANGER = "70", "71", "72"
CHANNEL, LINKED, NEWEST, UNKNOWN = "60", "80", "81", "99"
USER = {"discriminator": "0", "avatar": None, "global_name": None}
BOT = {"id": "1", "username": "bot", **USER}


class Maker:
    def __init__(self, now: float, seed: str) -> None:
        self.now, self.key, self.steps = int(now), SigningKey(bytes.fromhex(seed)), Script()
        self.public = self.key.verify_key.encode().hex()
        self.client = discord.Client(intents=discord.Intents(guild_reactions=True, dm_reactions=True))
        state = self.client._connection
        state.user = discord.ClientUser(state=state, data=BOT)  # as after a login

    def sign(self, body: bytes, at: float = 0, key: SigningKey | None = None) -> dict[str, str]:
        time = str(self.now + int(at))
        signature = (key or self.key).sign(time.encode() + body).signature.hex()
        return {"X-Signature-Ed25519": signature, "X-Signature-Timestamp": time, "Content-Type": "application/json"}

    def verdict(self, headers: dict[str, str], body: bytes) -> bool:
        signature, time = headers.get("X-Signature-Ed25519", ""), headers.get("X-Signature-Timestamp", "")
        with contextlib.redirect_stdout(io.StringIO()):  # it prints why not
            return discord_interactions.verify_key(body, signature, time, self.public)

    def interaction(self, type: int, id: str, data: dict[str, Any] | None = None, *, guild: bool = False) -> bytes:
        payload: dict[str, Any] = {
            "id": id, "application_id": "1", "type": type, "token": "t", "version": 1, "channel_id": CHANNEL,
            "channel": {"id": CHANNEL, "type": 1, "last_message_id": None, "recipients": []}, "locale": "en-US",
            "entitlements": [], "authorizing_integration_owners": {}, "attachment_size_limit": 1,
            "app_permissions": "0",
        }  # fmt: skip
        user = {"id": ANN, "username": "ann", **USER}
        if guild:
            member = {"user": user, "roles": [], "joined_at": "2024-01-01T00:00:00+00:00", "deaf": False}
            member |= {"mute": False, "flags": 0, "permissions": "0"}
            payload |= {"guild_id": "5", "member": member}
        else:
            payload["user"] = user
        if data is not None:
            payload["data"] = data
        if type == 3:
            payload["message"] = message(LINKED)
        heard = discord.Interaction(data=payload, state=self.client._connection)
        if heard.type.value != type or str(heard.user.id) != ANN or str(heard.channel_id) != CHANNEL:
            raise AssertionError(f"discord.py reads another interaction: {heard!r}")
        return json.dumps(payload).encode()

    def send(self, name: str, body: bytes, *values: Any, kind: str, status: int = 200) -> None:
        headers = self.sign(body)
        assert self.verdict(headers, body)
        self.steps.add(name, (headers, body), *values, kind=kind, status=status)

    def gateway(self, name: str, event: str, data: dict[str, Any], *values: Any) -> None:
        self.steps.add(name, ({}, json.dumps(data).encode()), *values, gateway=event)


def message(id: str) -> dict[str, Any]:
    return {
        "id": id, "channel_id": CHANNEL, "content": "x", "author": BOT, "timestamp": "2024-01-01T00:00:00+00:00",
        "edited_timestamp": None, "tts": False, "mention_everyone": False, "mentions": [], "mention_roles": [],
        "attachments": [], "embeds": [], "pinned": False, "type": 0, "components": [],
    }  # fmt: skip


# The module of types imports itself in a circle, so that it can only be read.
_TYPES = ast.parse((Path(discord.__file__).parent / "types" / "gateway.py").read_text())


def typed(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """The event, if it has the members that discord.py's type says."""
    (made,) = (node for node in _TYPES.body if isinstance(node, ast.ClassDef) and node.name == kind)
    members = {
        ast.unparse(one.target): ast.unparse(one.annotation) for one in made.body if isinstance(one, ast.AnnAssign)
    }
    required = {name for name, annotation in members.items() if not annotation.startswith("NotRequired")}
    assert required <= set(data) <= set(members), (kind, data)
    return data


def reaction(
    emoji: discord.PartialEmoji | str, *, removed: bool = False, person: str = ANN, burst: bool = False,
    on: str = LINKED, guild: bool = True,
) -> dict[str, Any]:  # fmt: skip
    partial = discord.PartialEmoji(name=emoji) if isinstance(emoji, str) else emoji
    data = {"user_id": person, "channel_id": CHANNEL, "message_id": on, "emoji": partial.to_dict(), "burst": burst}
    data |= {"type": int(burst), **({"guild_id": "5"} if guild else {})}
    kind = "MessageReactionRemoveEvent" if removed else "MessageReactionAddEvent"
    read = discord.PartialEmoji.from_dict(data["emoji"])
    heard = discord.RawReactionActionEvent(typed(kind, data), read, "REACTION_REMOVE" if removed else "REACTION_ADD")
    assert (str(heard.user_id), str(heard.message_id), heard.burst, heard.emoji) == (person, on, burst, partial)
    return data


def interactions(maker: Maker, completion: str) -> None:
    options = [{"name": "what", "type": discord.AppCommandOptionType.string.value, "value": "good why"}]
    data = {"id": "5", "name": "rl", "type": discord.AppCommandType.chat_input.value, "options": options}
    undo = data | {"options": [options[0] | {"value": "undo"}]}
    ping = json.dumps({"id": "1", "application_id": "1", "type": 1, "token": "t", "version": 1}).encode()
    maker.send("the address is verified", ping, kind="pong")
    command = maker.interaction(2, "900", data)
    maker.send("a command", command, "same", 1.0, kind="message")
    maker.send("the same again", command, kind="message")
    maker.send("a command taken back", maker.interaction(2, "901", undo, guild=True), "same", None, kind="message")
    maker.send("another command", maker.interaction(2, "902", data | {"name": "ask"}), kind="message")
    for name, id, value in (("good", "903", 1.0), ("bad", "904", -1.0)):
        button = discord.ui.Button(emoji="👍", custom_id=f"rl:{name}:{completion}").to_component_dict()
        pressed = {"custom_id": button["custom_id"], "component_type": button["type"]}
        maker.send(f"a button, {name}", maker.interaction(3, id, pressed, guild=True), value, kind="message")
    pressed = {"custom_id": "rl:4", "component_type": 2}
    maker.send("a button without an id", maker.interaction(3, "905", pressed), 0.5, kind="message")
    pressed = {"custom_id": "rl:undo", "component_type": 2}
    maker.send("a button that takes it back", maker.interaction(3, "906", pressed), None, kind="message")
    pressed = {"custom_id": "vote:bad", "component_type": 2}
    maker.send("a button of the agent's", maker.interaction(3, "907", pressed), kind="message")
    maker.send("what is being typed", maker.interaction(4, "908", data), kind="choices")
    form = {"custom_id": "rl:bad", "components": []}
    maker.send("a form", maker.interaction(5, "909", form), kind="message")
    body = maker.interaction(2, "910", data | {"options": [options[0] | {"value": "bad"}]})
    headers = maker.sign(body)
    later = {**headers, "X-Signature-Timestamp": str(maker.now + 1)}
    refused = {
        "a body that was changed": (headers, body.replace(b"910", b"911")), "another time": (later, body),
        "another key": (maker.sign(body, key=SigningKey(b"\x09" * 32)), body), "without a signature": ({}, body),
    }  # fmt: skip
    for name, request in refused.items():
        assert not maker.verdict(*request)
        maker.steps.add(name, request, status=401)
    # Discord's code has no rule of time: five minutes is rlproxy's.
    for name, skew in (("six minutes old", -360), ("six minutes ahead", 360)):
        request = (maker.sign(body, skew), body)
        assert maker.verdict(*request)
        maker.steps.add(name, request, status=401)


def reactions(maker: Maker) -> None:
    add, remove = "MESSAGE_REACTION_ADD", "MESSAGE_REACTION_REMOVE"
    custom = discord.PartialEmoji(name="shipit", id=5)
    nameless = discord.PartialEmoji(name="", id=5)
    maker.gateway("a reaction", add, reaction("👍"), 1.0)
    maker.gateway("another one", add, reaction("👎"), -1.0)
    maker.gateway("the second removed", remove, reaction("👎", removed=True), 1.0)
    maker.gateway("a super reaction beside it", add, reaction("👍", burst=True))
    maker.gateway("the super reaction removed", remove, reaction("👍", removed=True, burst=True))
    maker.gateway("the first removed", remove, reaction("👍", removed=True), None)
    maker.gateway("in a direct chat", add, reaction("4\ufe0f\u20e3", guild=False), 0.5)
    maker.gateway("a stranger", add, reaction("👎", person=STRANGER))
    maker.gateway("a custom emoji of no meaning", add, reaction(custom))
    maker.gateway("a custom emoji that was deleted", add, reaction(nameless))
    maker.gateway("a forwarded message", add, reaction("👎", on=UNKNOWN))
    maker.gateway("a reply in a thread", add, reaction("👎", on=NEWEST), "same", -1.0)
    maker.gateway("the answer is edited", "MESSAGE_UPDATE", message(LINKED))
    maker.gateway("a message is deleted", "MESSAGE_DELETE", {"id": UNKNOWN, "channel_id": CHANNEL})
    maker.gateway("an event of another kind", "TYPING_START", {"user_id": ANN, "channel_id": CHANNEL})
    place = {"channel_id": CHANNEL, "message_id": NEWEST, "guild_id": "5"}
    party = typed("MessageReactionRemoveEmojiEvent", place | {"emoji": {"id": None, "name": "🎉"}})
    maker.gateway("a moderator removes another emoji", "MESSAGE_REACTION_REMOVE_EMOJI", party)
    down = typed("MessageReactionRemoveEmojiEvent", place | {"emoji": {"id": None, "name": "👎"}})
    maker.gateway("a moderator removes that emoji", "MESSAGE_REACTION_REMOVE_EMOJI", down, "same", None)
    all_of_them = typed("MessageReactionRemoveAllEvent", place | {"message_id": LINKED})
    maker.gateway("a moderator removes all", "MESSAGE_REACTION_REMOVE_ALL", all_of_them, None)


def read(kind: str, answer: str) -> None:
    said = json.loads(answer)
    if kind == "identify":
        intents = discord.Intents._from_value(said["intents"])
        assert {name for name, is_on in intents if is_on} == {"guild_reactions", "dm_reactions"} and said["token"]
        assert {"os", "browser", "device"} == set(said["properties"])
        return
    if kind == "opcodes":
        assert all(getattr(DiscordWebSocket, name) == code for name, code in said.items())
        return
    if kind == "components":
        (row,) = (discord.components._component_factory(component) for component in said["components"])
        assert [type(button) for button in row.children] == [discord.components.Button] * 2
        return
    response = InteractionResponseType(said["type"])
    assert response.name == {"pong": "pong", "message": "channel_message", "choices": "autocomplete_result"}[kind]
    if kind == "message":
        assert 0 < len(said["data"]["content"]) <= 2000
        assert discord.MessageFlags._from_value(said["data"]["flags"]).ephemeral


async def put_buttons(url: str, token: str) -> None:
    """By the package's own client."""
    discord.http.Route.BASE = f"{url}/discord"
    client = discord.http.HTTPClient(asyncio.get_running_loop())
    client.token, client._global_over = token, asyncio.Event()
    client._global_over.set()
    async with aiohttp.ClientSession() as session:
        client._HTTPClient__session = session  # as after a login
        for emoji in ("👍", "👎"):
            await client.add_reaction(CHANNEL, LINKED, emoji)


async def main() -> None:
    given = read_input()
    if given["act"] == "buttons":
        await put_buttons(given["url"], given["token"])
        return
    if given["act"] == "steps":
        maker = Maker(given["now"], given["discord_seed"])
        interactions(maker, given["completion"])
        reactions(maker)
        maker.steps.write()
        return
    for answer in given["answers"]:
        read(answer["kind"], answer["text"])


if __name__ == "__main__":
    asyncio.run(main())
