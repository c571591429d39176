"""Pictures attacked while a run trains on some: hostile files, two users at once, a kill, and somebody who forgets.

    python -m scripts.chaos.pictures [--hostile 60] [--out benchmarks/pictures_attacked.json]

A real llama-server with a tiny model that sees, a real `rlproxy serve`, and real runs. Hostile pictures come through
each dialect while a run is under way. The proxy is killed (SIGKILL) in the middle of it and started again. One user
forgets while the run holds the samples, and once more after it. What must hold is counted: each request is answered,
and the run ends. Nothing that was acknowledged is lost, and no byte of what was forgotten is in any file.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp

from scripts.harness.circumstances import circumstances
from scripts.harness.pictures import hostile
from scripts.harness.serving import Serving
from scripts.models import llamacpp, picture_servers

OUT: Final = Path(__file__).resolve().parents[2] / "benchmarks" / "pictures_attacked.json"
NAME: Final = "small"  # what Serving calls its model
USERS: Final = ("ann", "bob")
RATED: Final = 12  # answers of each user before the run
WAIT_S: Final = 900.0
ENDED: Final = ("done", "rejected", "failed", "empty")
SETTINGS: Final = {
    f"RLPROXY_{name.upper()}": str(value) for name, value in picture_servers.LOOSE.items()
} | {"RLPROXY_TRAIN__START_AT": str(len(USERS) * RATED), "RLPROXY_TRAIN__STAND_STILL_S": "0"}  # fmt: skip


def request_about(dialect: str, data: bytes, text: str) -> tuple[str, dict[str, Any]]:
    """Path and body of a question about a picture."""
    coded = base64.b64encode(data).decode()
    url = f"data:image/png;base64,{coded}"
    if dialect == "chat":
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": parts}], "max_tokens": 8}
    if dialect == "responses":
        parts = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": text}]
        return "/v1/responses", {"input": [{"role": "user", "content": parts}], "max_output_tokens": 8}
    if dialect == "messages":
        source = {"type": "base64", "media_type": "image/png", "data": coded}
        parts = [{"type": "image", "source": source}, {"type": "text", "text": text}]
        return "/v1/messages", {"messages": [{"role": "user", "content": parts}], "max_tokens": 8}
    options = {"stream": False, "options": {"num_predict": 8}}
    if dialect == "ollama chat":
        return "/api/chat", {"messages": [{"role": "user", "content": text, "images": [coded]}], **options}
    return "/api/generate", {"prompt": text, "images": [coded], **options}


DIALECTS: Final = ("chat", "responses", "messages", "ollama chat", "ollama generate")


class Attack:
    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.rated: dict[str, list[str]] = {user: [] for user in USERS}
        self.statuses: dict[str, Counter[str]] = {dialect: Counter() for dialect in DIALECTS}
        self.acknowledged: list[str] = []  # completions whose whole answer has come
        self.last_error = b""
        self.errors: Counter[str] = Counter()

    async def ask(self, dialect: str, data: bytes, text: str, user: str) -> str | None:
        """The completion's id; None where the answer was an error."""
        path, body = request_about(dialect, data, text)
        headers = {"x-rl-user": user, "x-rl-session": f"{user} {text}".replace(" ", "-")}
        try:
            async with self.serving.http.post(path, json={"model": NAME, **body}, headers=headers) as response:
                content = await response.read()
                self.statuses[dialect][str(response.status)] += 1
                if response.status != 200:
                    self.last_error = content[:300]
                    self.errors[f"{response.status} {message_in(content)[:100]}"] += 1
                    return None
                id = response.headers["x-rl-completion-id"]
                self.acknowledged.append(id)
                return id
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            self.statuses[dialect][type(error).__name__] += 1
            return None

    async def rate_as(self, user: str, pictures: list[bytes]) -> None:
        for number in range(RATED):
            id = await self.ask("chat", pictures[number % len(pictures)], f"{user} asks {number}", user)
            assert id is not None, self.last_error
            await self.serving.rate(id, "good" if number % 2 else "bad")
            self.rated[user].append(id)

    async def run_begun(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while (await self.serving.status())["training"]["run"] is None:
                await asyncio.sleep(0.2)

    async def run_ended(self) -> dict[str, Any]:
        async with asyncio.timeout(WAIT_S):
            while True:
                status = await self.serving.status()
                last = status["last_run"]
                if last and last["status"] in ENDED and status["training"]["run"] is None:
                    return status
                await asyncio.sleep(0.5)

    async def forget(self, **target: Any) -> int:
        async with self.serving.http.post("/rl/forget", json=target) as response:
            await response.read()
            return response.status

    async def missing(self) -> list[str]:
        """Acknowledged completions that the proxy does not have."""
        lost = []
        for id in self.acknowledged:
            async with self.serving.http.get(f"/rl/completions/{id}") as response:
                if response.status != 200:
                    lost.append(id)
        return lost


def message_in(content: bytes) -> str:
    """The message of an error's body, in any dialect."""
    with contextlib.suppress(ValueError, AttributeError):
        error = json.loads(content).get("error")
        return str(error.get("message") if isinstance(error, dict) else error)
    return content.decode(errors="replace")


def picture_of(user: str, number: int) -> bytes:
    shade = 40 + 20 * number
    return picture_servers.picture((shade, 0, 0) if user == "ann" else (0, 0, shade), 64, striped=True)


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Serving]:
    """`rlproxy serve` before a router with a tiny model and its mmproj."""
    model = await asyncio.to_thread(picture_servers.make_model, "idefics3", folder / "model")
    presets, port = folder / "presets.ini", llamacpp.free_port()
    await asyncio.to_thread(picture_servers.write_presets, model, folder, NAME)
    options = ["--models-preset", str(presets), "--models-max", "3", "--offline"]
    with llamacpp.started([*options, "--host", "127.0.0.1", "--port", str(port)], folder / "server.log", port) as url:
        backend = {"KIND": "llamacpp", "URL": url, "PRESETS": str(presets)}
        serving = Serving(
            folder / "home", model, **SETTINGS, **{f"RLPROXY_BACKEND__{name}": value for name, value in backend.items()}
        )
        await serving.start()
        try:
            yield serving
        finally:
            await serving.stop()


