"""Follow the Matrix part of the guide "rating from chat" with a clock: an empty home, a new homeserver, a reaction.

`python -m scripts.demo.matrix_guide` writes benchmarks/matrix-guide.json. It needs Synapse (`scripts/setup_synapse`)
and types as fast as a program does; how long a person reads and types is not in it.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from scripts.harness.circumstances import circumstances
from scripts.harness.command import rlproxy
from scripts.harness.serving import Serving
from scripts.harness.synapse import NAME, Synapse, free_port
from trainer.formats.weights import resolve

OUT: Final = Path(__file__).resolve().parents[2] / "benchmarks" / "matrix-guide.json"
SOON_S: Final = 60.0


class Walk:
    def __init__(self, folder: Path) -> None:
        self.synapse = Synapse(folder / "synapse")
        self.serving = Serving(folder / "home", resolve().path, "--port", str(free_port()))
        self.steps: list[dict[str, Any]] = []
        self._start = time.monotonic()

    def note(self, step: str, output: str = "") -> None:
        self.steps.append({"step": step, "seconds": round(time.monotonic() - self._start, 1), "output": output})
        print(json.dumps(self.steps[-1]), flush=True)

    async def follow(self) -> None:
        await self.serving.start()
        self.note("rlproxy serve")
        home = self.serving.home
        arguments = ("--user", f"@agent:{NAME}", "--homeserver", self.synapse.url, "--yes")
        code, output, reason = await rlproxy(home, "connect", "matrix", *arguments)
        assert code == 0, reason
        self.note("rlproxy connect matrix --user … --homeserver …", output)
        await self.synapse.prepare(home / "matrix/registration.yaml")
        await self.synapse.start()
        self.note("the homeserver has the registration, and has started")
        await self.serving.stop()
        await self.serving.start()
        self.note("rlproxy serve, anew")
        code, output, reason = await rlproxy(home, "connect", "matrix")
        assert code == 0, reason
        self.note("rlproxy connect matrix", output)
        await self._react()

    async def _react(self) -> None:
        agent, ann = [await self.synapse.register(name) for name in ("agent", "ann")]
        room = await ann.create_room(agent)
        body = {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 16}
        async with self.serving.http.post("/v1/chat/completions", json=body, headers={"x-rl-user": ann.id}) as response:
            answer = await response.json()
            assert response.status == 200, answer
        text = answer["choices"][0]["message"]["content"]
        event = await agent.say(room, text, **{"org.rlproxy.completion": answer["id"]})
        self.note("the agent's answer is in the room", text)
        await ann.react(room, event, "👍")
        async with asyncio.timeout(SOON_S):
            while not (ratings := await self._ratings(answer["id"])):
                await asyncio.sleep(0.1)
        self.note("a person's 👍 is a rating", json.dumps(ratings))

    async def _ratings(self, completion: str) -> list[Any]:
        async with self.serving.http.get(f"/rl/completions/{completion}") as response:
            return [(rating["rater"], rating["value"]) for rating in (await response.json())["ratings"]]


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        walk = Walk(Path(folder))
        try:
            await walk.follow()
        finally:
            await walk.serving.stop()
            await walk.synapse.stop()
    OUT.write_text(json.dumps({**circumstances(), "steps": walk.steps}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
