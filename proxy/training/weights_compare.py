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
from statistics import fmean, pstdev
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
MAX_DISTANCE: Final = 0.5  # mean |Δ log-prob|, where the server tells them
MAX_REGRET: Final = 0.4  # else: by how much the weights like another token better than its greedy one (Q4_0: 0.26)
SIZE: Final = 0.05  # share by which counts of parameters may differ: not everybody counts tied embeddings once
PLACEHOLDER: Final = -1000.0  # and below: a server's word for "no log-prob"
SHOWN_CHARACTERS: Final = 24  # characters of a difference
DIFFERENT_MODEL: Final = "the server does not run what trains: "


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
    # What the weights gave the reply's tokens less what the server gave them: mean, deviation (nats a token), tokens.
    # None where the server tells no log-probs. A run calibrates its band on it where its answers are short.
    noise: Mapping[str, float] | None = None


def compare(
    description: ModelDescription, answers: Sequence[ProbeAnswer], probe: Mapping[str, Any], *, scored: bool = True
) -> WeightsVerdict:
    """`probe` is what trainer.probe says of the weights and of these answers."""
    verdict = _compare(description, answers, probe) if scored else _compare_prompts(description, answers, probe)
    noise = _noise(answers, probe["conversations"]) if verdict.state == "same" else None
    return verdict._replace(scored=scored, noise=noise)


def _compare_prompts(
    description: ModelDescription, answers: Sequence[ProbeAnswer], probe: Mapping[str, Any]
) -> WeightsVerdict:
    if (wrong := _wrong(description, answers, probe)) is not None:
        return wrong
    rendering = _rendering(answers, probe)
    checked = [name for name, is_checked in _checked(description, probe["conversations"]).items() if is_checked]
    so_far = f"{' and '.join(checked)} as in the weights; " if checked else ""
    line = f"{so_far}log-probs are compared when the first rating has come"
    return WeightsVerdict("unasked", line, rendering=rendering._asdict())


def _compare(description: ModelDescription, answers: Sequence[ProbeAnswer], probe: Mapping[str, Any]) -> WeightsVerdict:
    read = probe["conversations"]
    distance, regret = _distance(answers, read), _regret(read)
    if (wrong := _wrong(description, answers, probe)) is not None:
        return wrong._replace(apart=distance, regret=regret)
    rendering = _rendering(answers, probe)
    if (reason := _log_probs(distance, regret)) is not None:
        return WeightsVerdict("other", f"{DIFFERENT_MODEL}{reason}", distance, regret, rendering._asdict())
    checked = [name for name, is_checked in _checked(description, read).items() if is_checked]
    if regret is None:
        reason = probe["unscored"] or "its answers have no text and no token ids"
        so_far = f"{' and '.join(checked)} as in the weights, but " if checked else ""
        line = f"{so_far}log-probs could not be compared: {reason}"
        return WeightsVerdict("unknown", line, distance, regret, rendering._asdict())
    by = (
        f"log-probs {distance:.2g} nats a token apart"
        if distance is not None
        else f"greedy replies, regret {regret:.2g} nats"
    )
    line = f"the server runs what trains: {', '.join([*checked, by])}"
    return WeightsVerdict("same", line, distance, regret, rendering._asdict())


def _wrong(
    description: ModelDescription, answers: Sequence[ProbeAnswer], probe: Mapping[str, Any]
) -> WeightsVerdict | None:
    """Find differences that need no weights to be seen."""
    if (difference := _kind(description, probe) or _tokeniser(answers, probe)) is not None:
        return WeightsVerdict("other", f"{DIFFERENT_MODEL}{difference}")
    if (difference := _misread(answers, probe)) is not None:
        return WeightsVerdict(
            "other",
            f"{DIFFERENT_MODEL}{difference}",
            rendering=_side_by_side(answers, probe, is_known=False, line=difference)._asdict(),
        )
    return None


