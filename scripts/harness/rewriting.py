"""Conversations rewritten as clients rewrite them, and which answer `/rl good` then rates.

Owns a small world of conversations under a few keys and people, whose questions and answers are often the same. It also
owns what clients do to a history before they send it again. Each command is counted by what became of it: right, cannot
tell, wrong. Used by tests/test_matching.py and scripts/bench/matching.py.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from proxy.conversation.inserted_messages import without_fillers
from proxy.conversation.same_text import spoken_texts
from proxy.core.agent_wrappers import agent_of
from scripts.harness.agent_formats import AIDER, AIDERS_RULES
from scripts.harness.in_process import Proxy

Message = dict[str, Any]
Messages = list[Message]

QUESTIONS: Final = (
    "continue", "yes", "go on", "why?", "fix the bug in parser.py", "what is the capital of France?", "ok\n\nand then?",
    "Write a test for it.\n\nUse pytest.", "Explain this:\n```\nx = 1\ny  = 2\n```", "sure?", "thanks",
    "Which files changed in the last hour, and who changed them?",
)  # fmt: skip
ANSWERS: Final = (
    "Done.", "Yes.", "OK", "I have fixed it.", "Paris.", "No,\nit is  not.", "**Yes**, and:\n\n- one\n- two",
    "The bug was in `parse()`: it read one token too many. I have changed the loop so that it stops at the end.\n",
    "I'm sorry, but I can't help with that request. Let me know if there is anything else that I can do for you.",
    "def test_it() -> None:\n    assert f(1) == 2\n\n\ndef test_more() -> None:\n    assert f(2) == 3\n",
)  # fmt: skip
SYSTEMS: Final = ("You are a helpful assistant.", "You are a pirate.\nToday is Monday.", AIDER)
IMAGE: Final = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
TOOLS: Final = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
REMINDER: Final = "<system-reminder>\nAs you answer, today's date is {}.\n</system-reminder>"
CONTEXT: Final = "Use this context:\n<doc>Item {} of the store, and what it says.</doc>\n\nQuestion: "
FILE: Final = "\n\nFile a{}.py:\n```\nprint({})\n```"


@dataclass
class Talk:
    """One conversation: as its client keeps it, and the ids of its answers by their places; None: not captured."""

    headers: dict[str, str]
    system: str
    live: str  # what its client adds to the newest message only
    messages: Messages = field(default_factory=list)
    ids: dict[int, str | None] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        return self.headers.get("x-rl-user", "")


@dataclass
class World:
    proxy: Proxy
    dice: random.Random
    talks: list[Talk] = field(default_factory=list)

    async def fill(self, talks: int) -> None:
        """Turn by turn in all of them, as people do who have several windows."""
        for _ in range(talks):
            self.talks.append(self._talk())
        queue = [talk for talk in self.talks for _ in range(self.dice.randint(1, 4))]
        self.dice.shuffle(queue)
        for talk in queue:
            await self._turn(talk)

    def _talk(self) -> Talk:
        dice, headers = self.dice, {}
        if dice.random() < 0.3:
            headers["x-rl-user"] = dice.choice(("ann", "bob"))
        if dice.random() < 0.4:
            headers["x-rl-session"] = f"s{dice.randint(1, 12)}"
        live = dice.choice(("", "", "reminder", "context", "file", "aider"))
        system = AIDER if live == "aider" else dice.choice(SYSTEMS[:2])
        return Talk(headers, system, live)

    async def _turn(self, talk: Talk) -> None:
        dice = self.dice
        text = dice.choice(QUESTIONS)
        if dice.random() < 0.4:
            text += f" It is about number {dice.randint(1, 10**6)}."
        question: Message = {"role": "user", "content": text}
        if talk.live not in ("aider", "context") and dice.random() < 0.1:
            question = {"role": "user", "content": [{"type": "text", "text": text}, IMAGE]}
        talk.messages.append(question)
        if dice.random() < 0.2:
            await self._ask(talk, tools=True)
        await self._ask(talk, tools=False)

    async def _ask(self, talk: Talk, *, tools: bool) -> None:
        dice, backend = self.dice, self.proxy.backend
        unique = f" Reference {dice.randint(1, 10**9)}." if dice.random() < 0.3 else ""
        backend.letter, backend.says = True, dice.choice(ANSWERS) + unique
        off = dice.random() < 0.1
        headers = talk.headers | ({"x-rl-capture": "off"} if off else {})
        body: dict[str, Any] = {"model": "fake", "messages": self._as_sent(talk), **({"tools": TOOLS} if tools else {})}
        async with self.proxy.http.post("/v1/chat/completions", json=body, headers=headers) as response:
            answer = (await response.json())["choices"][0]["message"]
            id = response.headers.get("x-rl-completion-id")
        talk.messages.append({k: v for k, v in answer.items() if k in ("role", "content", "tool_calls")})
        talk.ids[len(talk.messages) - 1] = id
        for call in answer.get("tool_calls") or ():
            result = f"result {dice.randint(1, 99)}"
            talk.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    def _as_sent(self, talk: Talk) -> Messages:
        """With what its client adds to the newest message."""
        *history, newest = talk.messages
        number, text = self.dice.randint(1, 10**6), newest.get("content")
        sent = [{"role": "system", "content": talk.system}, *history, newest]
        if newest["role"] != "user" or not isinstance(text, str) or not talk.live:
            return sent
        parts: dict[str, Any] = {
            "reminder": [{"type": "text", "text": REMINDER.format(number)}, {"type": "text", "text": text}],
            "context": CONTEXT.format(number) + text,
            "file": text + FILE.format(number, number),
            "aider": f"{text}\n\n{AIDERS_RULES}",
        }
        files = AIDERS_FILES if talk.live == "aider" else []
        return [sent[0], *history, *files, {"role": "user", "content": parts[talk.live]}]


AIDERS_FILES: Final[Messages] = [
    {"role": "user", "content": "I have *added these files to the chat* so you can go ahead and edit them.\n\na.py\n"},
    {"role": "assistant", "content": "Ok, any changes I propose will be to those files."},
]

# What clients do to a history: each takes the messages, without the system text, and gives others.

Rewrite = Callable[[Messages, random.Random], Messages]


def texts_by(change: Callable[[str], str], *roles: str) -> Rewrite:
    def rewrite(messages: Messages, dice: random.Random) -> Messages:
        return [
            {**m, "content": change(m["content"])} if m["role"] in roles and isinstance(m["content"], str) else m
            for m in messages
        ]

    return rewrite


def reminders_added(messages: Messages, dice: random.Random) -> Messages:
    rewritten: Messages = []
    for message in messages:
        content = message["content"]
        if message["role"] == "user" and isinstance(content, str) and dice.random() < 0.5:
            parts = [REMINDER.format(dice.randint(1, 99)), content]
            message = {**message, "content": [{"type": "text", "text": text} for text in parts]}
        rewritten.append(message)
    return rewritten


def turns(messages: Messages) -> list[Messages]:
    """From each of the person's messages to the next."""
    groups: list[Messages] = []
    for message in messages:
        if message["role"] == "user" or not groups:
            groups.append([])
        groups[-1].append(message)
    return groups


