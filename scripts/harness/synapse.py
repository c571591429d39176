"""A real Matrix homeserver of one's own: Synapse, in an environment of its own, on loopback, with people in rooms.

It is run, never imported: Synapse has another licence (AGPL).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import socket
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from trainer.formats.weights import cache_folder

NAME: Final = "localhost"
READY_S, RETRY_S = 90.0, 0.3
CONFIG: Final = """
suppress_key_server_warning: true
rc_message: {per_second: 1000, burst_count: 1000}
rc_login: {address: {per_second: 1000, burst_count: 1000}, account: {per_second: 1000, burst_count: 1000}}
rc_joins: {local: {per_second: 1000, burst_count: 1000}}
rc_invites: {per_room: {per_second: 1000, burst_count: 1000}, per_user: {per_second: 1000, burst_count: 1000}}
"""


def python() -> Path:
    return cache_folder() / "venvs" / "synapse" / "bin" / "python"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Synapse:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: asyncio.subprocess.Process | None = None
        self.http: aiohttp.ClientSession
        self._config = folder / "homeserver.yaml"
        self._numbers = count(1)

    async def prepare(self, registration: Path) -> None:
        """Write its settings, with this application service."""
        self.folder.mkdir(parents=True, exist_ok=True)
        await self._run("--server-name", NAME, "--generate-config", "--report-stats=no")
        text = self._config.read_text().replace("port: 8008", f"port: {self.port}")
        self._config.write_text(f"{text}\n{CONFIG}\napp_service_config_files: [{registration}]\n")
        self.http = aiohttp.ClientSession(self.url)

    async def start(self) -> None:
        with (self.folder / "synapse.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                str(python()), "-m", "synapse.app.homeserver", "-c", str(self._config), cwd=self.folder, stdout=log,
                stderr=log,
            )  # fmt: skip
        async with asyncio.timeout(READY_S):
            while not await self._is_up():
                await asyncio.sleep(RETRY_S)

    async def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.terminate()
            await self.process.wait()
        await self.http.close()

    async def register(self, name: str) -> Person:
        """By the shared secret of its settings, as its own script does."""
        match = re.search(r'registration_shared_secret: "(.+)"', self._config.read_text())
        assert match is not None
        path = "/_synapse/admin/v1/register"
        async with self.http.get(path) as response:
            nonce = (await response.json())["nonce"]
        words = "\0".join((nonce, name, f"word-{name}", "notadmin"))
        mac = hmac.new(match[1].encode(), words.encode(), hashlib.sha1).hexdigest()
        body = {"nonce": nonce, "username": name, "password": f"word-{name}", "admin": False, "mac": mac}
        async with self.http.post(path, json=body) as response:
            account = await response.json()
            assert response.status == 200, account
        return Person(self, account["user_id"], account["access_token"])

    def next_number(self) -> int:
        return next(self._numbers)

    async def _is_up(self) -> bool:
        assert self.process is not None
        assert self.process.returncode is None, (self.folder / "synapse.log").read_text()[-2000:]
        try:
            async with self.http.get("/_matrix/client/versions") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    async def _run(self, *arguments: str) -> None:
        process = await asyncio.create_subprocess_exec(
            str(python()), "-m", "synapse.app.homeserver", "--config-path", str(self._config), *arguments,
            cwd=self.folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()


class Person:
    """Somebody with an account. What they send is sent once, whatever becomes of the homeserver meanwhile."""

    def __init__(self, server: Synapse, id: str, token: str) -> None:
        self.server = server
        self.id = id
        self.token = token
        self._headers = {"authorization": f"Bearer {token}"}

    async def create_room(self, *guests: Person, **members: Any) -> str:
        body = {"preset": "public_chat", "invite": [guest.id for guest in guests], **members}
        room: str = (await self.call("POST", "createRoom", body))["room_id"]
        for guest in guests:
            await guest.call("POST", f"rooms/{quote(room)}/join", {})
        return room

    async def send(self, room: str, kind: str, content: dict[str, Any]) -> str:
        path = f"rooms/{quote(room)}/send/{kind}/t{self.server.next_number()}"
        id: str = (await self.call("PUT", path, content))["event_id"]
        return id

    async def say(self, room: str, body: str, **members: Any) -> str:
        return await self.send(room, "m.room.message", {"msgtype": "m.text", "body": body, **members})

    async def reply(self, room: str, event: str, body: str) -> str:
        return await self.say(room, body, **{"m.relates_to": {"m.in_reply_to": {"event_id": event}}})

    async def edit(self, room: str, event: str, body: str) -> str:
        new = {"msgtype": "m.text", "body": body}
        relation = {"rel_type": "m.replace", "event_id": event}
        return await self.say(room, f"* {body}", **{"m.new_content": new, "m.relates_to": relation})

    async def react(self, room: str, event: str, key: str) -> str:
        relation = {"rel_type": "m.annotation", "event_id": event, "key": key}
        return await self.send(room, "m.reaction", {"m.relates_to": relation})

    async def redact(self, room: str, event: str) -> None:
        await self.call("PUT", f"rooms/{quote(room)}/redact/{quote(event)}/t{self.server.next_number()}", {})

    async def reactions(self, room: str, event: str) -> list[dict[str, Any]]:
        """Those that the room has on a message now, oldest first."""
        path = f"rooms/{quote(room)}/relations/{quote(event)}/m.annotation?dir=f&limit=100"
        events: list[dict[str, Any]] = (await self.call("GET", path, version="v1"))["chunk"]
        return events

    async def messages(self, room: str) -> list[dict[str, Any]]:
        """The newest hundred events."""
        page = await self.call("GET", f"rooms/{quote(room)}/messages?dir=b&limit=100")
        events: list[dict[str, Any]] = page["chunk"]
        return events

    async def call(self, method: str, path: str, body: Any = None, version: str = "v3") -> Any:
        url = f"/_matrix/client/{version}/{path}"
        async with asyncio.timeout(READY_S):
            while True:
                try:
                    async with self.server.http.request(method, url, json=body, headers=self._headers) as response:
                        answer = await response.json()
                        assert response.status == 200, (method, path, answer)
                        return answer
                except (aiohttp.ClientError, ConnectionError):  # it was killed, and comes back
                    await asyncio.sleep(RETRY_S)
