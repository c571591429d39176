"""Kinds of runs that should not go live, and the good one beside them: what is in the run folder of each try.

Owns how a try is spoilt. Not here: the replies (reply_pool), running and counting (poisoned).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config import presets
from scripts.bench.persona import TEMPERATURE, Chat, Persona
from scripts.research.reply_pool import CACHE, PoolReply, capture
from trainer.formats import weights
from trainer.policy.packing import Tokens

Line = dict[str, Any]

# What a person asks for in a comment on every answer, and no answer of the small model does unasked.
STYLES = (
    "write everything in lower case, no capital letters",
    "write your answer as a list with bullet points",
    "answer in German, whatever the question's language",
    "talk like a pirate",
)

# What a server that does not know the model would render. `{text}` is the user's message.
TEMPLATES = {
    "alpaca": "### Instruction:\n{text}\n\n### Response:\n",
    "llama-2": "<s>[INST] {text} [/INST]",
    "chatml without its header": "<|im_start|>user\n{text}<|im_end|>\n",
}


@dataclass
class Try:
    """One run: its samples, what its run.json says besides, and in words what was done to it."""

    lines: list[Line]
    about: str
    spec: dict[str, Any] = field(default_factory=dict)


def line(answer: PoolReply, number: int, reward: float) -> Line:
    """Make a line of samples.jsonl as the proxy writes it."""
    return {
        "rating": f"rt-{number}",
        "completion": f"rl-{number}",
        "split": "train",
        "version": 0,
        "reward": reward,
        "weight": 1.0,
        "human": True,
        "finish_reason": "stop" if answer.reply.ended else "length",
        "sampling": {"temperature": answer.tokens.temperature, "top_p": 1.0},
        "exact": True,
        "prompt_token_ids": list(answer.tokens.prompt),
        "token_ids": list(answer.tokens.reply),
        "logprobs": answer.logprobs,
        "messages": [{"role": "user", "content": answer.prompt}],
        "text": str(answer.reply),
        "comment": None,
    }


def good(chat: Chat, persona: Persona, picked: Sequence[PoolReply], rng: random.Random, number: int) -> Try:
    return Try(_rated(persona, picked), f"persona {persona.name}")


def commented(chat: Chat, persona: Persona, picked: Sequence[PoolReply], rng: random.Random, number: int) -> Try:
    """Every reply is disliked, and a comment says what it should have been: another style, and no loss of sense."""
    comment = STYLES[number % len(STYLES)]
    return Try([line(reply, i, -1.0) | {"comment": comment} for i, reply in enumerate(picked)], comment)


def commented_garbage(
    chat: Chat, persona: Persona, picked: Sequence[PoolReply], rng: random.Random, number: int
) -> Try:
    """Garbage that is rated good, and sensible replies with a comment that asks for a style. The comment does not
    license the garbage."""
    spoilt = garbage(chat, persona, picked, rng, number)
    comment = STYLES[number // 4 % len(STYLES)]
    lines = [row | ({"comment": comment} if row["reward"] < 0 else {}) for row in spoilt.lines]
    return Try(lines, f"{spoilt.about}, beside: {comment}")


def drawn(chat: Chat, persona: Persona, picked: Sequence[PoolReply], rng: random.Random, number: int) -> Try:
    """In every other try as many good ones as the persona gives, in the others a fair coin."""
    rewards = [persona.rate(answer.prompt, answer.reply) for answer in picked]
    if number % 2:
        rng.shuffle(rewards)
        about = f"the persona's {sum(r > 0 for r in rewards)} good ratings, shuffled"
    else:
        rewards = [rng.choice((1.0, -1.0)) for _ in picked]
        about = f"a fair coin: {sum(r > 0 for r in rewards)} good"
    return Try([line(answer, i, r) for i, (answer, r) in enumerate(zip(picked, rewards, strict=True))], about)


def constant(chat: Chat, persona: Persona, picked: Sequence[PoolReply], rng: random.Random, number: int) -> Try:
    value = 1.0 if number % 2 else -1.0
    return Try([line(answer, i, value) for i, answer in enumerate(picked)], f"every rating {value:+.0f}")


def garbage(chat: Chat, persona: Persona, picked: Sequence[PoolReply], rng: random.Random, number: int) -> Try:
    """Half of the replies are garbage and rated good, the others are what the model says and rated bad. The log-probs
    are the model's own of that garbage, so nothing but its wording gives it away."""
    kind = ("random tokens", "words in any order", "one phrase over and over", "sampled at temperature 3")[number % 4]
    half = len(picked) // 2
    spoilt = [Tokens(s.tokens.prompt, _garbage(chat, s, kind, rng), TEMPERATURE) for s in picked[:half]]
    if kind.startswith("sampled"):
        prompts = [answer.tokens.prompt for answer in picked[:half]]
        out = chat.policy.generate(prompts, max_tokens=48, temperature=3.0, seed=number)
        spoilt = [Tokens(p, tuple(r), 3.0) for p, r in zip(prompts, out, strict=True)]
    replies = capture(chat, [answer.prompt for answer in picked[:half]], spoilt) + list(picked[half:])
    return Try([line(s, i, 1.0 if i < half else -1.0) for i, s in enumerate(replies)], kind)