def oldest_dropped(messages: Messages, dice: random.Random) -> Messages:
    whole = turns(messages)
    return [message for turn in whole[dice.randint(0, len(whole) - 1) :] for message in turn]


def first_message_dropped(messages: Messages, dice: random.Random) -> Messages:
    return messages[dice.randint(0, len(messages) - 1) :]


SUMMARY, ACKNOWLEDGED = "This session goes on from an earlier one. Summary: they talked.", "Understood."


def compacted(messages: Messages, dice: random.Random) -> Messages:
    whole = turns(messages)
    last_turns = whole[dice.randint(0, len(whole) - 1) :]
    summary: Messages = [{"role": "user", "content": SUMMARY}]
    if dice.random() < 0.5:
        summary.append({"role": "assistant", "content": ACKNOWLEDGED})
    return [*summary, *(message for turn in last_turns for message in turn)]


def ids_renamed(messages: Messages, dice: random.Random) -> Messages:
    rewritten: Messages = []
    for message in messages:
        if message.get("tool_calls"):
            message = {**message, "tool_calls": [{**c, "id": f"x{c['id']}"} for c in message["tool_calls"]]}
        if message.get("tool_call_id"):
            message = {**message, "tool_call_id": f"x{message['tool_call_id']}"}
        rewritten.append(message)
    return rewritten