async def attack(folder: Path, count: int) -> dict[str, Any]:
    async with served(folder) as serving:
        scene = Attack(serving)
        pictures = {user: [picture_of(user, number) for number in range(3)] for user in USERS}
        await asyncio.gather(*(scene.rate_as(user, pictures[user]) for user in USERS))
        await scene.run_begun()
        # The run holds ann's samples; an answer about the same picture that it does not hold may go.
        in_run = await scene.forget(completion=scene.rated["ann"][0])
        outside = await scene.ask("chat", pictures["ann"][0], "not rated", "ann")
        assert outside is not None
        beside_run = await scene.forget(completion=outside)
        scene.acknowledged.remove(outside)
        images = hostile(count)
        began, slowest = time.monotonic(), 0.0
        for number, image in enumerate(images):
            start = time.monotonic()
            await scene.ask(DIALECTS[number % len(DIALECTS)], image.data, f"hostile {number}", USERS[number % 2])
            slowest = max(slowest, time.monotonic() - start)
            if number == count // 2:
                was_under_way = (await serving.status())["training"]["run"] is not None
                await serving.kill()
                await serving.start()
        sound = [await scene.ask(dialect, pictures["bob"][0], "after all", "bob") for dialect in DIALECTS]
        attacked_s = time.monotonic() - began
        status = await scene.run_ended()
        lost = await scene.missing()
        forgotten = await scene.forget(user="ann", purge_backups=True)
        report = {
            "requests": {dialect: dict(counts) for dialect, counts in scene.statuses.items()},
            "hostile": dict(Counter(image.kind for image in images)), "seconds": round(attacked_s, 1),
            "slowest_request_s": round(slowest, 2), "run_under_way_at_kill": was_under_way,
            "sound_after": [dialect for dialect, id in zip(DIALECTS, sound, strict=True) if id is not None],
            "errors": dict(scene.errors.most_common()),
            "last_run": {name: status["last_run"][name] for name in ("id", "status", "reason")},
            "live": status["live"], "images": status["images"],
            "acknowledged": len(scene.acknowledged), "lost": len(lost),
            "forget": {"in_the_run": in_run, "beside_the_run": beside_run, "after_it": forgotten},
        }  # fmt: skip
    parts = [part for data in pictures["ann"] for part in parts_of(data)]
    report["files_with_forgotten_bytes"] = holders(folder / "home", parts)
    bob = [part for data in pictures["bob"] for part in parts_of(data)]
    report["files_with_bytes_that_stay"] = len(holders(folder / "home", bob))
    return report


def parts_of(data: bytes) -> list[bytes]:
    """Compressed pixels that only this picture has, as bytes and as base64 wherever that begins."""
    start = data.index(b"IDAT") + 4
    return [data[start : start + 40], *(base64.b64encode(data[start + n :])[:48] for n in range(3))]


def holders(folder: Path, parts: list[bytes]) -> list[str]:
    """Files below this folder with one of these."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return [str(file.relative_to(folder)) for file in files if any(part in file.read_bytes() for part in parts)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hostile", type=int, default=60)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    start = circumstances()
    with tempfile.TemporaryDirectory() as folder:
        report = {"circumstances": start, **asyncio.run(attack(Path(folder), arguments.hostile))}
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
