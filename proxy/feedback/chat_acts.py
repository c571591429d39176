"""What an admin may do from the chat: train, pause, resume, rollback, reset.

Owns those acts and the sentences that tell of them. Not here: who is an admin (keys), the language of commands
(chat_command).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from proxy.training.run_supervisor import Learner
from proxy.versions.live_version import Swap


def chat_acts(learner: Learner, swap: Swap) -> dict[str, Callable[[], Awaitable[str]]]:
    """Each verb's act; it returns what is said in the chat."""

    async def train() -> str:
        return f"a run starts: {(await learner.train()).why}."

    async def pause() -> str:
        await learner.pause()
        return "training is paused; `/rl resume` goes on."

    async def resume() -> str:
        await learner.resume()
        return "training goes on."

    async def rollback() -> str:
        live = (await swap.rollback("chat")).live
        return f"v{live} is live again." if live else "the base model is live again."

    async def reset() -> str:
        await learner.reset("chat")
        return "the base model answers, and the next run starts from it; nothing is deleted."

    return {"train": train, "pause": pause, "resume": resume, "rollback": rollback, "reset": reset}
