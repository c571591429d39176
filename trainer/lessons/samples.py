"""Run folder -> samples: token ids, reply, behaviour log-probs, reward. Asserts, never guesses.

Owns what a line of samples.jsonl must hold, and where its prompt comes from. That is what was captured, else what its
server rendered for this run, else the weights' chat template. A bad line costs that line: it becomes
`UnusableSample` with its reason, and the run goes on. Not here: the template itself (chat_template), log-probs under
any model (policies), the filter (mis_po).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from trainer.io.encrypted_files import IN_THE_CLEAR, Seal
from trainer.io.run_folder import read_lines
from trainer.lessons import degenerate, truncation
from trainer.lessons.chat_template import Template, plain_message
from trainer.lessons.degenerate import Flag
from trainer.lessons.line_members import (
    BadLine,
    TooLong,
    has_pictures,
    ids_in,
    media_in,
    number_in,
    pictures_in,
    text_in,
)
from trainer.lessons.prompts import lessons_of
from trainer.lessons.rendering import KnownPrompt, is_near
from trainer.lessons.trajectories import RewardedTurn, turn_in
from trainer.lessons.truncation import Chat
from trainer.mis_po import Bools, Floats
from trainer.pictures.album import UNSEEN
from trainer.policy.packing import Tokens

# Servers write −9999 (or lower) where they have no log-prob; no token that was really sampled comes near it.
PLACEHOLDER = -1000.0
# A constraint that rules out more of the mass has chosen the token: 18 %, as nats. So it has where nothing else was
# left, and the log-prob under it is 0. Both hang on what came before the token alone (docs/lab/constrained.md).
FORCED = 0.2
SOLE = -1e-4
ROUNDING = 1e-3  # a log-prob of 0 may come back as 0.0004 from a half-precision server
PromptBy = Literal["captured", "server", "template"]
SPLITS = ("train", "held")
REPLAYED_SPLIT = "replay"  # in run folders of earlier releases: an earlier run had trained on it
HINT_TOKENS = 32  # what the teacher puts around a comment
PENALTIES = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "min_p": 0.0}
ODD_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")  # min_p makes replies plainer


@dataclass(frozen=True, slots=True)
class Sample:
    rating: str
    is_held_back: bool  # for the gate only
    version: int  # that produced it; 0 is the base
    reward: float
    weight: float
    human: bool
    tokens: Tokens
    behaviour: Floats | None  # (T,) ℓ_β as captured; None: to be recomputed under `version`
    # (T,) the server's log-probs of another distribution than the one sampled from, NaN where it gave none.
    served: Floats | None = None
    served_at: float = 1.0  # the temperature of that distribution
    penalised: bool = False  # sampled with penalties: odder than what the policy itself would say
    messages: tuple[dict[str, Any], ...] = ()
    tools: Any = None
    template_kwargs: dict[str, Any] | None = None  # what the chat template was given besides
    comment: str | None = None  # None also where only spaces were said
    correction: str | None = None
    followed: bool = False  # no person rated it, and one went on from it: where it stopped was seen
    flags: tuple[Flag, ...] = ()
    captured: Floats | None = None  # (T,) ℓ_β under the whole prompt, where the prompt is shortened
    forced: Bools | None = None  # (T,) tokens that a schema or a forced call chose, and not the policy
    prompt_by: PromptBy = "captured"
    hinted: tuple[int, ...] | None = None  # the prompt with the comment in it, as the server renders it
    lessons: tuple[str, ...] = ()  # earlier comments in its prompt
    lesson_ratings: tuple[str, ...] = ()  # that brought them
    bare: tuple[int, ...] | None = None  # the prompt without these, as the server renders it
    episode: RewardedTurn | None = None  # the turn that it is, where a program rewarded it
    completion: str = ""  # that was rated

    @property
    def exact(self) -> bool:
        return self.behaviour is not None

    @property
    def chosen(self) -> Bools:
        """(T,) the tokens that the policy itself chose."""
        mask: Bools = np.ones(len(self.tokens.reply), bool) if self.forced is None else ~self.forced
        return mask

    @property
    def labelled(self) -> bool:
        """By a judge, from what was said next: below 0 what is bad, 0 what a person went on from."""
        return self.followed and not self.human

    @property
    def opinion(self) -> bool:
        """A person rated it, or a judge labelled it."""
        return self.human or self.labelled

    @property
    def compared(self) -> bool:
        """Its server's log-probs are compared with the policy's, token by token."""
        return self.exact or self.served is not None

    @property
    def truncated(self) -> bool:
        """It has no end of its own."""
        return "truncated" in self.flags or "broken-off" in self.flags

    @property
    def flaw(self) -> Flag | None:
        """Why nobody should say such a thing again, however it was rated."""
        return next((flag for flag in self.flags if flag in ("empty", "looping")), None)


@dataclass(frozen=True, slots=True)
class UnusableSample:
    rating: str
    reason: str
    cause: Literal["unusable", "too-long"] = "unusable"
    has_pictures: bool = False


def load(
    path: Path, template: Template, *, max_seq_len: int, seal: Seal = IN_THE_CLEAR
) -> tuple[list[Sample], list[UnusableSample]]:
    """The samples of samples.jsonl in order, and the lines that cannot be used. What an earlier release wants trained
    once more is neither: the run is of the new ratings alone."""
    samples: list[Sample] = []
    unusable: list[UnusableSample] = []
    ratings: set[str] = set()
    for number, line in read_lines(path, seal):
        if line is not None and line.get("split") == REPLAYED_SPLIT:
            continue
        rating = str(line.get("rating") or f"line {number}") if line else f"line {number}"
        try:
            if line is None:
                raise BadLine("not a JSON object")
            if rating in ratings:
                raise BadLine("this rating is already in the run")
            ratings.add(rating)
            samples.append(parse(line, rating, template, max_seq_len=max_seq_len))
        except BadLine as error:
            cause: Literal["unusable", "too-long"] = "too-long" if isinstance(error, TooLong) else "unusable"
            unusable.append(UnusableSample(rating, str(error), cause, has_pictures((line or {}).get("messages"))))
    return samples, unusable


def known_prompts(lines: Iterable[Mapping[str, Any] | None], template: Template) -> list[KnownPrompt]:
    """Read how the server of these samples renders prompts without ids; where it renders them, by that."""
    prompts = []
    for line in lines:
        if line is None or line.get("exact") is True or has_pictures(line.get("messages")):
            continue
        with contextlib.suppress(BadLine):
            ids, count = _served_prompt(line, template), _count(line)
            if ids is not None or count is not None:
                as_sent = line.get("as_sent") is True
                prompts.append(
                    KnownPrompt(_messages(line), line.get("tools"), _template_kwargs(line), count, ids, as_sent)
                )
    return prompts


def load_calibration(
    path: Path, template: Template, *, version: int, max_seq_len: int, seal: Seal = IN_THE_CLEAR
) -> list[Sample]:
    """Exact completions of `version` from calibration.jsonl, newest first, as there. Others say nothing about
    serving noise."""
    fresh: list[Sample] = []
    for number, line in read_lines(path, seal):
        if line is None or line.get("exact") is not True or line.get("version") != version:
            continue
        try:
            unrated = line | {"reward": 0.0, "weight": 1.0}
            sample = parse(unrated, str(line.get("completion") or number), template, max_seq_len=max_seq_len)
        except BadLine:
            continue
        if sample.exact:
            fresh.append(sample)
    return fresh


def parse(line: Mapping[str, Any], rating: str, template: Template, *, max_seq_len: int) -> Sample:
    reward, weight = number_in(line, "reward"), number_in(line, "weight", 1.0)
    if not -1 <= reward <= 1:
        raise BadLine(f"reward {reward} is outside -1..1")
    if weight <= 0:
        raise BadLine(f"weight {weight} is not above 0")
    if not isinstance(version := line.get("version"), int) or version < 0:
        raise BadLine(f"version {version!r} is not a version number")
    if line.get("split", "train") not in SPLITS:
        raise BadLine(f"split {line.get('split')!r} is neither {' nor '.join(SPLITS)}")
    if (media := media_in(line.get("messages"))) is not None:
        raise BadLine(f"{media}: {UNSEEN}")
    if line.get("unconstrained_logprobs") is not None and line.get("exact") is not True:
        raise BadLine("which of its tokens a schema or a forced call chose is not known one for one")
    source: PromptBy = "captured"
    served: Floats | None = None
    forced: Bools | None = None
    if line.get("exact") is True:
        tokens, behaviour, forced = _exact(line, template)
    else:
        tokens, served, source = _inexact(line, template)
        behaviour = None
    flags = degenerate.flags(tokens.reply, template.text(tokens.reply), line.get("finish_reason"))
    sample = Sample(
        rating=rating,
        is_held_back=line.get("split") == "held",
        version=version,
        reward=reward,
        weight=weight,
        human=bool(line.get("human", True)),
        followed=line.get("followed") is True,
        tokens=tokens,
        behaviour=behaviour,
        served=served,
        penalised=_has_penalty(line.get("sampling"), *ODD_PENALTIES),
        served_at=tokens.temperature if line.get("logprobs_of") == "temperature" else 1.0,
        messages=_messages(line),
        tools=line.get("tools"),
        template_kwargs=_template_kwargs(line),
        comment=text_in(line, "comment"),
        correction=text_in(line, "correction"),
        flags=flags,
        prompt_by=source,
        hinted=template.hinted(line),
        lessons=lessons_of(line),
        lesson_ratings=tuple(map(str, line.get("lesson_ratings") or ())),
        bare=template.bare(line),
        forced=forced,
        episode=turn_in(line),
        completion=str(line.get("completion") or ""),
    )
    return sample if len(tokens) <= max_seq_len else _shorten(sample, template, max_seq_len)


def _shorten(sample: Sample, template: Template, max_seq_len: int) -> Sample:
    """The same reply after the system prompt and the newest turns alone.

    What was captured is of another prompt than the one that trains, so ℓ_β is recomputed under the version that wrote
    the reply. `captured` stays: a token that hangs on what was left out is not to be learned without it (lessons).
    """
    reply_tokens, hint_text = len(sample.tokens.reply), sample.comment if sample.reward < 0 else None
    hint_tokens = len(template.reply(hint_text, ended=False)) + HINT_TOKENS if hint_text else 0
    correction_tokens = len(template.reply(sample.correction, ended=True)) if sample.correction else 0

    def fits(needed: int) -> Callable[[Chat], bool]:
        return lambda chat: len(template.prompt(chat, sample.tools, sample.template_kwargs)) + needed <= max_seq_len

    if template.choice.wrong is not None and sample.prompt_by != "captured":
        raise TooLong(
            f"{len(sample.tokens)} tokens, more than max_seq_len = {max_seq_len}, and how its server renders it "
            f"without its oldest turns is not known: {template.choice.wrong}"
        )
    # With room for what its words will need; else its rating trains and they do not.
    chat = truncation.cut(sample.messages, fits(max(reply_tokens + hint_tokens, correction_tokens))) or truncation.cut(
        sample.messages, fits(reply_tokens)
    )
    if chat is None:
        raise TooLong(
            f"{len(sample.tokens)} tokens, and no older turn can be left out to come below max_seq_len = {max_seq_len}"
        )
    return replace(
        sample,
        messages=tuple(dict(message) for message in chat),
        tokens=replace(sample.tokens, prompt=template.prompt(chat, sample.tools, sample.template_kwargs)),
        behaviour=None,
        served=None,  # it is of the whole prompt
        captured=sample.behaviour,
        hinted=None,  # it was rendered with all turns
        bare=None,
        flags=(*sample.flags, "shortened"),
    )


def _exact(line: Mapping[str, Any], template: Template) -> tuple[Tokens, Floats | None, Bools | None]:
    """An exact line: its tokens, ℓ_β, and which of them were forced."""
    prompt = template.bind(ids_in(line, "prompt_token_ids", template.vocabulary), _messages(line))
    reply = ids_in(line, "token_ids", template.vocabulary)
    raw = line.get("logprobs")
    if not isinstance(raw, list):
        raise BadLine("says exact but has no logprobs")
    if len(raw) != len(reply):
        raise BadLine(f"says exact but has {len(reply)} token ids and {len(raw)} log-probs")
    try:
        behaviour = np.asarray(raw, np.float64)
    except (TypeError, ValueError):
        raise BadLine("logprobs are not all numbers") from None
    if behaviour.ndim != 1 or not np.isfinite(behaviour).all():
        raise BadLine("a log-prob is not finite")
    if behaviour.max() > ROUNDING:
        raise BadLine(f"a log-prob is {behaviour.max():.3g}, above 0")
    if behaviour.min() < PLACEHOLDER:
        raise BadLine(f"a log-prob is {behaviour.min():.6g}: a server's placeholder, not a measurement")
    sampling = line.get("sampling") or {}
    if not isinstance(sampling, dict):
        raise BadLine("sampling is not an object")
    temperature = number_in(sampling, "temperature", 1.0)
    top_p = number_in(sampling, "top_p", 1.0)
    top_k = int(number_in(sampling, "top_k", 0))
    if temperature < 0 or not 0 < top_p <= 1:
        raise BadLine(f"temperature {temperature} with top_p {top_p} is not a way to sample")
    greedy = temperature == 0  # log-probs are those at temperature 1, over the whole vocabulary
    tokens = Tokens(
        prompt, reply, 1.0 if greedy else temperature, 1.0 if greedy else top_p, 0 if greedy else max(top_k, 0)
    )
    forced = None
    if line.get("unconstrained_logprobs") is not None:
        behaviour, forced = _unconstrained(line, behaviour)
    # Log-probs under penalties are of a distribution that depends on the text so far in each server's own way.
    return tokens, None if _has_penalty(sampling, *PENALTIES) else behaviour, forced


def _unconstrained(line: Mapping[str, Any], sampled: Floats) -> tuple[Floats, Bools]:
    """ℓ_β of the model itself, (T,), and which tokens were forced.

    What was forced has no ℓ_β.
    """
    raw = line["unconstrained_logprobs"]
    try:
        model = np.asarray(raw, np.float64)
    except (TypeError, ValueError):
        raise BadLine("unconstrained_logprobs are not all numbers") from None
    if model.shape != sampled.shape or not np.isfinite(model).all():
        raise BadLine(f"{len(sampled)} log-probs, and without the constraint others than so many finite ones")
    forced = forced_tokens(sampled, model)
    if forced.all():
        raise BadLine("a schema or a forced call chose each of its tokens")
    return np.where(forced, np.nan, model), forced


def forced_tokens(sampled: Floats, model: Floats) -> Bools:
    """(T,) the tokens that a constraint chose: `sampled` are log-probs with it, `model` without.

    They differ by −log of the mass that the constraint left. That is the same whatever was drawn.
    """
    mask: Bools = (np.abs(sampled - model) > FORCED) | ((sampled > SOLE) & (model <= SOLE))
    return mask


def _has_penalty(sampling: Any, *names: str) -> bool:
    settings = sampling if isinstance(sampling, dict) else {}
    return any(number_in(settings, name, PENALTIES[name]) != PENALTIES[name] for name in names)


def _inexact(line: Mapping[str, Any], template: Template) -> tuple[Tokens, Floats | None, PromptBy]:
    """An inexact line, with what its server said of each token, where it did."""
    messages, text = _messages(line), line.get("text")
    captured = template.captured(line)
    has_calls = captured is None and isinstance(line.get("reply"), dict)
    if not messages:
        raise BadLine("not exact and without messages to render")
    if captured is None and not has_calls and (not isinstance(text, str) or not text):
        raise BadLine("not exact and without text")
    for message in messages:
        plain_message(message)  # raises BadLine where it holds more than text, whoever rendered it
    prompt, source = _prompt(line, template)
    reply = captured.ids if captured is not None else _untold_reply(line, template, prompt, has_calls=has_calls)
    sampling = line.get("sampling")
    temperature = number_in(sampling, "temperature", 1.0) if isinstance(sampling, dict) else 1.0
    if not prompt or not reply:
        raise BadLine("renders to no tokens")
    tokens = Tokens(prompt, reply, temperature if temperature > 0 else 1.0)
    return tokens, None if captured is None else captured.log_probs, source


def _untold_reply(
    line: Mapping[str, Any], template: Template, prompt: tuple[int, ...], *, has_calls: bool
) -> tuple[int, ...]:
    """The reply's tokens where its server told only its words and calls."""
    if has_calls:
        return template.calling_reply(line, prompt)
    return template.reply(str(line.get("text")), ended=line.get("finish_reason") == "stop")


