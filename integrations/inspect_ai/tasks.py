"""The tasks of attempts.py: their questions, the turns of an attempt, and what it is worth.

Three are of reasoning-gym and take one turn. `two_turn` is scripted: only the first of two turns counts. In
`calculator` a tool is called in JSON, and its result comes back before the answer.
"""

import json
import random
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import reasoning_gym
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageUser
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import generate, solver


class Task(NamedTuple):
    draw: Callable[[int, int], Iterable[Sample]]  # so many, by a seed
    solver: Any
    marks: Callable[[list[str], str], dict[str, bool]]  # of the turns' replies and the target; the first is success
    tokens: int  # of a turn


FIRST = re.compile(r"-?\d+")
SUM = re.compile(r"\s*(-?\d+)\s*([+-])\s*(-?\d+)\s*")
WORDS = [
    "apple", "bread", "candle", "desk", "eagle", "forest", "garden", "hammer", "island", "jacket", "kettle", "lemon",
    "mirror", "needle", "ocean", "pencil", "river", "silver", "table", "violin", "window", "yellow", "zebra", "button",
]  # fmt: skip


def samples(task: str, count: int, seed: int, without: frozenset[str] = frozenset()) -> list[Sample]:
    """Different questions, none of them among `without`."""
    found: dict[str, Sample] = {}
    for one in TASKS[task].draw(40 * count, seed):
        if asked(one) not in without and len(found) < count:
            found.setdefault(asked(one), one)
    return list(found.values())


def asked(sample: Sample) -> str:
    """The question of a sample, without examples before it."""
    return sample.input if isinstance(sample.input, str) else sample.input[-1].text


@scorer(metrics=[accuracy()])
def reward(task: str):
    """The mean of what was done right, each told in the metadata."""

    async def score(state, target):
        replies = [one.text for one in state.messages if one.source == "generate"]
        marks = TASKS[task].marks(replies, target.text)
        return Score(value=sum(marks.values()) / len(marks), metadata={name: float(on) for name, on in marks.items()})

    return score


# One turn, of reasoning-gym


def one_turn(name: str, **given: int) -> Task:
    def draw(size: int, seed: int) -> Iterable[Sample]:
        for one in reasoning_gym.create_dataset(name, size=size, seed=seed, **given):
            yield Sample(input=one["question"], target=str(one["answer"]))

    return Task(draw, generate, first_integer, 10)


def first_integer(replies: list[str], target: str) -> dict[str, bool]:
    found = FIRST.search(replies[0])
    return {"right": found is not None and found[0] == target}


# Two turns, of which the first counts


def choice(dice: random.Random) -> Sample:
    """The last word named is the right one, and nobody says so. The example before it chooses at random."""

    def ask() -> tuple[ChatMessageUser, list[str]]:
        named = dice.sample(WORDS, 4)
        return ChatMessageUser(content=f"Choose one: {', '.join(named[:3])} or {named[3]}?"), named

    example, before = ask()
    now, named = ask()
    return Sample(input=[example, ChatMessageAssistant(content=dice.choice(before)), now], target=named[-1])


@solver
def two_turns():
    async def solve(state, generate):
        state = await generate(state)
        state.messages.append(ChatMessageUser(content="And why?"))
        return await generate(state)

    return solve


def first_word(replies: list[str], target: str) -> dict[str, bool]:
    return {"right": re.match(rf"\W*{target}\b", replies[0], re.IGNORECASE) is not None}


# A call of a tool, then the answer

RULES = 'You have a calculator. Call it in JSON: {"calculator": "3 + 4"}'


def sum_of_two(dice: random.Random) -> Sample:
    a, b, sign = dice.randint(100, 999), dice.randint(100, 999), dice.choice("+-")
    example = [
        ChatMessageUser(content="What is 12 + 30?"),
        ChatMessageAssistant(content='{"calculator": "12 + 30"}'),
        ChatMessageUser(content="The calculator says 42."),
        ChatMessageAssistant(content="42"),
    ]
    now = ChatMessageUser(content=f"What is {a} {sign} {b}?")
    return Sample(input=[ChatMessageSystem(content=RULES), *example, now], target=str(a + b if sign == "+" else a - b))


@solver
def calculator():
    async def solve(state, generate):
        state = await generate(state)
        result = called(state.output.completion)
        said = "That is not a call." if result is None else f"The calculator says {result}."
        state.messages.append(ChatMessageUser(content=said))
        return await generate(state)

    return solve


def called(reply: str) -> int | None:
    """The result of the call in this reply, or None if it has no valid call."""
    try:
        call = json.loads(reply)
    except ValueError:
        return None
    if not isinstance(call, dict) or list(call) != ["calculator"] or not isinstance(call["calculator"], str):
        return None
    if (found := SUM.fullmatch(call["calculator"])) is None:
        return None
    a, sign, b = found.groups()
    return int(a) + int(b) if sign == "+" else int(a) - int(b)


def call_then_answer(replies: list[str], target: str) -> dict[str, bool]:
    return {"valid call": called(replies[0]) is not None, "right answer": first_integer(replies[1:], target)["right"]}


def scripted(ask: Callable[[random.Random], Sample], *rest: Any) -> Task:
    def draw(size: int, seed: int) -> Iterable[Sample]:
        dice = random.Random(seed)
        return (ask(dice) for _ in range(size))

    return Task(draw, *rest)


TASKS = {
    "chain_sum": one_turn("chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=1),
    "count_bits": one_turn("count_bits", min_n=1, max_n=63),
    "gcd": one_turn("gcd", max_numbers=2, max_value=20),
    "two_turn": scripted(choice, two_turns, first_word, 8),
    "calculator": scripted(sum_of_two, calculator, call_then_answer, 20),
}
