"""A real Matrix homeserver: people react in its rooms, and the store has what the rooms have.

Real: Synapse, `rlproxy serve`, `rlproxy connect matrix`. Fake: the model, and an agent that posts what it answered.
`scripts/test_matrix` installs Synapse and runs these tests.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from scripts.fakes.backend import MODEL, FakeBackend
from scripts.harness.command import rlproxy
from scripts.harness.serving import Serving
from scripts.harness.synapse import NAME, Person, Synapse, free_port, python
from store.store import Store

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(900)]

PEOPLE, ROOMS, ACTIONS, KILLS, HOMESERVER_KILLS = 5, 3, 500, 10, 2
VALUES = {"👍": 1.0, "🎉": 1.0, "👎": -1.0, "4️⃣": 0.5}
SOON_S = 90.0


@dataclass
class Post:
    """An answer in a room, and what each person has on it."""

    room: str
    event: str
    completion: str
    reactions: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # by person: events, emoji
    command: dict[str, tuple[str, float | None]] = field(default_factory=dict)  # by person: event and value
    commands: Counter[str] = field(default_factory=Counter)  # by person: those that are there
    is_redacted: bool = False


class House:
    """A homeserver, rlproxy, and the people."""

    def __init__(self, folder: Path, backend: FakeBackend) -> None:
        self.folder = folder
        self.synapse = Synapse(folder / "synapse")
        self.port = free_port()
        self.home = folder / "home"
        flags = ("--backend", "openai", "--backend-url", backend.url, "--model", MODEL, "--port", str(self.port))
        self.serving = Serving(self.home, folder / "no-weights", *flags)
        self.people: list[Person] = []
        self.agent: Person
        self._change = asyncio.Lock()  # one kill at a time

    async def start(self) -> None:
        await self.serving.start()
        arguments = ("--user", f"@agent:{NAME}", "--homeserver", self.synapse.url, "--yes")
        code, out, err = await rlproxy(self.home, "connect", "matrix", *arguments)
        assert code == 0, err
        await self.synapse.prepare(self.home / "matrix" / "registration.yaml")
        await self.synapse.start()
        await self.serving.stop()
        await self.serving.start()  # with the new settings
        code, out, err = await rlproxy(self.home, "connect", "matrix")
        assert code == 0 and "The homeserver reaches rlproxy" in out, out + err
        self.agent = await self.synapse.register("agent")
        self.people = [await self.synapse.register(f"person{n}") for n in range(PEOPLE)]

    async def stop(self) -> None:
        await self.serving.stop()
        await self.synapse.stop()

    async def set_member(self, line: str) -> None:
        """A line of `[webhooks.matrix]`, and a start with it."""
        file = self.home / "rlproxy.toml"
        file.write_text(file.read_text().replace("[webhooks.matrix]", f"[webhooks.matrix]\n{line}"))
        await self.serving.stop()
        await self.serving.start()

    async def restart_rlproxy(self) -> None:
        async with self._change:
            await self.serving.kill()
            await self.serving.start()

    async def restart_homeserver(self) -> None:
        async with self._change:
            await self.synapse.kill()
            await self.synapse.start()

    async def ask(self, person: Person, question: str) -> str:
        """The completion's id, asked for until rlproxy is there."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": question}]}
        async with asyncio.timeout(SOON_S):
            while True:
                try:
                    async with self.serving.http.post(
                        "/v1/chat/completions", json=body, headers={"x-rl-user": person.id}
                    ) as response:
                        await response.read()
                        return response.headers["x-rl-completion-id"]
                except (aiohttp.ClientError, RuntimeError, KeyError):  # it was killed, and its session closed
                    await asyncio.sleep(0.2)

    async def post(self, room: str, person: Person, question: str, **members: Any) -> Post:
        asked = await person.say(room, question)
        completion = await self.ask(person, question)
        content = {"org.rlproxy.completion": completion, "m.relates_to": {"m.in_reply_to": {"event_id": asked}}}
        return Post(room, await self.agent.say(room, "An answer.", **content, **members), completion)


@pytest.fixture
async def house(tmp_path: Path, backend: FakeBackend) -> AsyncIterator[House]:
    assert python().exists(), "run scripts/test_matrix: it installs Synapse"
    house = House(tmp_path, backend)
    await house.start()
    yield house
    await house.stop()


async def stored(house: House, posts: list[Post]) -> dict[str, dict[str, float]]:
    """The live ratings of each completion, by rater, read from the file after rlproxy has ended."""
    store = await Store.open(house.home)
    try:
        return {
            post.completion: {r.rater: r.value for r in await store.ratings.history(post.completion) if r.live}
            for post in posts
        }
    finally:
        await store.close()


