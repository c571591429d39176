"""Is the model that a server runs the one whose weights train? A pure comparison of what both say.

Owns what is asked of both, the bounds and the sentences. Greedy replies of the server are scored under the weights,
token by token: quantisation moves their log-probs a little, another model a lot. Not here: asking the server (match),
the weights (trainer.probe), whether rated replies are what this model says (trainer.typical).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Literal, NamedTuple

from proxy.backends.base import Told

Chat = list[dict[str, Any]]

# What tokenisers and templates differ in: digits, accents, other scripts, emoji, spaces of code, and who speaks when.
CHATS: Final[tuple[Chat, ...]] = (
    [{"role": "user", "content": "Say again: 3.14159, 2026-11-21, 1,000,000; naïve café, Größe, 日本語, مرحبا, 🙂."}],
    [{"role": "user", "content": "What is it?\n\n```python\nfor i in range(3):\n\tprint(f'{i:>4}  {i**2}')\n```\n"}],
    [
        {"role": "user", "content": "I need a story."},
        {"role": "assistant", "content": "What about?"},
        {"role": "user", "content": "A lighthouse, and somebody who doesn't like the sea. Begin!"},
    ],
)
TOKENS: Final = 32  # of each reply

# Nats a token, measured on SmolLM2-135M, and a model so small loses most by quantisation (docs/backends.md): Q8_0 is
# 0.02 away, Q4_0 0.39, noise of a tenth of each weight 0.54, 3 bits 2. trainer.typical counts 0.5 as noise, too.
APART: Final = 0.5  # mean |Δ log-prob|, where the server tells them
REGRET: Final = 0.4  # else: by how much the weights like another token better than its greedy one (Q4_0: 0.26)
SIZE: Final = 0.05  # share by which counts of parameters may differ: not everybody counts tied embeddings once
PLACEHOLDER: Final = -1000.0  # and below: a server's word for "no log-prob"
SHOWN: Final = 24  # characters of a difference


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said to one of CHATS; None: it does not tell."""

    text: str
    ended: bool
    prompt_ids: Sequence[int] | None = None
    reply_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    prompt_tokens: int | None = None


class Verdict(NamedTuple):
    state: Literal["same", "other", "unknown"]
    line: str
    apart: float | None = None
    regret: float | None = None


def compare(told: Told, answers: Sequence[Answer], found: Mapping[str, Any]) -> Verdict:
    """`found` is what trainer.probe says of the weights and of these answers."""
    read = found["conversations"]
    apart, regret = _apart(answers, read), _regret(read)
    why = _kind(told, found) or _template(answers, found) or _log_probs(apart, regret, _counts(answers, read))
    if why is not None:
        return Verdict("other", f"the server does not run what trains: {why}", apart, regret)
    checked = [name for name, known in _checked(told, answers).items() if known]
    if regret is None:
        why = found["unscored"] or "its answers have no text and no token ids"
        so_far = f"{' and '.join(checked)} as in the weights, but " if checked else ""
        return Verdict("unknown", f"{so_far}log-probs could not be compared: {why}")
    by = (
        f"log-probs {apart:.2g} nats a token apart"
        if apart is not None
        else f"greedy replies, regret {regret:.2g} nats"
    )
    return Verdict("same", f"the server runs what trains: {', '.join([*checked, by])}", apart, regret)


def _checked(told: Told, answers: Sequence[Answer]) -> dict[str, bool]:
    return {
        "architecture": told.architecture is not None or told.parameters is not None,
        "vocabulary": told.vocabulary is not None,
        "chat template": any(answer.prompt_ids for answer in answers),
    }


def _kind(told: Told, found: Mapping[str, Any]) -> str | None:
    if told.architecture is not None and told.architecture != found["architecture"]:
        return f"it is a {told.architecture}, the weights are a {found['architecture']}"
    if told.vocabulary is not None and told.vocabulary not in (found["vocabulary"], found["tokens"]):
        return f"it knows {told.vocabulary:,} tokens, the weights {found['vocabulary']:,}"
    if told.width is not None and found["width"] is not None and told.width != found["width"]:
        return f"its hidden states have {told.width:,} numbers, those of the weights {found['width']:,}"
    ours = found["parameters"]
    if told.parameters is not None and abs(told.parameters - ours) > SIZE * ours:
        return f"it has {told.parameters / 1e6:,.0f} million parameters, the weights {ours / 1e6:,.0f}"
    return None


def _template(answers: Sequence[Answer], found: Mapping[str, Any]) -> str | None:
    for answer, read in zip(answers, found["conversations"], strict=True):
        if not answer.prompt_ids or list(answer.prompt_ids) == read["prompt_ids"]:
            continue
        if read["theirs"] is None:
            return f"it reads a prompt as token {max(answer.prompt_ids)}, and the weights have {found['tokens']:,}"
        if read["theirs"] == read["rendered"]:
            return "it cuts the same text into other tokens (another tokeniser)"
        at = _first_difference(read["theirs"], read["rendered"])
        theirs, ours = (text[at : at + SHOWN] for text in (read["theirs"], read["rendered"]))
        return f"it has another chat template (at character {at} {theirs!r}, in the weights {ours!r})"
    return None


def _first_difference(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _log_probs(apart: float | None, regret: float | None, counts: str) -> str | None:
    other = "another model, another chat template, or it wears an adapter of its own"
    if apart is not None and apart > APART:
        return f"its log-probs are {apart:.2f} nats a token off, {APART:g} may be quantisation ({counts}{other})"
    if apart is None and regret is not None and regret > REGRET:
        return (
            f"the weights would say something else than it does by {regret:.2f} nats a token, "
            f"{REGRET:g} may be quantisation ({counts}{other})"
        )
    return None


def _counts(answers: Sequence[Answer], read: Sequence[Mapping[str, Any]]) -> str:
    """A hint where a server only says how many tokens it read. Alone it decides nothing: some count what was cached."""
    for answer, each in zip(answers, read, strict=True):
        if answer.prompt_tokens is not None and answer.prompt_tokens != len(each["prompt_ids"]):
            return f"it reads {answer.prompt_tokens} tokens where the weights have {len(each['prompt_ids'])}; "
    return ""


def _apart(answers: Sequence[Answer], read: Sequence[Mapping[str, Any]]) -> float | None:
    pairs = [_aligned(answer, each["logprobs"]) for answer, each in zip(answers, read, strict=True)]
    away = [abs(theirs - ours) for theirs, ours in chain.from_iterable(pairs)]
    return sum(away) / len(away) if away else None


def _aligned(answer: Answer, ours: Sequence[float]) -> list[tuple[float, float]]:
    """Log-probs of the same tokens. A server may leave the end token out; where else their numbers differ, the text
    was not cut as the server had it, and nothing is compared."""
    theirs = answer.logprobs or ()
    short = len(ours) - len(theirs)
    if not theirs or short < 0 or short > (answer.ended or answer.reply_ids is not None) or min(theirs) < PLACEHOLDER:
        return []
    return list(zip(theirs, ours, strict=False))


def _regret(read: Sequence[Mapping[str, Any]]) -> float | None:
    lost = [best - own for each in read for best, own in zip(each["best"], each["logprobs"], strict=True)]
    return sum(lost) / len(lost) if lost else None
