"""A rater's words as a teacher: comments become hints in the prompt, corrections become replies to imitate.

Owns what is made of a sample's comment, correction and lessons. These are the hinted prompt, the teacher's distribution
on the rated reply, a reply of its own, and the correction's tokens. The teacher is the policy about to be trained, with
the hint in its context. Only comments on disliked replies teach: on a liked one they are praise, and praise does not
instruct. A reply whose prompt had lessons shows what to say without them. Not here: the losses (losses), the ratings'
side (lessons).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from config.presets import Preset
from trainer.io.progress import Progress
from trainer.lessons.chat_template import Template
from trainer.lessons.degenerate import is_looping
from trainer.lessons.line_members import BadLine
from trainer.lessons.prompts import HINT, with_hint, without_lessons
from trainer.lessons.samples import Sample
from trainer.lessons.scoring import Scorer, content_name
from trainer.out_of_memory import OutOfMemory
from trainer.policy.packing import Tokens
from trainer.policy.policy import TokenDistribution

TOKENS_AT_ONCE = 8192  # of prompts and replies in a batch of the teacher's replies: their keys and values fit
LONGER = 1.5  # times the rated reply's length that the teacher may take; it is asked for another answer, not an essay
LEAST_TOKENS = 64
MOST_TOKENS = 256  # the beginning of a longer answer says enough, and a run waits for it
UNWRITTEN: list[int] = []
ECHO = HINT.strip().partition("\n")[0]  # a small model repeats the hint's heading instead of heeding it


class HintedPrompt(NamedTuple):
    """A sample's prompt with what its rater has said, and without."""

    sample: Sample
    hinted: tuple[int, ...]
    bare: tuple[int, ...]  # what is to be answered as if it were hinted


@dataclass(frozen=True, slots=True)
class Imitation:
    """A reply that the policy did not give but shall imitate."""

    sample: Sample
    tokens: Tokens
    advantage: float  # 1 for a correction; 0 where the teacher says all there is to say
    teacher: TokenDistribution | None


@dataclass(frozen=True, slots=True)
class TeacherTargets:
    """Targets that comments and corrections set."""

    hinted: Mapping[str, Tokens] = field(default_factory=dict)  # of a rating: its reply after the hinted prompt
    distributions: Mapping[str, TokenDistribution] = field(default_factory=dict)  # and what the teacher expects there
    imitations: Sequence[Imitation] = ()


def comment_of(sample: Sample) -> str | None:
    return sample.comment if sample.reward < 0 else None


def wishes_of(sample: Sample) -> tuple[str, ...]:
    """Wishes of its rater: its comment, or the lessons that a liked reply has followed."""
    comment = comment_of(sample)
    if comment is not None:
        return (comment,)
    return sample.lessons if sample.reward > 0 else ()


def count(samples: Sequence[Sample]) -> tuple[int, int, int]:
    """How many comments, corrections, and liked replies to lessons there are to learn from."""
    comments = sum(comment_of(s) is not None for s in samples)
    return comments, sum(s.correction is not None for s in samples), sum(bool(wishes_of(s)) for s in samples) - comments


def make_targets(
    preset: Preset, template: Template, samples: Sequence[Sample], scorer: Scorer, progress: Progress
) -> TeacherTargets:
    """Make the targets of these samples. The policy wears what it starts from."""
    imitations = _corrections(preset, template, samples, progress)
    prompts = _hinted_prompts(preset, template, samples, progress)
    if not prompts:
        return TeacherTargets(imitations=imitations)
    plain = [(s, prompt) for s, prompt, _ in prompts if not s.lessons]
    hinted = {s.rating: Tokens(prompt, s.tokens.reply, s.tokens.temperature) for s, prompt in plain}
    distributions = dict(zip(hinted, scorer.expect(list(hinted.values()), preset.teacher_k), strict=True))
    imitations += _lesson_replies(preset, prompts, scorer, progress)
    commented = [prompt for prompt in prompts if comment_of(prompt.sample) is not None]
    imitations += _hinted_replies(preset, template, commented[: preset.hinted_replies], scorer, progress)
    return TeacherTargets(hinted, distributions, imitations)