def expected(post: Post) -> dict[str, float]:
    values = {person: VALUES[on_it[-1][1]] for person, on_it in post.reactions.items() if on_it}
    return values | {person: value for person, (_, value) in post.command.items() if value is not None}


class Crowd:
    """People who do one thing after another. Each of them either reacts to an answer or replies with commands to it."""

    def __init__(self, house: House, rooms: list[str], seed: int) -> None:
        self.house = house
        self.rooms = rooms
        self.random = random.Random(seed)
        self.posts: list[Post] = []
        self.counts: Counter[str] = Counter()

    async def act(self, number: int) -> None:
        person = self.random.choice(self.house.people)
        if number % 12 == 0:
            self.posts.append(await self.house.post(self.random.choice(self.rooms), person, f"question {number}"))
            self.counts["answer"] += 1
            return
        post = self.random.choice(self.posts[-8:])
        await (self.react if self.reacts(post, person) else self.command)(post, person)
        if number % 29 == 0:
            await self.house.agent.edit(post.room, post.event, f"A better answer {number}.")
            self.counts["edit of an answer"] += 1

    def reacts(self, post: Post, person: Person) -> bool:
        """One way for each pair: a rating that was typed stays when a reaction goes."""
        return zlib.crc32(f"{post.event} {person.id}".encode()) % 3 != 0

    async def react(self, post: Post, person: Person) -> None:
        on_it = post.reactions.setdefault(person.id, [])
        missing = [key for key in VALUES if key not in {emoji for _, emoji in on_it}]
        if on_it and (self.random.random() < 0.45 or not missing):
            event, _ = on_it.pop(self.random.randrange(len(on_it)))
            await person.redact(post.room, event)
            self.counts["reaction taken back"] += 1
        else:
            emoji = self.random.choice(missing)
            on_it.append((await person.react(post.room, post.event, emoji), emoji))
            self.counts["reaction"] += 1

    async def command(self, post: Post, person: Person) -> None:
        event, value = post.command.get(person.id, ("", None))
        chance = self.random.random()
        # Of two commands the newer one counts; once it is redacted, whether the older one does depends on whether the
        # newer one was pushed. So people here redact their only one.
        if value is not None and chance < 0.25 and post.commands[person.id] == 1:
            post.commands[person.id] = 0
            await person.redact(post.room, event)
            post.command[person.id] = ("", None)
            self.counts["command redacted"] += 1
            return
        word = self.random.choice(["good", "bad"])
        new = 1.0 if word == "good" else -1.0
        if value is not None and chance < 0.5:
            await person.edit(post.room, event, f"/rl {word}")
            self.counts["command edited"] += 1
        else:
            post.commands[person.id] += 1
            event = await person.reply(post.room, post.event, f"/rl {word} because {self.random.random():.3f}")
            self.counts["command"] += 1
        post.command[person.id] = (event, new)


