"""Is the model that a server runs the one whose weights train? A pure comparison of what both say.

Owns what is asked of both, the bounds and the sentences. Greedy replies of the server are scored under the weights,
token by token, after the prompt that the server read. Quantisation moves their log-probs a little, another model a lot.
Another chat template does not stop runs where the server tells how it renders, since runs train on that. Where it does
not, the number of tokens that it read decides. Not here: asking the server (weights_check), the weights
(trainer.probe), whether rated replies are what this model says (trainer.lessons.reply_checks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Literal, NamedTuple

from proxy.backends.base import ModelDescription

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

# Nats a token, measured on SmolLM2-135M, and a model so small loses most by quantisation (docs/reference/backends.md):
# Q8_0 is 0.02 away, Q4_0 0.39, noise of a tenth of each weight 0.54, 3 bits 2. trainer.lessons.reply_checks counts 0.5
# as noise, too.
APART: Final = 0.5  # mean |Δ log-prob|, where the server tells them
REGRET: Final = 0.4  # else: by how much the weights like another token better than its greedy one (Q4_0: 0.26)
SIZE: Final = 0.05  # share by which counts of parameters may differ: not everybody counts tied embeddings once
PLACEHOLDER: Final = -1000.0  # and below: a server's word for "no log-prob"
SHOWN: Final = 24  # characters of a difference
OTHER: Final = "the server does not run what trains: "


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The server's answer to one of CHATS; None: it does not tell."""

    text: str
    ended: bool
    prompt_ids: Sequence[int] | None = None
    prompt_text: str | None = None
    reply_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    prompt_tokens: int | None = None


class Rendering(NamedTuple):
    """Judge the prompts alone: how runs will come to the prompt that the server read."""

    known: bool  # False: nobody can tell
    line: str
    server: str | None = None  # the first prompt that differs, as the server renders it
    weights: str | None = None  # and as the weights' own template does
    read: int | None = None  # how many tokens the server says that it read there
    made: int | None = None  # and how many the weights' template makes


class WeightsVerdict(NamedTuple):
    state: Literal["same", "other", "unknown", "unasked"]
    line: str
    apart: float | None = None
    regret: float | None = None
    rendering: Mapping[str, Any] | None = None  # a Rendering's members; None: prompts are not why, or nobody looked
    scored: bool = True  # False: prompts alone were compared


def compare(
    told: ModelDescription, answers: Sequence[ProbeAnswer], found: Mapping[str, Any], *, scored: bool = True
) -> WeightsVerdict:
    """`found` is what trainer.probe says of the weights and of these answers."""
    verdict = _compare(told, answers, found) if scored else _prompts_alone(told, answers, found)
    return verdict._replace(scored=scored)


def _prompts_alone(told: ModelDescription, answers: Sequence[ProbeAnswer], found: Mapping[str, Any]) -> WeightsVerdict:
    if (wrong := _wrong(told, answers, found)) is not None:
        return wrong
    rendering = _rendering(answers, found)
    checked = [name for name, known in _checked(told, found["conversations"]).items() if known]
    so_far = f"{' and '.join(checked)} as in the weights; " if checked else ""
    line = f"{so_far}log-probs are compared when the first rating has come"
    return WeightsVerdict("unasked", line, rendering=rendering._asdict())


def _compare(told: ModelDescription, answers: Sequence[ProbeAnswer], found: Mapping[str, Any]) -> WeightsVerdict:
    read = found["conversations"]
    apart, regret = _apart(answers, read), _regret(read)
    if (wrong := _wrong(told, answers, found)) is not None:
        return wrong._replace(apart=apart, regret=regret)
    rendering = _rendering(answers, found)
    if (why := _log_probs(apart, regret)) is not None:
        return WeightsVerdict("other", f"{OTHER}{why}", apart, regret, rendering._asdict())
    checked = [name for name, known in _checked(told, read).items() if known]
    if regret is None:
        why = found["unscored"] or "its answers have no text and no token ids"
        so_far = f"{' and '.join(checked)} as in the weights, but " if checked else ""
        line = f"{so_far}log-probs could not be compared: {why}"
        return WeightsVerdict("unknown", line, apart, regret, rendering._asdict())
    by = (
        f"log-probs {apart:.2g} nats a token apart"
        if apart is not None
        else f"greedy replies, regret {regret:.2g} nats"
    )
    line = f"the server runs what trains: {', '.join([*checked, by])}"
    return WeightsVerdict("same", line, apart, regret, rendering._asdict())


def _wrong(told: ModelDescription, answers: Sequence[ProbeAnswer], found: Mapping[str, Any]) -> WeightsVerdict | None:
    """Find differences that need no weights to be seen."""
    if (why := _kind(told, found) or _tokeniser(answers, found)) is not None:
        return WeightsVerdict("other", f"{OTHER}{why}")
    if (why := _misread(answers, found)) is not None:
        return WeightsVerdict(
            "other", f"{OTHER}{why}", rendering=_side_by_side(answers, found, known=False, line=why)._asdict()
        )
    return None