def tools_left_out(messages: Messages, dice: random.Random) -> Messages:
    return [
        {k: v for k, v in m.items() if k != "tool_calls"}
        for m in messages
        if m["role"] != "tool" and (m["content"] or not m.get("tool_calls"))
    ]


def turns_as_shown(messages: Messages, dice: random.Random) -> Messages:
    """The words of a call and of the answer after its result as one message, as shell-gpt keeps them."""
    rewritten: Messages = []
    for message in messages:
        if rewritten and rewritten[-1]["role"] == "tool" and message["role"] == "assistant" and len(rewritten) > 1:
            call = rewritten[-2]
            words = call["content"] or "" if call.get("tool_calls") else ""
            message = {**message, "content": f"{words}\n> @FunctionCall `look()`\n\n{message['content']}"}
        rewritten.append(message)
    return rewritten


def images_elided(messages: Messages, dice: random.Random) -> Messages:
    note = {"type": "text", "text": "[image]"}
    instead = [note] if dice.random() < 0.5 else []
    return [
        {**m, "content": [p for p in m["content"] if p["type"] == "text"] + instead}
        if isinstance(m["content"], list) and any(p["type"] == "image_url" for p in m["content"])
        else m
        for m in messages
    ]


def thoughts_added(messages: Messages, dice: random.Random) -> Messages:
    return [
        {**m, "content": f"<think>\nLet me see.\n</think>\n{m['content']}"} if m["role"] == "assistant" else m
        for m in messages
    ]


REWRITES: Final[dict[str, Rewrite]] = {
    "reminders": reminders_added,
    "oldest turns dropped": oldest_dropped,
    "first messages dropped": first_message_dropped,
    "compaction": compacted,
    "spaces": texts_by(lambda text: " ".join(text.split()), "user", "assistant"),
    "trimmed lines": texts_by(lambda text: "\n".join(line.rstrip() for line in text.split("\n")), "assistant"),
    "marks": texts_by(lambda text: re.sub(r"[*`]", "", text), "assistant"),
    "tool ids": ids_renamed,
    "no tools": tools_left_out,
    "turns as shown": turns_as_shown,
    "images": images_elided,
    "reasoning": thoughts_added,
}


@dataclass
class Counts:
    cases: int = 0
    became: Counter[str] = field(default_factory=Counter)
    wrong: list[dict[str, Any]] = field(default_factory=list)
    untold: list[dict[str, Any]] = field(default_factory=list)  # what a person could have told
    by_rewrite: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, outcome: str, rewrites: list[str]) -> None:
        self.cases += 1
        self.became[outcome] += 1
        for name in rewrites or ["none"]:
            self.by_rewrite.setdefault(name, Counter())[outcome] += 1