def _lesson_replies(
    preset: Preset, prompts: Sequence[HintedPrompt], scorer: Scorer, progress: Progress
) -> list[Imitation]:
    """Replies to prompts with lessons, after the same prompts without: the liked ones first, then the newest.

    Lessons are in most prompts once they are on. Without this a run would learn from the few before the first comment.
    """
    with_lessons = sorted((prompt for prompt in prompts if prompt.sample.lessons), key=lambda p: p.sample.reward <= 0)
    chosen = with_lessons[: preset.hinted_replies]
    if chosen:
        reason = f"of {len(with_lessons)} replies to prompts with lessons, which are to be said without them"
        progress.choice("lesson_replies", len(chosen), reason)
    return _imitations([(prompt, prompt.sample.tokens.reply) for prompt in chosen], preset, scorer)


def _imitations(
    replies: Sequence[tuple[HintedPrompt, tuple[int, ...]]], preset: Preset, scorer: Scorer
) -> list[Imitation]:
    """These replies after the bare prompts, with what the teacher expects after the hinted ones."""
    sequences = [Tokens(prompt.hinted, reply, _teacher_temperature(prompt.sample)) for prompt, reply in replies]
    expected = scorer.expect(sequences, preset.teacher_k)
    return [
        Imitation(prompt.sample, Tokens(prompt.bare, reply, _teacher_temperature(prompt.sample)), 0.0, distribution)
        for (prompt, reply), distribution in zip(replies, expected, strict=True)
    ]


def _hinted_replies(
    preset: Preset, template: Template, prompts: Sequence[HintedPrompt], scorer: Scorer, progress: Progress
) -> list[Imitation]:
    """Make lessons of replies that the teacher writes itself.

    A rated reply shows the teacher only places that the policy comes to by itself. What was asked for may lie beyond
    them, as a name does that it never begins to say (docs/lab/training-log.md, the twenty-seventh look).
    """
    if not prompts:
        return []
    replies = _replies(prompts, scorer)
    sane = [
        (prompt, tuple(reply))
        for prompt, reply in zip(prompts, replies, strict=True)
        if reply and _is_sane(reply, template) and len(prompt.hinted) + len(reply) <= preset.max_seq_len
    ]
    reason = f"of {len(prompts)} that the model wrote with the comment: not broken off, not empty, no loop, no echo"
    if too_large := replies.count(UNWRITTEN):
        reason += f"; memory was too short for {too_large}"
    progress.choice("hinted_replies", len(sane), reason)
    return _imitations(sane, preset, scorer)


def _corrections(preset: Preset, template: Template, samples: Sequence[Sample], progress: Progress) -> list[Imitation]:
    imitations = []
    for sample in samples:
        if sample.correction is None:
            continue
        reply = template.reply(sample.correction, ended=True)
        tokens = Tokens(sample.tokens.prompt, reply, sample.tokens.temperature)
        if len(tokens) > preset.max_seq_len:
            progress.warning(f"the correction of {sample.rating} is longer than max_seq_len: it does not teach.")
        else:
            imitations.append(Imitation(sample, tokens, 1.0, None))
    return imitations


def hint(messages: Sequence[dict[str, Any]], comment: str) -> list[dict[str, Any]]:
    """Put the comment after the last user message. Raises BadLine where there is none."""
    hinted = with_hint(messages, comment)
    if hinted is None:
        raise BadLine("no user message to put the comment after")
    return hinted


def _hinted_prompts(
    preset: Preset, template: Template, samples: Sequence[Sample], progress: Progress
) -> list[HintedPrompt]:
    """Samples that teach: disliked ones with a comment, liked ones with lessons. Prompts are as the server renders
    them, else as the template does. What cannot be rendered keeps its rating only."""
    prompts, mismatches = [], 0
    for sample in samples:
        if not wishes_of(sample):
            continue
        try:
            prompt = _hinted_prompt(sample, template)
            if len(prompt.hinted) + len(sample.tokens.reply) > preset.max_seq_len:
                raise BadLine("with it the sample is longer than max_seq_len")
            if sample.exact and (sample.bare if sample.lessons else sample.hinted) is None:
                own_prompt = template.prompt(sample.messages, sample.tools, sample.template_kwargs)
                mismatches += own_prompt != sample.tokens.prompt
        except BadLine as error:
            progress.warning(f"the comment of {sample.rating} does not teach, its rating does: {error}.")
            continue
        prompts.append(prompt)
    if mismatches:
        progress.warning(
            f"{mismatches} of {len(prompts)} samples with comments or lessons were served with another prompt than "
            "this trainer renders from their messages; their teacher sees the trainer's."
        )
    return prompts


