"""How much Claude Code and Codex say before a person's first word: what a model must have room for.

Runs both as `scripts/test_agents` installed them, each alone in an empty home, through `rlproxy serve` over the
scripted backend of the tests, with their own prompts. Writes benchmarks/agent_requests.json; tables.py shows it.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from scripts.fakes.backend import FakeBackend
from scripts.harness.agent import CLAUDE_CODE_QUIET, CODEX_QUIET, PINNED, Agent, connected, over, program
from scripts.harness.circumstances import commit, now

ROOT = Path(__file__).resolve().parents[2]
QUESTION = "What is the capital of France?"
AGENTS: dict[str, tuple[str, str, tuple[str, ...], dict[str, str]]] = {
    "claude-code": ("@anthropic-ai/claude-code", "claude", ("-p", QUESTION), CLAUDE_CODE_QUIET),
    "codex": ("@openai/codex", "codex", ("exec", *CODEX_QUIET, QUESTION), {}),
}


async def first_request(name: str, folder: Path) -> dict[str, Any]:
    """The chat request that its first one becomes."""
    package, binary, args, env = AGENTS[name]
    backend = FakeBackend()
    backend.wants = "none", {}
    await backend.start()
    try:
        agent = Agent(program(package, binary), folder, over(backend, folder), **env)
        async with connected(agent, name):
            answer = await agent.run(*args)
    finally:
        await backend.stop()
    assert QUESTION in answer, answer
    (request,) = (r for r in backend.requests if QUESTION in json.dumps(r["messages"]))
    return {
        "agent": name,
        "version": json.loads(PINNED.read_text())["dependencies"][package],
        "requests": len(backend.requests),
        "messages_bytes": _size(request["messages"]),
        "tools": len(request.get("tools") or ()),
        "tools_bytes": _size(request.get("tools") or []),
    }


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


async def measure() -> list[dict[str, Any]]:
    requests = []
    for name in AGENTS:
        with tempfile.TemporaryDirectory() as folder:
            requests.append(await first_request(name, Path(folder)))
        print(json.dumps(requests[-1]))
    return requests


def main() -> None:
    agents = asyncio.run(measure())
    record = {"date": now(), "commit": commit(), "agents": agents}
    (ROOT / "benchmarks/agent_requests.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
