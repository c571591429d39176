"""A rater's words as a teacher: comments become hints in the prompt, corrections become replies to imitate.

Owns what is made of a sample's comment and correction. These are the hinted prompt, the teacher's distribution on the
rated reply, a reply of its own, and the correction's tokens. The teacher is the policy about to be trained, with the
hint in its context. Only comments on disliked replies teach: on a liked one they are praise, and praise does not
instruct. Not here: the losses (objective_kin), the ratings' side (lessons).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from config.presets import Preset
from trainer.io.cache import Cache
from trainer.io.progress import Progress, Stop
from trainer.lessons.degenerate import loops
from trainer.lessons.line_members import BadLine
from trainer.lessons.prompts import HINT, hinted
from trainer.lessons.samples import Sample, Template
from trainer.policy import packing
from trainer.policy.packing import NOTHING, States, Tokens
from trainer.policy.policy import Policy, Teaching

REPLIES_AT_ONCE = 16  # a batch of the teacher's replies: a stop is obeyed between them
LONGER = 1.5  # times the rated reply's length that the teacher may take; it is asked for another answer, not an essay
LEAST_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Extra:
    """A reply that the policy did not give but shall imitate."""

    sample: Sample
    tokens: Tokens
    advantage: float  # 1 for a correction; 0 where the teacher says all there is to say
    teaching: Teaching | None


@dataclass
class Taught:
    hinted: dict[str, Tokens] = field(default_factory=dict)  # of a rating: its reply after the hinted prompt
    teaching: dict[str, Teaching] = field(default_factory=dict)  # and what the teacher expects there
    extras: list[Extra] = field(default_factory=list)


def comment_of(sample: Sample) -> str | None:
    return sample.comment if sample.reward < 0 else None


def count(samples: Sequence[Sample]) -> tuple[int, int]:
    """How many comments and how many corrections there are to learn from."""
    return sum(comment_of(s) is not None for s in samples), sum(s.correction is not None for s in samples)


def prepare(
    preset: Preset,
    policy: Policy,
    template: Template,
    samples: Sequence[Sample],
    *,
    seed: int,
    who: str,
    cache: Cache,
    progress: Progress,
    stop: Stop,
) -> Taught:
    """Everything the comments and corrections of these samples teach. The policy wears what it starts from."""
    taught = Taught()
    for sample in samples:
        if sample.correction is not None:
            reply = template.reply(sample.correction, ended=True)
            tokens = Tokens(sample.tokens.prompt, reply, sample.tokens.temperature)
            if len(tokens) > preset.max_seq_len:
                progress.warning(f"the correction of {sample.rating} is longer than max_seq_len: it does not teach.")
            else:
                taught.extras.append(Extra(sample, tokens, 1.0, None))

    prompts = _hinted(preset, template, samples, progress)
    if not prompts:
        return taught
    taught.hinted = {s.rating: Tokens(prompt, s.tokens.reply, s.tokens.temperature) for s, prompt in prompts}
    told = teachings(policy, list(taught.hinted.values()), preset.teacher_k, who=who, cache=cache, stop=stop)
    taught.teaching = dict(zip(taught.hinted, told, strict=True))

    if preset.hinted_replies:
        replies = _replies(policy, prompts, template, seed=seed, who=who, cache=cache, stop=stop)
        sane = [
            (sample, prompt, tuple(reply))
            for (sample, prompt), reply in zip(prompts, replies, strict=True)
            if _sane(reply, template) and len(prompt) + len(reply) <= preset.max_seq_len
        ]
        why = f"of {len(prompts)} that the model wrote with the comment before it: ended, not empty, not looping"
        progress.choice("hinted_replies", len(sane), why)
        own = [Tokens(prompt, reply, s.tokens.temperature) for s, prompt, reply in sane]
        told = teachings(policy, own, preset.teacher_k, who=who, cache=cache, stop=stop)
        taught.extras += [
            Extra(s, Tokens(s.tokens.prompt, reply, s.tokens.temperature), 0.0, teaching)
            for (s, _, reply), teaching in zip(sane, told, strict=True)
        ]
    return taught


def hint(messages: Sequence[dict[str, Any]], comment: str, form: str = HINT) -> list[dict[str, Any]]:
    """The same messages with the comment after the last user message."""
    if (found := hinted(messages, comment, form)) is None:
        raise BadLine("no user message to put the comment after")
    return found


def _hinted(
    preset: Preset, template: Template, samples: Sequence[Sample], progress: Progress
) -> list[tuple[Sample, tuple[int, ...]]]:
    """Disliked samples with a comment, and their prompts with it: as the server renders them, else as the template
    does. What cannot be rendered keeps its rating only."""
    found, differ = [], 0
    for sample in samples:
        comment = comment_of(sample)
        if comment is None:
            continue
        try:
            prompt = sample.hinted or template.prompt(
                hint(sample.messages, comment), sample.tools, sample.template_kwargs
            )
            if len(prompt) + len(sample.tokens.reply) > preset.max_seq_len:
                raise BadLine("with it the sample is longer than max_seq_len")
            if sample.hinted is None and sample.exact:
                plain = template.prompt(sample.messages, sample.tools, sample.template_kwargs)
                differ += plain != sample.tokens.prompt
        except BadLine as error:
            progress.warning(f"the comment of {sample.rating} does not teach, its rating does: {error}.")
            continue
        found.append((sample, prompt))
    if differ:
        progress.warning(
            f"{differ} of {len(found)} commented samples were served with another prompt than this trainer renders "
            "from their messages; their teacher sees the trainer's."
        )
    return found


def teachings(
    policy: Policy,
    sequences: Sequence[Tokens],
    k: int,
    *,
    who: str,
    cache: Cache,
    stop: Stop,
    also: Sequence[int] = (),
    known: Mapping[Tokens, States] = NOTHING,
) -> list[Teaching]:
    """The policy's expectation in each reply, from the cache if these very tokens are in it; `also`: as Policy.teach,
    `known`: as packing.passes."""
    if not sequences:
        return []
    name = f"{_key(who, k, tuple(also), [(s.prompt, s.reply, s.temperature) for s in sequences])}.npz"
    bounds = np.cumsum([0] + [len(s.reply) for s in sequences])
    if (kept := cache.arrays(name)) is not None:
        ids, values = kept["ids"], kept["log_probs"]
    else:
        found: dict[int, Teaching] = {}
        for members, states in packing.passes(sequences, policy.budget, known):
            stop.check()
            packed = packing.pack([sequences[i] for i in members])
            both, ends = policy.teach(packed, k, also, states), np.cumsum(packed.lengths)[:-1]
            for i, ids, values in zip(members, np.split(both.ids, ends), np.split(both.log_probs, ends), strict=True):
                found[i] = Teaching(ids, values)
        told = [found[i] for i in range(len(sequences))]
        ids, values = np.concatenate([t.ids for t in told]), np.concatenate([t.log_probs for t in told])
        cache.keep_arrays(name, ids=ids, log_probs=values)
    return [Teaching(ids[a:b], values[a:b]) for a, b in pairwise(bounds)]


def _replies(
    policy: Policy,
    hinted: Sequence[tuple[Sample, tuple[int, ...]]],
    template: Template,
    *,
    seed: int,
    who: str,
    cache: Cache,
    stop: Stop,
) -> list[list[int]]:
    """One reply to each hinted prompt, sampled as the rated one was but for the truncation."""
    name = f"{_key(who, seed, [(prompt, s.tokens.temperature) for s, prompt in hinted])}.json"
    if (kept := cache.get(name)) is not None:
        said: list[list[int]] = json.loads(kept)
        return said
    replies: list[list[int]] = [[]] * len(hinted)
    by_temperature: dict[float, list[int]] = {}
    for i, (sample, _) in enumerate(hinted):
        by_temperature.setdefault(sample.tokens.temperature, []).append(i)
    for temperature, members in by_temperature.items():
        for first in range(0, len(members), REPLIES_AT_ONCE):
            stop.check()
            part = members[first : first + REPLIES_AT_ONCE]
            longest = max(len(hinted[i][0].tokens.reply) for i in part)
            made = policy.generate(
                [hinted[i][1] for i in part],
                max_tokens=max(LEAST_TOKENS, int(LONGER * longest)),
                temperature=temperature,
                seed=seed + first,
            )
            for i, reply in zip(part, made, strict=True):
                replies[i] = reply
    cache.keep(name, json.dumps(replies).encode())
    return replies


def _sane(reply: Sequence[int], template: Template) -> bool:
    return reply[-1] == template.end and bool(template.text(reply).strip()) and not loops(reply)


def _key(*content: Any) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()[:24]