def _prompt(line: Mapping[str, Any], template: Template) -> tuple[tuple[int, ...], PromptBy]:
    """The prompt that the server read. It trains on that or not at all: by its count of tokens it is seen whether this
    is it."""
    count, messages, as_sent = _count(line), len(_messages(line)), line.get("as_sent") is True
    if line.get("prompt_token_ids"):
        ids = ids_in(line, "prompt_token_ids", template.vocabulary)
        return template.bind(ids, _messages(line)), "captured"
    if pictures_in(line.get("messages")):
        return _prompt_with_pictures(line, template, count)
    if (prompt := _served_prompt(line, template)) is not None:
        if count is not None and not is_near(count, len(prompt), messages, as_sent=as_sent):
            raise BadLine(
                f"the server read {count:,} tokens, and it renders this prompt to {len(prompt):,} now: its chat "
                "template or its context has changed since, or it cut the prompt"
            )
        return prompt, "server"
    prompt = template.prompt(_messages(line), line.get("tools"), _template_kwargs(line))
    if count is not None and not is_near(count, len(prompt), messages, as_sent=as_sent):
        raise BadLine(
            f"the server read {count:,} tokens where the weights' chat template makes {len(prompt):,}: it has another "
            "chat template, or it cut the prompt"
        )
    return prompt, "template"


