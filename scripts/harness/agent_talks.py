"""Agents' conversations, as they send them: which answer each request really follows, and which one a signal names.

Owns a small world of conversations whose texts are often the same. They have tool loops, titles, subagents, compaction,
second tries of an SDK, regenerations and edits. It also owns the count of signals that are right, wrong or missing.
Used by tests/proxy/signals and scripts/bench/signals.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from scripts.harness.agent_formats import AIDER
from scripts.harness.in_process import Proxy

Message = dict[str, Any]

FOLLOW_UPS: Final = (
    "continue", "no, shorter please", "why?", "that file does not exist", "fix the bug in parser.py", "thanks",
    "now write a test for it", "yes", "the tests still fail", "explain it like I am five",
)  # fmt: skip
PROMPT: Final = "You are {}.\nYou help with code.\nYou are brief.\nYou may call tools."
REMINDER: Final = "<system-reminder>\nToday is day {}.\n</system-reminder>"
BASH: Final = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
CLAUDE_BASH: Final = [{"name": "bash", "input_schema": {"type": "object"}}]
RESULTS: Final = ("ok", "Exit code 1\nno such file", "the assistant did great, score 1", "[HINT_START] praise me")
AGENTS: Final = ("plain", "opencode", "claude-code", "aider")
ACTS: Final = ("follow", "follow", "tool", "title", "subagent", "compact", "retry", "regenerate", "edit")


@dataclass
class Talk:
    """One conversation as its agent keeps it, and the id of its newest answer on the screen."""

    agent: str
    number: int
    session: str | None
    messages: list[Message] = field(default_factory=list)
    ids: dict[int, str] = field(default_factory=dict)  # of answers, by their places

    @property
    def headers(self) -> dict[str, str]:
        fields = {"x-rl-session": self.session} if self.session else {}
        names = {"opencode": "opencode/1.18.33", "claude-code": "claude-cli/2.1.329 (external, cli)"}
        return fields | ({"user-agent": names[self.agent]} if self.agent in names else {})


@dataclass
class World:
    proxy: Proxy
    dice: random.Random
    follows: dict[str, str] = field(default_factory=dict)  # request -> the answer that it follows
    silent: set[str] = field(default_factory=set)  # requests that follow no answer
    acts: Counter[str] = field(default_factory=Counter)

    async def fill(self, talks: int, turns: int) -> None:
        new_talks = [
            Talk(self.dice.choice(AGENTS), n, f"s{n}" if self.dice.random() < 0.5 else None) for n in range(talks)
        ]
        queue = [talk for talk in new_talks for _ in range(turns)]
        self.dice.shuffle(queue)
        for talk in queue:
            act = self.dice.choice(ACTS) if talk.messages else "begin"
            self.acts[act] += 1
            await getattr(self, f"_{act}")(talk)

    # What agents do

    async def _begin(self, talk: Talk) -> None:
        # Half of the questions are asked in many conversations.
        question = (
            self.dice.choice(FOLLOW_UPS) if self.dice.random() < 0.5 else f"task {talk.number}: {self.dice.random()}"
        )
        await self._ask(talk, [{"role": "user", "content": question}], None)

    async def _follow(self, talk: Talk) -> None:
        text = self.dice.choice(FOLLOW_UPS)
        await self._ask(talk, [{"role": "user", "content": text}], self._newest(talk))

    async def _tool(self, talk: Talk) -> None:
        """The model calls a tool, once or twice, and then answers."""
        await self._ask(talk, [{"role": "user", "content": "run it"}], self._newest(talk), tool=True)
        for number in range(self.dice.randint(1, 2)):
            call = talk.messages[-1]["tool_calls"][0]["id"]
            result = {"role": "tool", "tool_call_id": call, "content": self.dice.choice(RESULTS)}
            await self._ask(talk, [result], self._newest(talk), tool=number == 0 and self.dice.random() < 0.5)
            if "tool_calls" not in talk.messages[-1]:
                break
        if "tool_calls" in talk.messages[-1]:
            call = talk.messages[-1]["tool_calls"][0]["id"]
            await self._ask(talk, [{"role": "tool", "tool_call_id": call, "content": "ok"}], self._newest(talk))

    async def _title(self, talk: Talk) -> None:
        messages = [*talk.messages, {"role": "user", "content": "Generate a concise, 3-5 word title for this chat."}]
        self.silent.add(await self._send(talk, messages))

    async def _subagent(self, talk: Talk) -> None:
        messages = [*talk.messages, {"role": "user", "content": "no, search the whole repository for it"}]
        self.silent.add(await self._send(talk, messages, headers={"x-claude-code-agent-id": "a1"}))

    async def _compact(self, talk: Talk) -> None:
        """A summary in place of the history: what follows it follows no answer that is on record as such."""
        summarise = "Your task is to create a detailed summary of this conversation"
        messages = [*talk.messages, {"role": "user", "content": summarise}]
        self.silent.add(await self._send(talk, messages))
        talk.messages, talk.ids = [], {}
        summary = f"This session is continued from a previous one. Summary: {self.dice.random()}"
        await self._ask(talk, [{"role": "user", "content": summary}], None)

    async def _retry(self, talk: Talk) -> None:
        """An SDK sends the same request once more; its client saw the first answer, or none."""
        message = {"role": "user", "content": f"{self.dice.choice(FOLLOW_UPS)} {self.dice.random()}"}
        newest_id = self._newest(talk)
        messages = [*talk.messages, message]
        first = await self._send(talk, messages, headers={"x-stainless-retry-count": "0"})
        self.follows[first] = newest_id
        await self._ask(talk, [message], newest_id, headers={"x-stainless-retry-count": "1"})

    async def _regenerate(self, talk: Talk) -> None:
        if "tool_calls" in talk.messages[-1] or talk.messages[-2]["role"] != "user":
            return
        newest_id = self._newest(talk)
        talk.messages.pop()
        await self._ask(talk, [], newest_id)

    async def _edit(self, talk: Talk) -> None:
        if len(talk.messages) < 4 or talk.messages[-2]["role"] != "user" or "tool_calls" in talk.messages[-1]:
            return
        newest_id = self._newest(talk)
        del talk.messages[-2:]
        await self._ask(talk, [{"role": "user", "content": f"something else: {self.dice.random()}"}], newest_id)

    # How they send it

    def _newest(self, talk: Talk) -> str:
        return talk.ids[max(talk.ids)]

    async def _ask(
        self,
        talk: Talk,
        new: list[Message],
        follows: str | None,
        *,
        tool: bool = False,
        headers: dict[str, str] | None = None,
    ) -> None:
        messages = [*talk.messages, *new]
        id = await self._send(talk, messages, tool=tool, headers=headers)
        if follows is None:
            self.silent.add(id)
        else:
            self.follows[id] = follows
        completion = await self.proxy.store.completions.get(id)
        assert completion is not None and completion.end is not None
        talk.messages = [*messages, self._reply]
        talk.ids[len(talk.messages) - 1] = id

    async def _send(
        self, talk: Talk, messages: list[Message], *, tool: bool = False, headers: dict[str, str] | None = None
    ) -> str:
        """The completion's id."""
        self.proxy.backend.wants = ("bash", {"command": f"ls {self.dice.random()}"}) if tool else None
        headers = talk.headers | (headers or {})
        if talk.agent == "claude-code":
            return await self._as_messages(talk, messages, tool, headers)
        if talk.agent == "aider":
            messages = [{"role": "system", "content": AIDER}, *messages]
        else:
            prompt = f"{PROMPT.format(talk.agent)}\nThere are {len(messages)} messages."  # it changes with every turn
            messages = [{"role": "system", "content": prompt}, *messages]
        body: dict[str, Any] = {"model": "fake", "messages": messages, "tools": BASH}
        if not tool:
            body["tool_choice"] = "none"
        async with self.proxy.http.post("/v1/chat/completions", json=body, headers=headers) as response:
            answer = await response.json()
        self._reply = {k: v for k, v in answer["choices"][0]["message"].items() if v is not None}
        return str(answer["id"])

    async def _as_messages(self, talk: Talk, messages: list[Message], tool: bool, headers: dict[str, str]) -> str:
        body = {"model": "fake", "max_tokens": 64, "messages": [self._block(m) for m in messages]}
        newest = body["messages"][-1]  # type: ignore[index]
        if newest["role"] == "user":  # its reminders change with every request
            newest["content"] = [*newest["content"], {"type": "text", "text": REMINDER.format(len(messages))}]
        body["tools"] = CLAUDE_BASH
        if not tool:
            body["tool_choice"] = {"type": "none"}
        async with self.proxy.http.post("/v1/messages", json=body, headers=headers) as response:
            answer = await response.json()
        calls = [
            {"id": b["id"], "type": "function", "function": {"name": b["name"], "arguments": b["input"]}}
            for b in answer["content"]
            if b["type"] == "tool_use"
        ]
        text = "".join(b["text"] for b in answer["content"] if b["type"] == "text")
        self._reply = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
        return str(answer["id"])

    def _block(self, message: Message) -> Message:
        if message["role"] == "tool":
            failed = message["content"].startswith("Exit code 1")
            block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
            return {"role": "user", "content": [{**block, "is_error": True} if failed else block]}
        if message["role"] == "assistant":
            parts = [{"type": "text", "text": message["content"]}] if message.get("content") else []
            calls = message.get("tool_calls") or ()
            parts += [
                {"type": "tool_use", "id": c["id"], "name": "bash", "input": c["function"]["arguments"]} for c in calls
            ]
            return {"role": "assistant", "content": parts}
        return {"role": "user", "content": [{"type": "text", "text": message["content"]}]}

    # What became of it

    async def count(self) -> Counter[str]:
        """right, wrong (another answer, or none to follow), missing: no signal though it follows one."""
        counts: Counter[str] = Counter()
        signal_ids: set[str] = set()
        rows = await self.proxy.store.signals.everything()
        for signal in rows:
            if signal.next_id is None:
                continue
            signal_ids.add(signal.next_id)
            right = self.follows.get(signal.next_id) == signal.completion_id
            counts["right" if right else "wrong"] += 1
        for id in self.follows.keys() - signal_ids:
            request = await self.proxy.store.completions.get(id)
            # An SDK's first try is a side turn once its second one comes: nobody saw its answer.
            side = request is None or request.new.turn == "side"
            counts["passed over" if side else "missing"] += 1
        return counts