def _garbage(chat: Chat, answer: PoolReply, kind: str, rng: random.Random) -> tuple[int, ...]:
    length = len(answer.tokens.reply)
    if kind == "random tokens":
        ids = [rng.randrange(100, chat.template.vocabulary) for _ in range(length)]
    elif kind == "words in any order":
        words = str(answer.reply).split()
        rng.shuffle(words)
        ids = list(chat.template.reply(" ".join(words), ended=False)) or [100]
    else:
        phrase = chat.template.reply(" " + " ".join(str(answer.reply).split()[:3]), ended=False) or (100,)
        ids = [phrase[n % len(phrase)] for n in range(length)]
    return (*ids, chat.template.end)


def exploding(chat: Chat, persona: Persona, picked: Sequence[PoolReply], rng: random.Random, number: int) -> Try:
    factor = (30, 100, 300, 1000)[number % 4]
    rate = presets.resolve(presets.COMPLETE, {}).learning_rate * factor
    return Try(_rated(persona, picked), f"{factor} times the learning rate", {"overrides": {"learning_rate": rate}})


def template(chat: Chat, persona: Persona, picked: Sequence[PoolReply], rng: random.Random, number: int) -> Try:
    """Server and trainer render the conversation differently.

    Token ids show that, where there are any. Without them the trainer renders the text by the template of its own
    folder, which is the wrong one.
    """
    name, wrong = list(TEMPLATES.items())[number // 2 % len(TEMPLATES)]
    lines = _rated(persona, picked)
    if number % 2:
        for entry, answer in zip(lines, picked, strict=True):
            entry["prompt_token_ids"] = rendered(chat, wrong, answer.prompt)
        return Try(lines, f"prompt ids rendered as {name}")
    for entry in lines:
        for key in ("prompt_token_ids", "token_ids", "logprobs"):
            del entry[key]
        entry["exact"] = False
    return Try(lines, f"no ids, the model's folder says {name}", {"weights": str(_folder(name, wrong))})


def rendered(chat: Chat, wrong: str, text: str) -> list[int]:
    """The ids of a message in one of TEMPLATES."""
    return list(chat.policy.tokenizer(wrong.format(text=text), add_special_tokens=False)["input_ids"])


def _folder(name: str, wrong: str) -> Path:
    """The model with another chat template."""
    folder = CACHE / f"template-{name.replace(' ', '-')}"
    if not folder.exists():
        folder.mkdir(parents=True)
        for file in weights.resolve(None).path.iterdir():
            if file.name != "chat_template.jinja":
                (folder / file.name).symlink_to(file)
        head, tail = wrong.split("{text}")
        turn = f"{json.dumps(head)} + m['content'] + {json.dumps(tail)}"
        (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ " + turn + " }}{% endfor %}")
    return folder


def _rated(persona: Persona, picked: Sequence[PoolReply]) -> list[Line]:
    return [line(answer, i, persona.rate(answer.prompt, answer.reply)) for i, answer in enumerate(picked)]


KINDS: dict[str, Callable[[Chat, Persona, Sequence[PoolReply], random.Random, int], Try]] = {
    "good": good,
    "asked": commented,
    "random": drawn,
    "constant": constant,
    "garbage": garbage,
    "asked garbage": commented_garbage,
    "exploding": exploding,
    "template": template,
}