def _prompt_with_pictures(
    line: Mapping[str, Any], template: Template, count: int | None
) -> tuple[tuple[int, ...], PromptBy]:
    """The same where pictures are in it: to the token, since one that a picture has too many looks like a space."""
    prompt, source = _served_prompt(line, template), "server"
    if prompt is None:
        prompt, source = template.prompt(_messages(line), line.get("tools"), _template_kwargs(line)), "template"
    if count is None:
        raise BadLine("its server told neither the tokens of its pictures nor how many it read")
    if count != len(prompt):
        raise BadLine(
            f"the server read {count:,} tokens where the weights' processor makes {len(prompt):,}: it shows pictures "
            "otherwise, has another chat template, or cut the prompt"
        )
    return prompt, "server" if source == "server" else "template"


def _served_prompt(line: Mapping[str, Any], template: Template) -> tuple[int, ...] | None:
    rendered = line.get("served")
    return template.served(rendered, _count(line), _messages(line)) if isinstance(rendered, dict) else None


def _count(line: Mapping[str, Any]) -> int | None:
    """How many tokens the server said that the prompt has."""
    count = line.get("prompt_tokens")
    return count if type(count) is int and count > 0 else None


def _messages(line: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    messages = line.get("messages") or []
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise BadLine("messages are not a list of objects")
    return tuple(messages)


def _template_kwargs(line: Mapping[str, Any]) -> dict[str, Any] | None:
    kwargs = line.get("template_kwargs")
    if kwargs is not None and not isinstance(kwargs, dict):
        raise BadLine("template_kwargs are not an object")
    return kwargs