async def one_case(world: World, number: int, counts: Counts) -> None:
    """One command below one answer of one conversation, which its client has rewritten."""
    dice = world.dice
    talk = dice.choice(world.talks)
    place = dice.choice(list(talk.ids))
    names = [name for name in REWRITES if dice.random() < 0.2]
    history = talk.messages[: place + 1]
    for name in names:
        history = REWRITES[name](history, dice) or history
    system = talk.system if talk.live == "aider" or dice.random() < 0.7 else f"{talk.system}\nToday is {number}."
    headers = dict(talk.headers)
    if dice.random() < 0.1:
        headers.pop("x-rl-session", None)
        names.append("no session")
    files = AIDERS_FILES if talk.live == "aider" else []
    sent = [{"role": "system", "content": system}, *history, *files, {"role": "user", "content": f"/rl good {number}"}]
    reply = await _say(world.proxy, sent, headers)
    rated = await _rated(world.proxy, number)
    truth = talk.ids[place]
    case = {"talk": talk.messages[: place + 1], "sent": sent, "said": reply, "headers": headers, "rewrites": names}
    if rated is None:
        is_only = truth is not None and _is_only(world, talk, place)
        counts.add("cannot tell, and a person could" if is_only else "cannot tell", names)
        if is_only:
            counts.untold.append({"rewrites": names, "headers": headers, "sent": sent[1:][-4:], "said": reply[:80]})
    elif rated == truth:
        counts.add("right", names)
    elif truth is not None and _same_talk(world, talk, place, rated):
        counts.add("the newest of conversations that are the same from beginning to end", names)
    elif truth is None and _reads_the_same(world, talk, sent, rated):
        counts.add("one with the very same words, for one that is not captured", names)
    else:
        counts.add("wrong", names)
        counts.wrong.append({**case, "rated": rated, "truth": truth})


async def _say(proxy: Proxy, messages: Messages, headers: dict[str, str]) -> str:
    body = {"model": "fake", "messages": messages}
    async with proxy.http.post("/v1/chat/completions", json=body, headers=headers) as response:
        answer = await response.json()
    reply = str(answer["choices"][0]["message"]["content"])
    assert reply.startswith("rlproxy: "), reply
    return reply


async def _rated(proxy: Proxy, number: int) -> str | None:
    rows = await proxy.store._reader.rows("SELECT completion_id FROM ratings WHERE comment = ?", (str(number),))
    assert len(rows) <= 1
    return rows[0][0] if rows else None


def _answers(world: World, owner: str) -> list[tuple[Talk, int]]:
    return [(talk, place) for talk in world.talks if talk.owner == owner for place in talk.ids]


def _text(talk: Talk, place: int) -> str:
    return re.sub(r"\W", "", str(talk.messages[place]["content"])).casefold()


def _is_only(world: World, talk: Talk, place: int) -> bool:
    """Tell whether this person got such an answer in no other place: then a look through all answers finds it."""
    mine = _text(talk, place)
    return bool(mine) and sum(_text(*answer) == mine for answer in _answers(world, talk.owner)) == 1


def _place(world: World, owner: str, id: str) -> tuple[Talk, int]:
    return next((talk, place) for talk, place in _answers(world, owner) if talk.ids[place] == id)


def _words(messages: Messages) -> list[str]:
    return [_letters(text.text) for text in spoken_texts(messages)]


def _same_talk(world: World, talk: Talk, place: int, rated: str) -> bool:
    """The same asked and answered twice: docs/guides/agents.md says that the newest is meant."""
    rated_talk, rated_place = _place(world, talk.owner, rated)
    return _words(talk.messages[: place + 1]) == _words(rated_talk.messages[: rated_place + 1])


def _reads_the_same(world: World, talk: Talk, sent: Messages, rated: str) -> bool:
    """Tell whether what was sent, without a summary, is word for word the end of the rated answer's conversation.

    Where the answer on screen was not captured either, nothing that is known tells the two apart.
    """
    mine = _words(without_fillers(sent[1:-1], agent_of({}, sent)))  # type: ignore[arg-type]
    mine = [text for text in mine if text not in SUMMARIES]
    rated_talk, rated_place = _place(world, talk.owner, rated)
    return mine == _words(rated_talk.messages[: rated_place + 1])[-len(mine) :]


def _letters(text: str) -> str:
    return re.sub(r"\W", "", text.replace("[image]", "")).casefold()


SUMMARIES: Final = (_letters(SUMMARY), _letters(ACKNOWLEDGED))
