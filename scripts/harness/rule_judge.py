"""A judge over a real socket with a rule in a model's place: it answers both questions as the prompts ask for it.

`flips` is the share of its labels that it turns around. The draw is made from the texts themselves, so that the same
turn always gets the same label. The judge can be down, slow, or return garbage.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from scripts.fakes.listening import Listening

Rule = Callable[[str, str, str], str]  # request, reply, follow-up -> label
FLIPPED = {"correction": "solved", "redo": "solved", "complaint": "solved", "solved": "complaint", "nothing": "redo"}


class FakeJudge(Listening):
    def __init__(self, rule: Rule, *, flips: float = 0.0, seed: int = 0) -> None:
        self.rule = rule
        self.flips = flips
        self.seed = seed
        self.requests: list[dict[str, Any]] = []
        self.garbage: bytes | None = None  # what it answers in place of JSON
        self.status = 200
        self.delay_s = 0.0
        self.rambles = False  # but where a JSON schema holds it
        self.schema_status = 200  # of an answer that is to have the shape of a schema
        self.refutes = False  # every claim
        self.ranks: Callable[[Mapping[str, str]], list[str]] = lambda answers: sorted(
            answers, key=lambda letter: len(answers[letter])
        )  # letters of answers, the best first: the shortest

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.add_routes([web.post("/v1/chat/completions", self._chat)])
        await self.listen(app, port)

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        await asyncio.sleep(self.delay_s)
        if self.garbage is not None:
            return web.Response(body=self.garbage, status=self.status)
        shaped = "response_format" in body
        if shaped and self.schema_status != 200:
            return web.json_response({"error": {"message": "no schemas here"}}, status=self.schema_status)
        question = json.loads(body["messages"][-1]["content"])
        text = json.dumps(self._answer(question)) if shaped or not self.rambles else '{"label": "response"}'
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}
        answer = {"id": "j", "object": "chat.completion", "choices": [{"index": 0, "message": message}], "usage": usage}
        return web.json_response(answer, status=self.status)

    def _answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        if "answers" in question:
            return {"ranking": self.ranks(question["answers"])}
        return {"refuted": self.refutes, "because": "none"} if "claim" in question else self._label(question)

    def _label(self, question: Mapping[str, str]) -> dict[str, str]:
        label = self.rule(question["request"], question["reply"], question["follow_up"])
        if random.Random(repr((self.seed, question))).random() < self.flips:
            label = FLIPPED[label]
        return {"label": label, "instruction": question["follow_up"] if label in ("correction", "redo") else ""}
