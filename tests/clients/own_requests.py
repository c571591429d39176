"""One conversation with a client that asks for itself, too: titles, summaries, memories, reviews, subagents.

Owns the oracle: every answer of the scripted backend has a number of its own, so the completion that a person reads is
the one whose number the client shows. Whatever else it asked, the client asked for itself. Not here: the cell
(test_every_client).
"""

from __future__ import annotations

import asyncio
import json
import re
from itertools import count
from typing import Any, Final

from tests.clients.driving import Conversation, filled

QUIET_S: Final = 4.0  # for which nothing is asked: what a client does after an answer is done then
LONGEST_S: Final = 90.0
FEW_TOKENS: Final = 3
LONGEST_QUESTION: Final = 600  # characters of a message, with what a client adds to it: a transcript is longer
NUMBER: Final = re.compile(r"Sheet-(\d+)")


class NumberedConversation(Conversation):
    """Beside what a person sees in it, `own`: what the client has asked for itself."""

    _sheets = count(1)

    def _script(self, answer: str, place: str | None, tokens: int | None = None) -> None:
        """The model calls the subagent's tool once, below the question; else it answers. `tokens`: how many the
        backend says that it has read below the question, and a few everywhere else."""
        backend, tool = self._backend, self.driver.side.get("tool", {})
        backend.says, backend.letter = lambda: f"{answer} Sheet-{next(self._sheets)}.", True

        def wants(body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
            is_question = answer.startswith("Answer") and _is_question(body, answer[7:-1])
            backend.prompt_tokens = tokens if tokens and is_question else FEW_TOKENS
            return (tool["calls"], filled(tool["arguments"], place)) if place and is_question else ("none", {})

        backend.wants = wants

    async def start(self) -> None:
        """Open it; what the client asks before anybody has said anything is its own."""
        await self.open()
        self.own: list[dict[str, Any]] = []
        self._ids: set[str] = set()
        await self.wait()

    async def ask(self, *, tool: bool = False, tokens: int | None = None) -> dict[str, Any]:
        """A question; gives the completion that the client shows. With `tool` the model has a subagent look first."""
        number = str(next(self._numbers))
        self._script(f"Answer {number}.", f"place {number}" if tool else None, tokens)
        shown = str((await self._drive.tell(say=f"What about {number}?"))["text"])
        return await self._read(shown, has_question=True)

    async def _read(self, shown: str, *, has_question: bool = False) -> dict[str, Any]:
        """The completion whose words come last in what the client shows. All others but calls are the client's own. Of
        a client that sums up and then answers once more, the answer to the question is not: it comes first."""
        rows = await self._new_rows()
        sheets = NUMBER.findall(shown)
        assert sheets, f"{self.driver.id} shows {shown!r}"
        answer = await self._row_of(rows, sheets[-1])
        assert answer is not None, f"{self.driver.id} shows {shown!r}"
        answers = [answer]
        if has_question and self.driver.side.get("answers"):
            answers.append(await self._row_of(rows, sheets[0]))
        steps = [row for row in rows if row["finish_reason"] == "tool_calls"]  # of the person's turn
        self.own += [row for row in rows if row not in answers and row not in steps]
        return answer

    async def _row_of(self, rows: list[dict[str, Any]], sheet: str) -> dict[str, Any] | None:
        """The newest completion that has this number."""
        matches = [row for row in rows if f"Sheet-{sheet}." in await self._answer(row["id"])]
        return matches[-1] if matches else None

    async def type(self, text: str) -> dict[str, Any] | None:
        """A command of the client, by which it asks for itself; gives one more answer, where the client goes on."""
        self._script("Summed up.", None)
        shown = str((await self._drive.tell(say=text))["text"])
        if self.driver.side.get("answers"):
            return await self._read(shown)
        await self.wait()
        return None

    async def wait(self) -> None:
        """Until the client asks nothing any more."""
        self.own += await self._new_rows()

    async def _new_rows(self) -> list[dict[str, Any]]:
        """What was captured since the last time, oldest first."""
        rows = [row for row in await self._quiet() if row["id"] not in self._ids]
        self._ids |= {row["id"] for row in rows}
        return rows

    async def _quiet(self) -> list[dict[str, Any]]:
        """What was captured when nothing is asked any more."""
        async with asyncio.timeout(LONGEST_S):
            rows, same_s = await self.rows(), 0.0
            while same_s < QUIET_S:
                await asyncio.sleep(0.5)
                newer = await self.rows()
                is_over = all(row["status"] != "pending" for row in newer)
                same_s = same_s + 0.5 if len(newer) == len(rows) and is_over else 0.0
                rows = newer
        return rows


def _is_question(body: dict[str, Any], number: str) -> bool:
    """Tell whether the newest message is the person's question, and not a tool's result or another request."""
    newest = body["messages" if "messages" in body else "input"][-1]
    text = json.dumps(newest)
    return newest.get("role") == "user" and f"What about {number}?" in text and len(text) < LONGEST_QUESTION