def _hinted_prompt(sample: Sample, template: Template) -> HintedPrompt:
    """Raises BadLine where one of the two cannot be rendered."""

    def render(messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        return template.prompt(messages, sample.tools, sample.template_kwargs)

    comment, bare = comment_of(sample), sample.tokens.prompt
    if sample.lessons:
        messages = without_lessons(sample.messages, sample.lessons)
        if messages is None:
            raise BadLine("its lessons are not where they were put")
        bare = sample.bare or render(messages)
    if comment is None or comment in sample.lessons:
        return HintedPrompt(sample, sample.tokens.prompt, bare)
    return HintedPrompt(sample, sample.hinted or render(hint(sample.messages, comment)), bare)


def _replies(hinted: Sequence[HintedPrompt], scorer: Scorer) -> list[list[int]]:
    """One reply to each hinted prompt, sampled as the rated one was but for the truncation; UNWRITTEN where a prompt
    does not fit into memory."""
    replies: list[list[int]] = [UNWRITTEN] * len(hinted)
    by_temperature: dict[float, list[int]] = {}
    for i, prompt in enumerate(hinted):
        by_temperature.setdefault(_teacher_temperature(prompt.sample), []).append(i)
    for temperature, members in by_temperature.items():
        most = _most_tokens([hinted[i].sample for i in members])
        waiting = list(_batches(members, [len(hinted[i].hinted) + most for i in members]))
        while waiting:
            part = waiting.pop(0)
            try:
                prompts = [hinted[i].hinted for i in part]
                written = _written(prompts, most, temperature, scorer.spec.seed + part[0], scorer)
            except OutOfMemory:
                middle = len(part) // 2
                waiting = [half for half in (part[:middle], part[middle:]) if middle] + waiting
                continue
            for i, reply in zip(part, written, strict=True):
                replies[i] = reply
    return replies


def _written(
    prompts: Sequence[tuple[int, ...]], most: int, temperature: float, seed: int, scorer: Scorer
) -> list[list[int]]:
    """The replies of one batch; those that it wrote before a stop. Raises OutOfMemory."""
    name = content_name(scorer.owner, seed, most, temperature, prompts, suffix="json")
    if (cached := scorer.cache.get(name)) is not None:
        cached_replies: list[list[int]] = json.loads(cached)
        return cached_replies
    scorer.stop.check()
    replies = scorer.policy.generate(prompts, max_tokens=most, temperature=temperature, seed=seed)
    scorer.cache.keep(name, json.dumps(replies).encode())
    return replies


def _teacher_temperature(sample: Sample) -> float:
    """The temperature at which the teacher writes. Hotter than 1 it says what nobody asked for, and the gate would take
    that for a style."""
    return min(1.0, sample.tokens.temperature)


def _most_tokens(samples: Sequence[Sample]) -> int:
    """Tokens that a reply of the teacher may have."""
    longest = max(len(sample.tokens.reply) for sample in samples)
    return min(MOST_TOKENS, max(LEAST_TOKENS, int(LONGER * longest)))


def _batches(indices: Sequence[int], lengths: Sequence[int]) -> Iterator[list[int]]:
    """Split indices into batches, in their order. Rows are padded to the longest; a batch has at most TOKENS_AT_ONCE
    tokens, or one row."""
    batch: list[int] = []
    width = 0
    for index, length in zip(indices, lengths, strict=True):
        if batch and (len(batch) + 1) * max(width, length) > TOKENS_AT_ONCE:
            yield batch
            batch, width = [], 0
        batch, width = [*batch, index], max(width, length)
    if batch:
        yield batch


def _is_sane(reply: Sequence[int], template: Template) -> bool:
    """Tell whether a reply can teach: it ended or has all tokens that it may, is not empty, no echo and no loop."""
    text = template.text(reply).strip()
    is_whole = reply[-1] == template.end or len(reply) >= MOST_TOKENS
    return is_whole and bool(text) and ECHO.lower() not in text.lower() and not is_looping(reply)