async def test_the_store_has_what_the_rooms_have(house: House) -> None:
    """500 actions of five people in three rooms; rlproxy is killed ten times and the homeserver twice."""
    raters = ", ".join(f'"{person.id}" = "{person.id}"' for person in house.people)
    await house.set_member(f"raters = {{{raters}}}")
    rooms = [await house.people[0].create_room(*house.people[1:], house.agent) for _ in range(ROOMS)]
    crowd = Crowd(house, rooms, seed=5)
    kills = {ACTIONS * (n + 1) // (KILLS + 1): "rlproxy" for n in range(KILLS)}
    kills |= {ACTIONS * (n + 1) // (HOMESERVER_KILLS + 1) + 7: "homeserver" for n in range(HOMESERVER_KILLS)}
    restarts: list[asyncio.Task[None]] = []
    for number in range(ACTIONS):
        await crowd.act(number)
        if kills.get(number) == "rlproxy":
            restarts.append(asyncio.create_task(house.restart_rlproxy()))  # people go on meanwhile
        elif kills.get(number) == "homeserver":
            restarts.append(asyncio.create_task(house.restart_homeserver()))
    await asyncio.gather(*restarts)
    await drained(house, rooms[0])
    for post in crowd.posts[::9]:  # an answer that was redacted before it was pushed has no content to be linked by
        await house.agent.redact(post.room, post.event)
        post.is_redacted = True
        for person in house.people:
            await (crowd.react if crowd.reacts(post, person) else crowd.command)(post, person)
    await drained(house, rooms[0])
    await house.serving.stop()
    posts = crowd.posts
    ratings = await stored(house, posts)
    differences = {post.event: (ratings[post.completion], expected(post)) for post in posts
                   if ratings[post.completion] != expected(post)}  # fmt: skip
    for event, (has, wanted) in differences.items():
        print(event, "stored", has, "wanted", wanted)
    assert not differences
    print(dict(crowd.counts), {"answers": len(posts), "ratings": sum(map(len, ratings.values()))})
    for post in crowd.posts:  # the record above is the homeserver's own
        if not post.is_redacted:
            now = {(event["sender"], event["content"]["m.relates_to"]["key"])
                   for event in await house.agent.reactions(post.room, post.event)}  # fmt: skip
            ours = {(person, emoji) for person, on_it in post.reactions.items() for _, emoji in on_it}
            assert {pair for pair in now if pair[0] != house.agent.id} == ours


async def drained(house: House, room: str) -> None:
    """Events come in their order: once the last one has acted, all have."""
    person = house.people[0]
    last = await house.post(room, person, "the last one")
    await person.react(last.room, last.event, "👍")
    await until_rated(house, last, seconds=300)  # a homeserver waits longer after each failure


async def until_rated(house: House, post: Post, seconds: float = SOON_S) -> None:
    async with asyncio.timeout(seconds):
        while True:
            async with house.serving.http.get(f"/rl/completions/{post.completion}") as response:
                if response.status == 200 and (await response.json()).get("ratings"):
                    return
            await asyncio.sleep(0.3)


async def test_what_people_see(house: House) -> None:
    """A command is answered in the room, a rating gets a tick, and nothing is said twice."""
    person = house.people[0]
    room = await person.create_room(house.agent)
    post = await house.post(room, person, "hello")
    command = await person.reply(room, post.event, "/rl good clear")
    await until_rated(house, post)
    asked = await person.say(room, "/rl status")
    async with asyncio.timeout(SOON_S):
        while True:
            notices = [event for event in await person.messages(room) if event["content"].get("msgtype") == "m.notice"]
            if notices:
                break
            await asyncio.sleep(0.3)
    assert len(notices) == 1 and notices[0]["sender"] == house.agent.id
    assert notices[0]["content"]["m.relates_to"]["m.in_reply_to"]["event_id"] == asked
    assert notices[0]["content"]["body"].startswith("rlproxy: ")
    (tick,) = await person.reactions(room, command)
    assert tick["content"]["m.relates_to"]["key"] == "✅"


async def test_one_tap_rates_and_the_buttons_go(house: House) -> None:
    await house.set_member("buttons = true")
    person = house.people[0]
    room = await person.create_room(house.agent)
    post = await house.post(room, person, "hello")
    assert await keys_when(person, post, 2) == {"👍", "👎"}
    await person.react(room, post.event, "👎")
    await until_rated(house, post)
    assert await keys_when(person, post, 1) == {"👎"}
    (left,) = await person.reactions(room, post.event)
    assert left["sender"] == person.id


async def keys_when(person: Person, post: Post, number: int) -> set[str]:
    """The emoji under a message, once there are so many."""
    async with asyncio.timeout(SOON_S):
        while True:
            reactions = await person.reactions(post.room, post.event)
            if len(reactions) == number:
                return {event["content"]["m.relates_to"]["key"] for event in reactions}
            await asyncio.sleep(0.3)


async def test_a_reaction_in_an_encrypted_room(house: House) -> None:
    """The homeserver cannot read the answer; its event's id is enough where the agent links it."""
    person = house.people[1]
    encryption = {"type": "m.room.encryption", "state_key": "", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}
    room = await person.create_room(house.agent, initial_state=[encryption])
    completion = await house.ask(person, "a secret")
    sealed = {"algorithm": "m.megolm.v1.aes-sha2", "ciphertext": "AwgAEn", "session_id": "s", "device_id": "d",
              "sender_key": "k"}  # fmt: skip
    event = await house.agent.send(room, "m.room.encrypted", sealed)
    body = {"platform": "matrix", "channel": room, "message_id": event, "completion_id": completion}
    async with house.serving.http.post("/rl/links", json=body) as response:
        assert response.status == 201
    await person.react(room, event, "👎")
    post = Post(room, event, completion)
    await until_rated(house, post)
    await house.serving.stop()
    assert await stored(house, [post]) == {completion: {person.id: -1.0}}
    await house.serving.start()