def _checked(told: ModelDescription, read: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    return {
        "architecture": told.architecture is not None or told.parameters is not None,
        "vocabulary": told.vocabulary is not None,
        "chat template": all(each["theirs"] == each["rendered"] for each in read),
    }


def _kind(told: ModelDescription, found: Mapping[str, Any]) -> str | None:
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


def _tokeniser(answers: Sequence[ProbeAnswer], found: Mapping[str, Any]) -> str | None:
    for answer, read in zip(answers, found["conversations"], strict=True):
        if not answer.prompt_ids or list(answer.prompt_ids) == read["prompt_ids"]:
            continue
        if read["theirs"] is None:
            return f"it reads a prompt as token {max(answer.prompt_ids)}, and the weights have {found['tokens']:,}"
        if read["theirs"] == read["rendered"]:
            return "it cuts the same text into other tokens (another tokeniser)"
    return None


def _misread(answers: Sequence[ProbeAnswer], found: Mapping[str, Any]) -> str | None:
    """Why a run would refuse its prompts: what the server counted is not what anybody renders."""
    for answer, read in zip(answers, found["conversations"], strict=True):
        theirs, count = read["their_tokens"], answer.prompt_tokens
        if theirs is not None and count is not None and count != theirs:
            return (
                f"it says that it read {count} tokens, and the prompt that it says it renders has {theirs}: its "
                "chat template, its context or its tokeniser is another one"
            )
    if any(read["their_tokens"] is not None for read in found["conversations"]):
        return None
    if found["wrong"] is not None:
        return f"{found['wrong']}, and this server does not tell how it renders: nothing can train on what it reads"
    if found["explained"] < found["known"]:
        return (
            f"{found['way']} explains how many tokens it read in {found['explained']} of {found['known']} prompts only "
            "(another chat template)"
        )
    return None


def _rendering(answers: Sequence[ProbeAnswer], found: Mapping[str, Any]) -> Rendering:
    read = found["conversations"]
    if all(each["theirs"] is not None for each in read):
        for each in read:
            if each["theirs"] != each["rendered"]:
                at = _first_difference(each["theirs"], each["rendered"])
                theirs, ours = (text[at : at + SHOWN] for text in (each["theirs"], each["rendered"]))
                line = (
                    f"the server has another chat template than the weights (at character {at} {theirs!r}, in the "
                    f"weights {ours!r}); runs train on the prompt as the server renders it"
                )
                return _side_by_side(answers, found, known=True, line=line)
        return Rendering(True, "the server renders a conversation as the weights' chat template does")
    if found["known"]:
        counted = f"this server tells only how many tokens it read; {found['way']} explains all {found['known']} counts"
        return Rendering(True, f"{counted}, so runs render with it")
    return Rendering(
        False,
        "this server tells neither how it renders a conversation nor how many tokens it read: runs render with the "
        "weights' chat template, and refuse replies that are odd after it",
    )


def _side_by_side(answers: Sequence[ProbeAnswer], found: Mapping[str, Any], *, known: bool, line: str) -> Rendering:
    """With the first prompt in which they differ, by text or by number."""
    for answer, each in zip(answers, found["conversations"], strict=True):
        made = len(each["prompt_ids"])
        if each["theirs"] not in (None, each["rendered"]) or answer.prompt_tokens not in (None, made):
            return Rendering(known, line, each["theirs"], each["rendered"], answer.prompt_tokens, made)
    return Rendering(known, line)


def _first_difference(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _log_probs(apart: float | None, regret: float | None) -> str | None:
    other = "another model, another chat template, or it has an adapter on"
    if apart is not None and apart > APART:
        return f"its log-probs are {apart:.2f} nats a token off, {APART:g} may be quantisation ({other})"
    if apart is None and regret is not None and regret > REGRET:
        return (
            f"the weights would say something else than it does by {regret:.2f} nats a token, "
            f"{REGRET:g} may be quantisation ({other})"
        )
    return None


def _apart(answers: Sequence[ProbeAnswer], read: Sequence[Mapping[str, Any]]) -> float | None:
    pairs = [_aligned(answer, each["logprobs"]) for answer, each in zip(answers, read, strict=True)]
    away = [abs(theirs - ours) for theirs, ours in chain.from_iterable(pairs)]
    return sum(away) / len(away) if away else None


def _aligned(answer: ProbeAnswer, ours: Sequence[float]) -> list[tuple[float, float]]:
    """Log-probs of the same tokens. A server may leave the end token out. Where else their numbers differ, the text was
    not cut as the server had it, and nothing is compared."""
    theirs = answer.logprobs or ()
    short = len(ours) - len(theirs)
    if not theirs or short < 0 or short > (answer.ended or answer.reply_ids is not None) or min(theirs) < PLACEHOLDER:
        return []
    return list(zip(theirs, ours, strict=False))


def _regret(read: Sequence[Mapping[str, Any]]) -> float | None:
    lost = [best - own for each in read for best, own in zip(each["best"], each["logprobs"], strict=True)]
    return sum(lost) / len(lost) if lost else None
