"""Main or side: how often rlproxy takes one for the other, by recorded clients and by what people write.

    python -m scripts.clients.side_turns [--seed 1] [--talks 40] [--json FILE]

Recorded clients (tests/clients/recorded) are played back. Each turn that a person saw must be a main turn, each that a
client made for itself a side turn. Then people talk whose words or settings look like those of a client. They ask for
summaries and reviews, in short and at length. They answer at once, paste transcripts and commands, and change their
tools and limits. All of their turns are main turns. Writes benchmarks/side_turns.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import structlog

from scripts.clients.replay import ask, moved_clock, proxy_for_replay, recordings, replay
from scripts.harness.circumstances import ROOT, circumstances

TOOLS: Final = [
    {"type": "function", "function": {"name": name, "parameters": {}}} for name in ("bash", "read_file", "edit", "task")
]
AGENT: Final = "You are a coding agent.\n" + "\n".join(f"Rule {number} of the house." for number in range(30))
CALL: Final = "Find out where the session tokens are checked, and list the files."
# Counted apart: nothing tells these turns of a person from those of an agent. `no-tools` takes the first for a side
# turn, `own-task` the others.
NO_TOOLS: Final = "no tools any more, in a conversation that has used some"
AT_ONCE: Final = "asks for a summary at length and at once: it was pasted within 3 seconds"
OTHER_LIMIT: Final = "asks for a summary at length, under another limit"
AGENT_KINDS: Final = (NO_TOOLS, AT_ONCE, OTHER_LIMIT)
# What people ask that is near to what clients ask.
SHORT: Final = (
    "Summarize our conversation so far.", "Please review the conversation above.", "Give this chat a title.",
    "What did we decide in this session?", "Recap, please.", "Compact summary of this discussion?",
    "Remember this conversation for later: I prefer tabs.", "Extract the action items from our chat.",
    "Review the session handling in auth.py.", "Write a summary of the transcript in notes.md.",
)  # fmt: skip
LONG: Final = (
    "Please write a summary of our conversation so far into NOTES.md. I want the goals at the top, then what we "
    "decided and why, then a list of the files that we have touched. At the end I want the open questions, so that my "
    "colleague can go on tomorrow without asking me anything.",
    "Review the session middleware in auth.py: I think that tokens are refreshed too late, so the history of requests "
    "is lost. Look at how the context is kept between the requests. Tell "
    "me whether a title or a name of the session would help to find it again in the logs.",
    "I will paste the transcript of a support chat below. Summarize the discussion in five sentences, extract all "
    "order numbers, and say whether the customer was content in the end.\n\nAgent: Good morning, how can I help you?\n"
    "Customer: My order 1234 has not arrived.\nAgent: I am sorry. I will send it again.\nCustomer: Thank you!",
)  # fmt: skip


class Turn(NamedTuple):
    """The next question of a person."""

    kind: str
    text: str
    after_s: float = 20.0
    members: Mapping[str, Any] = MappingProxyType({})
    opens_conversation: bool = False  # in a new conversation
    whole: bool = False  # the conversation so far comes as one text, too


def ordinary() -> list[str]:
    lines = (ROOT / "scripts/bench/prompts.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def turns(chance: random.Random, prompts: list[str], exchanges: list[tuple[str, str]]) -> Iterator[Turn]:
    """One of each kind, after what was said."""
    plain = chance.choice(prompts)
    question, answer = exchanges[-1]
    yield Turn("an ordinary question", plain)
    yield Turn("an ordinary question, at once", plain, 0.3)
    yield Turn("asks for a summary, in short", chance.choice(SHORT))
    yield Turn("asks for a summary, in short and at once", chance.choice(SHORT), 0.3)
    yield Turn("asks for a summary at length", chance.choice(LONG))
    yield Turn("asks at length and at once: it was written before", LONG[1], 0.3)
    yield Turn("other limit, ordinary", plain, members={"max_tokens": chance.choice((500, 4096))})
    yield Turn(NO_TOOLS, plain, members={"tools": None})
    yield Turn(AT_ONCE, LONG[0], 0.3)
    yield Turn(OTHER_LIMIT, LONG[0], members={"max_tokens": 4096})
    yield Turn("other tools and a summary in short", chance.choice(SHORT), members={"tools": TOOLS[:2]})
    yield Turn("a summary at length in a new conversation", chance.choice(LONG), opens_conversation=True)
    yield Turn("the same question in a new conversation", question, opens_conversation=True)
    yield Turn("a command of a tool, pasted into a new conversation", CALL, opens_conversation=True)
    pasted = f"User: {question}\nAssistant: {answer}\n\nWhy did you say that?"
    yield Turn("a transcript, pasted into a new conversation", pasted, opens_conversation=True)
    yield Turn(
        "a transcript with a command, pasted",
        f"User: rl:good\nAssistant: rlproxy: rated good.\n\n{plain}",
        opens_conversation=True,
    )
    yield Turn("all in one text, as a program sends it", plain, opens_conversation=True, whole=True)
    yield Turn("all in one text, the same question again", question, opens_conversation=True, whole=True)


async def talk(seed: int, prompts: list[str], counts: dict[str, Counter[str]], wrong: list[dict[str, Any]]) -> None:
    chance = random.Random(seed)
    system: list[dict[str, Any]] = [{"role": "system", "content": AGENT}]
    with moved_clock() as clock:
        async with proxy_for_replay() as proxy:
            history = list(system)
            exchanges: list[tuple[str, str]] = []
            usual: dict[str, Any] = {"model": "fake", "stream": True, "tools": TOOLS}
            for number, opening in enumerate(chance.sample(prompts, 3)):
                clock.ahead += 20
                history.append({"role": "user", "content": opening})
                reply: dict[str, Any] = {"role": "assistant", "content": f"It is {seed}, and also {number}."}
                call = {"id": "call-1", "type": "function"}
                call["function"] = {"name": "task", "arguments": json.dumps({"prompt": CALL})}  # type: ignore[assignment]
                calling = {**reply, "tool_calls": [call]}
                await ask(proxy, {**usual, "messages": history}, {}, calling)
                history += [calling, {"role": "tool", "tool_call_id": "call-1", "content": "a.py"}]
                await ask(proxy, {**usual, "messages": history}, {}, reply)
                history.append(reply)
                exchanges.append((opening, reply["content"]))
            for number, turn in enumerate(turns(chance, prompts, exchanges)):
                clock.ahead += max(turn.after_s, 3)
                talked = "".join(f"User: {question}\nAssistant: {answer}\n" for question, answer in exchanges)
                text = f"{talked}User: {turn.text}\nAssistant:" if turn.whole else turn.text
                if turn.after_s < 3:  # there is an answer that has just ended
                    history.append({"role": "user", "content": chance.choice(prompts)})
                    reply = {"role": "assistant", "content": f"It is so in {seed}, at {number}."}
                    await ask(proxy, {**usual, "messages": history}, {}, reply)
                    history.append(reply)
                    clock.ahead += turn.after_s
                context = system if turn.opens_conversation else history
                body = {**usual, **turn.members, "messages": [*context, {"role": "user", "content": text}]}
                id = await ask(proxy, body, {}, {"content": f"So be it, {seed} and {number}."})
                row = await proxy.store.completions.get(id or "")
                assert row is not None
                counts[turn.kind][row.new.turn] += 1
                if row.new.turn != "main" and turn.kind not in AGENT_KINDS:
                    wrong.append({"kind": turn.kind, "rule": row.new.turn_rule, "text": text[:200]})


async def clients() -> dict[str, Any]:
    by_client: dict[str, Any] = {}
    for name, steps in recordings().items():
        played = await replay(steps)
        counts = Counter(f"{turn.expected} as {turn.turn}" for turn in played)
        rules = Counter(turn.rule for turn in played if turn.turn == "side")
        recorded = Counter(
            step["rule"].split()[0] + " as side" for step in steps if step["turn"] == "side" and "rule" in step
        )
        by_client[name] = {
            "main": sum(turn.expected == "main" for turn in played),
            "side": sum(turn.expected == "side" for turn in played),
            "false_side": counts["main as side"],
            "false_main": counts["side as main"],
            "rules": dict(rules),
            "when_recorded": dict(recorded),
        }
    return by_client


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--talks", type=int, default=40)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/side_turns.json")
    arguments = parser.parse_args()
    structlog.configure(processors=[lambda *_: (_ for _ in ()).throw(structlog.DropEvent)])
    prompts, people, wrong = ordinary(), defaultdict[str, Counter[str]](Counter), list[dict[str, Any]]()
    by_client = asyncio.run(clients())
    for seed in range(arguments.seed, arguments.seed + arguments.talks):
        asyncio.run(talk(seed, prompts, people, wrong))
    report = {
        **circumstances(),
        "command": f"python -m scripts.clients.side_turns --seed {arguments.seed} --talks {arguments.talks}",
        "clients": by_client,
        "people": {kind: dict(counts) for kind, counts in people.items() if kind not in AGENT_KINDS},
        "people_who_write_as_agents": {kind: dict(people[kind]) for kind in AGENT_KINDS},
        "false_side": sum(row["false_side"] for row in by_client.values()) + len(wrong),
        "false_main": sum(row["false_main"] for row in by_client.values()),
        "main": sum(row["main"] for row in by_client.values())
        + sum(counts.total() for kind, counts in people.items() if kind not in AGENT_KINDS),
        "side": sum(row["side"] for row in by_client.values()),
        "wrong": wrong[:50],
    }
    arguments.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps({key: report[key] for key in ("main", "side", "false_side", "false_main")}, indent=1))
    return 1 if report["false_side"] or report["false_main"] else 0


if __name__ == "__main__":
    sys.exit(main())