def _checked(description: ModelDescription, read: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    return {
        "architecture": description.architecture is not None or description.parameters is not None,
        "vocabulary": description.vocabulary is not None,
        "chat template": all(each["theirs"] == each["rendered"] for each in read),
    }


def _kind(description: ModelDescription, probe: Mapping[str, Any]) -> str | None:
    if description.architecture is not None and description.architecture != probe["architecture"]:
        return f"it is a {description.architecture}, the weights are a {probe['architecture']}"
    if description.vocabulary is not None and description.vocabulary not in (probe["vocabulary"], probe["tokens"]):
        return f"it knows {description.vocabulary:,} tokens, the weights {probe['vocabulary']:,}"
    if description.width is not None and probe["width"] is not None and description.width != probe["width"]:
        return f"its hidden states have {description.width:,} numbers, those of the weights {probe['width']:,}"
    ours = probe["parameters"]
    if description.parameters is not None and abs(description.parameters - ours) > SIZE * ours:
        return f"it has {description.parameters / 1e6:,.0f} million parameters, the weights {ours / 1e6:,.0f}"
    return None


def _tokeniser(answers: Sequence[ProbeAnswer], probe: Mapping[str, Any]) -> str | None:
    for answer, read in zip(answers, probe["conversations"], strict=True):
        if not answer.prompt_ids or list(answer.prompt_ids) == read["prompt_ids"]:
            continue
        if read["theirs"] is None:
            return f"it reads a prompt as token {max(answer.prompt_ids)}, and the weights have {probe['tokens']:,}"
        if read["theirs"] == read["rendered"]:
            return "it cuts the same text into other tokens (another tokeniser)"
    return None


def _misread(answers: Sequence[ProbeAnswer], probe: Mapping[str, Any]) -> str | None:
    """Why a run would refuse its prompts: what the server counted is not what anybody renders."""
    for answer, read in zip(answers, probe["conversations"], strict=True):
        theirs, count = read["their_tokens"], answer.prompt_tokens
        if theirs is not None and count is not None and count != theirs:
            return (
                f"it says that it read {count} tokens, and the prompt that it says it renders has {theirs}: its "
                "chat template, its context or its tokeniser is another one"
            )
    if any(read["their_tokens"] is not None for read in probe["conversations"]):
        return None
    if probe["wrong"] is not None:
        return f"{probe['wrong']}, and this server does not tell how it renders: nothing can train on what it reads"
    if probe["explained"] < probe["known"]:
        return (
            f"{probe['way']} explains how many tokens it read in {probe['explained']} of {probe['known']} prompts only "
            "(another chat template)"
        )
    return None


def _rendering(answers: Sequence[ProbeAnswer], probe: Mapping[str, Any]) -> Rendering:
    read = probe["conversations"]
    if all(each["theirs"] is not None for each in read):
        for each in read:
            if each["theirs"] != each["rendered"]:
                position = _first_difference(each["theirs"], each["rendered"])
                theirs, ours = (
                    text[position : position + SHOWN_CHARACTERS] for text in (each["theirs"], each["rendered"])
                )
                line = (
                    f"the server has another chat template than the weights (at character {position} {theirs!r}, in "
                    f"the weights {ours!r}); runs train on the prompt as the server renders it"
                )
                return _side_by_side(answers, probe, is_known=True, line=line)
        return Rendering(True, "the server renders a conversation as the weights' chat template does")
    if probe["known"]:
        summary = f"this server tells only how many tokens it read; {probe['way']} explains all {probe['known']} counts"
        return Rendering(True, f"{summary}, so runs render with it")
    return Rendering(
        False,
        "this server tells neither how it renders a conversation nor how many tokens it read: runs render with the "
        "weights' chat template, and refuse replies that are odd after it",
    )


def _side_by_side(answers: Sequence[ProbeAnswer], probe: Mapping[str, Any], *, is_known: bool, line: str) -> Rendering:
    """With the first prompt in which they differ, by text or by number."""
    for answer, each in zip(answers, probe["conversations"], strict=True):
        weights_count = len(each["prompt_ids"])
        if each["theirs"] not in (None, each["rendered"]) or answer.prompt_tokens not in (None, weights_count):
            return Rendering(is_known, line, each["theirs"], each["rendered"], answer.prompt_tokens, weights_count)
    return Rendering(is_known, line)


def _first_difference(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _log_probs(distance: float | None, regret: float | None) -> str | None:
    causes = "another model, another chat template, or it has an adapter on"
    if distance is not None and distance > MAX_DISTANCE:
        return f"its log-probs are {distance:.2f} nats a token off, {MAX_DISTANCE:g} may be quantisation ({causes})"
    if distance is None and regret is not None and regret > MAX_REGRET:
        return (
            f"the weights would say something else than it does by {regret:.2f} nats a token, "
            f"{MAX_REGRET:g} may be quantisation ({causes})"
        )
    return None


def _distance(answers: Sequence[ProbeAnswer], read: Sequence[Mapping[str, Any]]) -> float | None:
    differences = _differences(answers, read)
    return fmean(map(abs, differences)) if differences else None


def _noise(answers: Sequence[ProbeAnswer], read: Sequence[Mapping[str, Any]]) -> Mapping[str, float] | None:
    """How far the weights' log-probs are from the server's own, over the tokens of its replies."""
    differences = _differences(answers, read)
    if not differences:
        return None
    return {"mean": fmean(differences), "deviation": pstdev(differences), "tokens": len(differences)}


def _differences(answers: Sequence[ProbeAnswer], read: Sequence[Mapping[str, Any]]) -> list[float]:
    """Nats a token: of the weights, less those of the server."""
    pairs = (_aligned(answer, each["logprobs"]) for answer, each in zip(answers, read, strict=True))
    return [ours - theirs for theirs, ours in chain.from_iterable(pairs)]


def _aligned(answer: ProbeAnswer, ours: Sequence[float]) -> list[tuple[float, float]]:
    """Log-probs of the same tokens. A server may leave the end token out. Where else their numbers differ, the text was
    not cut as the server had it, and nothing is compared."""
    theirs = answer.logprobs or ()
    missing = len(ours) - len(theirs)
    if (
        not theirs
        or missing < 0
        or missing > (answer.ended or answer.reply_ids is not None)
        or min(theirs) < PLACEHOLDER
    ):
        return []
    return list(zip(theirs, ours, strict=False))


def _regret(read: Sequence[Mapping[str, Any]]) -> float | None:
    lost = [best - chosen for each in read for best, chosen in zip(each["best"], each["logprobs"], strict=True)]
    return sum(lost) / len(lost) if lost else None
