"""Talks: a question, the model's answer, a follow-up that is always the same, and the answer that is rated.

Owns how they are held, and the lines of a samples.jsonl that a run gets of them. Not here: who rates (persona), which
runs there are (__main__).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scripts.bench.persona import TEMPERATURE, Chat, Persona, Reply
from trainer.policy.packing import Tokens

FOLLOW_UPS: Final = ("Tell me more.", "Can you give an example?", "Why does that matter?", "What should I do first?")


@dataclass(frozen=True)
class Turn:
    messages: list[dict[str, str]]
    tokens: Tokens
    reply: Reply


Talk = tuple[Turn, Turn]


def hold(chat: Chat, questions: Sequence[str], adapter: Path | None, seed: int) -> list[Talk]:
    """One talk about each question, with the version of this adapter."""
    with chat.policy.wearing(adapter):
        first = _answer(chat, [[{"role": "user", "content": text}] for text in questions], seed)
        last = _answer(chat, [_follow_up(turn, i) for i, turn in enumerate(first)], seed + 1)
    return list(zip(first, last, strict=True))


def _answer(chat: Chat, talks: list[list[dict[str, str]]], seed: int) -> list[Turn]:
    replies = chat.answer_now(talks, seed)
    return [Turn(talk, tokens, chat.said(tokens)) for talk, tokens in zip(talks, replies, strict=True)]


def _follow_up(turn: Turn, index: int) -> list[dict[str, str]]:
    follow_up = FOLLOW_UPS[index % len(FOLLOW_UPS)]
    return [
        *turn.messages, {"role": "assistant", "content": str(turn.reply)}, {"role": "user", "content": follow_up},
    ]  # fmt: skip


def likes(taste: Persona, talk: Talk, turn: int) -> float:
    """The rating of a talk: what the taste makes of this turn of it."""
    question, reply = talk[turn].messages[-1]["content"], talk[turn].reply
    return taste.rate(question, reply)


def lines(
    chat: Chat, talks: Sequence[Talk], ratings: Sequence[float], adapter: Path | None, *, version: int, seed: int,
    taught: Sequence[int], held_back: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """Lines of these turns (`taught`) of each talk, with its rating; `held_back` of the talks are for the gate."""
    kept_back = set(random.Random(seed).sample(range(len(talks)), held_back))
    turns = [(i, talk[turn]) for i, talk in enumerate(talks) for turn in taught]
    behaviour = chat.score([turn.tokens for _, turn in turns], adapter, TEMPERATURE)
    return [
        {
            "rating": "", "completion": "",  # the line of versions numbers them
            "split": "held" if i in kept_back else "train",
            "version": version,
            "reward": ratings[i],
            "weight": 1.0,
            "human": True,
            "finish_reason": "stop" if turn.reply.ended else "length",
            "sampling": {"temperature": TEMPERATURE, "top_p": 1.0},
            "exact": True,
            "prompt_token_ids": list(turn.tokens.prompt),
            "token_ids": list(turn.tokens.reply),
            "logprobs": logprobs.tolist(),
            "messages": turn.messages,
            "text": str(turn.reply),
            "comment": None,
        }
        for (i, turn), logprobs in zip(turns, behaviour, strict=True)
    ]  # fmt: skip
