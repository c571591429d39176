"""The gate: is the candidate no worse than its parent, and still sane? Named numbers with bounds, nothing else.

Owns the checks, their prompts and the text. Same candidate, same verdict: one fixed seed, and exact computations on
what it brings. What is cheap is asked first, and after a no nothing more is asked. Replies are sampled, because greedy
ones of a small model loop even when it is well. Eight replies are too few to compare means of: two seeds of the base
itself differ by 0.2 nats a token. So the base is asked at the very positions of the candidate's replies instead. Not
here: what happens to a candidate that fails (loop).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from config.languages import DEFAULT, every, gate_questions, language
from trainer.formats.manifest import MANIFEST
from trainer.io.progress import Stop
from trainer.io.run_folder import RunError
from trainer.lessons.batch import score
from trainer.lessons.chat_template import Template
from trainer.lessons.degenerate import is_looping, repeated_share
from trainer.lessons.lesson import HeldBackReply, Lesson
from trainer.lessons.prompts import NEUTRAL
from trainer.mis_po import Floats
from trainer.policy.packing import Tokens
from trainer.policy.policy import Policy
from trainer.run import topic
from trainer.run.asked_style import AskedStyle, parent_explains
from trainer.run.base_surprise import BaseSurprise
from trainer.run.replay_margin import ReplayMargin

TIMES = 3  # that a candidate answers each question; what is mad in one of ten replies is in none of eight in 43 of 100
RATED_TOKENS = 64  # of an answer to a rated prompt, which people read
WIDE = 4  # times as long as the questions: longer rated prompts are asked apart, as a batch is padded to its longest
REPLY_TOKENS = 48  # long enough to loop and to lose the thread, short enough for some seconds on 2 cores
TEMPERATURE = 0.8  # looser than greedy, where every small model loops; tighter than 1, where its tail speaks
GATE_SEED = 20  # always the same, so that parent and candidate, and every run, are compared alike
RATED_SEED = GATE_SEED + 2
# In any language: a model may refuse in another one than it was asked in.
REFUSAL = re.compile("|".join(pattern for language in every() for pattern in language.refusals), re.I)
FIRST_LETTER = re.compile(r"\w")
CHECKS = 13  # that `judge` makes; those of the ratings come before (ratings)
MIN_CHANGE = 1e-4  # nats a token: a tenth of what one small optimiser step does; rounding alone is below 1e-6


@dataclass(frozen=True, slots=True)
class Bounds:
    margin_slack: float = 0.05  # nats a token that the margin may fall below the parent's
    base_nll_rise: float = 0.3  # nats a token
    text_nll_rise: float = 0.05  # of the base's own NLL of the text
    min_length_ratio: float = 0.5  # of the parent's length, after what the ratings asked for
    max_length_ratio: float = 2.0
    max_looping: int = 1  # replies
    repetition_rise: float = 0.15  # of the share of 4-grams that were there before in a reply
    min_entropy_ratio: float = 0.4  # of the base's, at the same positions
    more_refusals: int = 1  # replies, than the parent's
    topic_fall: float = 0.25  # nats a token that replies may depend less on their question than the parent's (topic)
    max_chance: float = (
        1.0  # of ratings drawn at random that would fit the replies as well (ratings); 1: a smaller step
    )

    @classmethod
    def of(cls, values: Mapping[str, float]) -> Bounds:
        names = {f.name for f in fields(cls)}
        if strangers := sorted(values.keys() - names):
            raise RunError(f"the gate has no bound {strangers[0]!r}; it has {', '.join(sorted(names))}.")
        return cls(**values)  # type: ignore[arg-type]  # counts may come as floats


@dataclass(frozen=True, slots=True)
class Check:
    value: float | None  # None: could not be taken, and `note` says why
    bound: float
    ok: bool
    note: str | None = None

    def json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None or name == "value"}


# To rated prompts, for people; None where these were not asked.
RatedAnswers = list[tuple[int, ...]] | None


class SideAnswers(NamedTuple):
    """Replies of the parent or the candidate, and what is known of them."""

    questions: Sequence[Tokens] = ()  # to the gate's questions; none of a candidate that was not asked
    further: Sequence[Tokens] = ()  # to the same questions, a candidate's alone
    rated: RatedAnswers = None
    topic: Floats | None = None  # how much those to the questions depend on them (topic); None: not measured yet


class GateVerdict(NamedTuple):
    checks: dict[str, Check]
    answers: SideAnswers  # the candidate's


def judge(
    policy: Policy,
    template: Template,
    bounds: Bounds,
    *,
    parent: Path | None,
    parent_answers: SideAnswers,
    lessons: Sequence[Lesson],
    held_back: Sequence[HeldBackReply],
    changed: float,
    replay_margin: ReplayMargin | None,
    stop: Stop,
    teacher_distance: float = 0.0,
    languages: Sequence[str] = (DEFAULT,),
    rated: Sequence[tuple[int, ...]] = (),
    tell: Callable[[int], object] = lambda count: None,
) -> GateVerdict:
    """Make the checks on what the policy wears now, CHECKS of them, until some say no; `tell` hears how many are done.

    `lessons` say what was asked for; `held_back` were not trained on. `changed` (nats a token) and `replay_margin` (as
    `margin`, but of the newest replies that were) were measured after the last step. `teacher_distance` is how far a
    teacher was from the policy, nats a token. `languages` are those of the prompts: all questions and texts are in
    these. `rated` are prompts to answer beside the questions.
    """
    checks = {"finite": finite(policy), "no_op": Check(_round(changed), MIN_CHANGE, changed >= MIN_CHANGE)}

    def is_refused() -> bool:
        """Tell whether a check has said no: the verdict is certain then, and no more is asked."""
        tell(len(checks))
        stop.check()
        return not all(check.ok for check in checks.values())

    if is_refused():
        return GateVerdict(checks, SideAnswers())
    checks["replay"] = replay(replay_margin)
    checks["margin"] = margin(policy, held_back, bounds)
    if is_refused():
        return GateVerdict(checks, SideAnswers())
    checks["text_nll"] = text_nll(policy, template, bounds, languages)
    if is_refused():
        return GateVerdict(checks, SideAnswers())
    questions = gate_questions(languages)
    answers = answer_all(policy, template, questions, rated, times=TIMES)
    candidate, parent_replies = list(answers.questions), parent_answers.questions
    stop.check()
    checks["empty"] = empty(candidate, template)
    checks["looping"] = looping(candidate, bounds)
    checks["repetition"] = repetition(candidate, parent_replies, bounds)
    checks["refusals"] = refusals(candidate, parent_replies, template, bounds)
    style = AskedStyle.of(policy, template, lessons)
    checks["length"] = length(candidate, parent_replies, lessons, bounds)
    if not checks["length"].ok:
        hinted = style.length(questions, REPLY_TOKENS, TEMPERATURE, GATE_SEED)
        checks["length"] = length(candidate, parent_replies, lessons, bounds, hinted)
    if is_refused():
        return GateVerdict(checks, answers)
    if (parent_depends := parent_answers.topic) is None:
        depends, parent_depends = topic.measure(policy, candidate, parent_replies, parts=len(languages))
    else:
        (depends,) = topic.measure(policy, candidate, parts=len(languages))
    answers = answers._replace(topic=depends)
    checks["topic"] = on_topic(depends, parent_depends, bounds)
    if is_refused():
        return GateVerdict(checks, answers)
    inherited = granted(parent, bounds)
    allowance = max(teacher_distance, inherited)
    replies = [*candidate, *answers.further]
    surprise = BaseSurprise.measure(policy, replies)
    checks |= compare_with_base(surprise, lessons, bounds, allowance)
    if not checks["base_nll"].ok or inherited > bounds.base_nll_rise:
        explained = style.explains(replies, questions * TIMES)
        if inherited:
            explained = max(explained, min(inherited, parent_explains(policy, parent, replies)))
        checks["base_nll"] = grant(checks["base_nll"], bounds, explained)
    tell(len(checks))
    return GateVerdict(checks, answers)


def answer_questions(
    policy: Policy,
    template: Template,
    questions: Sequence[str] = NEUTRAL,
    seed: int = GATE_SEED,
) -> list[Tokens]:
    """Answers of the policy to ordinary questions, in one batch."""
    prompts = [template.question(text) for text in questions]
    replies = policy.generate(prompts, max_tokens=REPLY_TOKENS, temperature=TEMPERATURE, seed=seed)
    return [Tokens(prompt, tuple(reply)) for prompt, reply in zip(prompts, replies, strict=True)]


def answer_all(
    policy: Policy,
    template: Template,
    questions: Sequence[str],
    rated: Sequence[tuple[int, ...]],
    *,
    times: int = 1,
) -> SideAnswers:
    """Answers to the gate's questions, each asked so many `times`, and in the same batch those to rated prompts, unless
    these are long. A step of few replies waits for the weights, so more of them cost little."""
    prompts = [template.question(text) for text in questions]
    count, repeated = len(prompts), prompts * times
    joined = rated if rated and max(map(len, rated)) <= WIDE * max(map(len, prompts)) else ()
    seeds = [GATE_SEED] * count + [GATE_SEED + 1] * (len(repeated) - count) + [RATED_SEED] * len(joined)
    length = RATED_TOKENS if joined else REPLY_TOKENS
    replies = policy.generate([*repeated, *joined], max_tokens=length, temperature=TEMPERATURE, seed=seeds)
    answers = [Tokens(prompt, tuple(reply[:REPLY_TOKENS])) for prompt, reply in zip(repeated, replies, strict=False)]
    rated_answers = [tuple(reply) for reply in replies[len(repeated) :]] if joined else None
    return SideAnswers(answers[:count], tuple(answers[count:]), rated_answers)


def parent_answers(
    policy: Policy,
    template: Template,
    parent: Path | None,
    languages: Sequence[str],
    rated: Sequence[tuple[int, ...]] = (),
) -> SideAnswers:
    """The parent's answers to the gate's questions: those of its own gate, where these very prompts were asked then."""
    questions = gate_questions(languages)
    prompts = [template.question(text) for text in questions]
    memory = _manifest(parent).get("answers") or {}
    replies = memory.get("replies") or []
    if memory.get("prompts") == _prompts_hash(prompts) and _are_replies(replies, len(prompts), policy):
        answers = [Tokens(prompt, tuple(reply)) for prompt, reply in zip(prompts, replies, strict=True)]
        return SideAnswers(answers, topic=_kept_topic(memory, len(prompts)))
    with policy.wearing(parent):
        return answer_all(policy, template, questions, rated)


def kept_answers(answers: SideAnswers) -> dict[str, Any]:
    """Give what a manifest keeps of a version's answers, for the next run's `parent_answers`."""
    return {
        "prompts": _prompts_hash([answer.prompt for answer in answers.questions]),
        "replies": [answer.reply for answer in answers.questions],
        "topic": None if answers.topic is None else np.round(answers.topic, 6).tolist(),
    }


def _kept_topic(memory: Mapping[str, Any], count: int) -> Floats | None:
    """How much the kept replies depend on their questions; None where a manifest does not have so many numbers."""
    values = memory.get("topic")
    if not isinstance(values, list) or len(values) != count or not all(isinstance(value, float) for value in values):
        return None
    return np.array(values) if np.isfinite(values).all() else None


def _are_replies(replies: Any, count: int, policy: Policy) -> bool:
    """Tell whether a manifest, which anybody may have written, has so many replies of this vocabulary."""
    ids = range(len(policy.tokenizer))
    return (
        isinstance(replies, list)
        and len(replies) == count
        and all(
            isinstance(reply, list) and all(isinstance(token, int) and token in ids for token in reply)
            for reply in replies
        )
    )


def _prompts_hash(prompts: Sequence[Sequence[int]]) -> str:
    """Hash the prompts, and how they are answered."""
    content = json.dumps([list(map(list, prompts)), REPLY_TOKENS, TEMPERATURE, GATE_SEED])
    return hashlib.sha256(content.encode()).hexdigest()


def finite(policy: Policy) -> Check:
    bad = sum(int((~np.isfinite(tensor)).sum()) for tensor in policy.adapter().values())
    return Check(float(bad), 0.0, bad == 0)


def margin(policy: Policy, held_back: Sequence[HeldBackReply], bounds: Bounds) -> Check:
    """Mean log-prob a token of liked minus disliked held-back replies, candidate minus parent.

    With few of them chance alone moves it, so the bound gives way by two standard errors, over tokens or over replies,
    whichever is larger. One reply has no spread, and the tokens of a reply change together.
    """
    liked = [reply for reply in held_back if reply.sample.reward > 0]
    disliked = [reply for reply in held_back if reply.sample.reward < 0]
    bound = -bounds.margin_slack
    if not liked or not disliked:
        missing = "liked" if not liked else "disliked"
        return Check(None, bound, True, f"skipped: none of the {len(held_back)} held-back samples is {missing}")

    value = variance = 0.0
    for side, sign in ((liked, 1), (disliked, -1)):
        scored = score(policy, [reply.sample.tokens for reply in side])
        changes = [(n - reply.old)[reply.sample.chosen] for n, reply in zip(scored, side, strict=True)]  # (T,) each
        means = np.array([c.mean() for c in changes])
        value += sign * float(means.mean())
        within = sum(float(c.var()) / len(c) for c in changes) / len(changes) ** 2
        between = float(means.var(ddof=1)) / len(means) if len(means) > 1 else 0.0
        variance += max(within, between)
    bound -= 2 * math.sqrt(variance)
    note = f"{len(liked)} liked and {len(disliked)} disliked, standard error {math.sqrt(variance):.3f}"
    return Check(_round(value), _round(bound), value >= bound, note)


def replay(margin: ReplayMargin | None) -> Check:
    """The margin on the last liked and disliked replies of this very run, or the rise of what earned ratings.

    Steps that did not even move those apart went the wrong way. Where the run leant, the bound gives way by two
    standard errors (replay_margin).
    """
    if margin is None:
        return Check(None, 0.0, True, "skipped: the run has replies of one sign only")
    bound = -2 * margin.error
    note = f"leaning, standard error {margin.error:.3f}" if margin.error else ""
    return Check(_round(margin.value), _round(bound), margin.value >= bound, note)


def text_nll(policy: Policy, template: Template, bounds: Bounds, languages: Sequence[str] = (DEFAULT,)) -> Check:
    """NLL of a fixed text, as a share more than the base's own: the largest of these languages."""
    texts = [template.reply(language(code).text, ended=False) for code in languages]
    passages = [Tokens(ids[:1], ids[1:]) for ids in texts]
    now = [-scores.mean() for scores in score(policy, passages)]
    with policy.wearing(None):
        base = [-scores.mean() for scores in score(policy, passages)]
    rises = {code: float(n / b - 1) for code, n, b in zip(languages, now, base, strict=True)}
    rise = max(rises.values())
    note = ", ".join(f"{code} {value:+.3f}" for code, value in rises.items()) if len(rises) > 1 else None
    return Check(_round(rise), bounds.text_nll_rise, rise <= bounds.text_nll_rise, note)


def empty(replies: Sequence[Tokens], template: Template) -> Check:
    count = sum(not template.text(r.reply).strip() for r in replies)
    return Check(float(count), 0.0, count == 0)


def looping(replies: Sequence[Tokens], bounds: Bounds) -> Check:
    count = sum(is_looping(r.reply) for r in replies)
    return Check(float(count), float(bounds.max_looping), count <= bounds.max_looping)


def repetition(replies: Sequence[Tokens], parent_replies: Sequence[Tokens], bounds: Bounds) -> Check:
    """Mean share of a reply's 4-grams that it had said before, minus the parent's."""
    share, parent_share = (np.mean([repeated_share(r.reply) for r in side]) for side in (replies, parent_replies))
    rise = float(share - parent_share)
    return Check(_round(rise), bounds.repetition_rise, rise <= bounds.repetition_rise)


def refusals(replies: Sequence[Tokens], parent_replies: Sequence[Tokens], template: Template, bounds: Bounds) -> Check:
    """Count the refused ones of eight harmless questions."""
    sides = (replies, parent_replies)
    count, parent_count = (sum(is_refusal(template.text(r.reply)) for r in side) for side in sides)
    bound = parent_count + bounds.more_refusals
    return Check(float(count), float(bound), count <= bound, f"the parent refuses {parent_count}")


def is_refusal(text: str) -> bool:
    """Tell whether a text begins like a refusal in any language."""
    start = FIRST_LETTER.search(text)
    return start is not None and REFUSAL.match(text.replace("’", "'"), start.start()) is not None


def on_topic(depends: Floats, parent_depends: Floats, bounds: Bounds) -> Check:
    """How much less replies depend on what was asked than the parent's, by what the base makes of both (topic)."""
    change, bound, note = topic.compare(depends, parent_depends, bounds.topic_fall)
    return Check(_round(change), _round(bound), change >= bound, note)


def length(
    replies: Sequence[Tokens],
    parent_replies: Sequence[Tokens],
    lessons: Sequence[Lesson],
    bounds: Bounds,
    hinted: float | None = None,
) -> Check:
    """Mean length as a share of the parent's. A taste for short or long replies moves the bound by what it asks for.

    `bound` is the nearer one; the replies are cut at REPLY_TOKENS, so this sees collapse and rambling, not a taste.
    `hinted`: the mean length, in tokens, of the base's replies once it is told what comments asked for.
    """
    liked = [
        len(lesson.old)
        for lesson in lessons
        if lesson.is_imitated or lesson.sample.reward > 0 or (lesson.sample.labelled and lesson.direction > 0)
    ]
    rated = [len(lesson.old) for lesson in lessons if not lesson.is_imitated]
    target = float(np.mean(liked) / np.mean(rated)) if liked and rated else 1.0
    parent_length = _mean_length(parent_replies)
    ratio, hinted_ratio = _mean_length(replies) / parent_length, target if hinted is None else hinted / parent_length
    low = bounds.min_length_ratio * min(target, hinted_ratio, 1)
    high = bounds.max_length_ratio * max(target, hinted_ratio, 1)
    bound = low if ratio < 1 else high
    note = f"the ratings asked for {target:.0%} of the length"
    note += "" if hinted is None else f", the base that is told the same answers with {hinted_ratio:.0%}"
    return Check(_round(ratio), _round(bound), low <= ratio <= high, note)


def compare_with_base(
    surprise: BaseSurprise, lessons: Sequence[Lesson], bounds: Bounds, allowance: float = 0.0
) -> dict[str, Check]:
    """At every position of what the candidate would say, how it differs from the base.

    `base_nll`: mean NLL a token under the base, minus that of what the base would say there. `entropy`: of the
    candidate's next token, as a share of the base's: near 0 it has one thing left to say.

    Another style surprises the base. The bound of `base_nll` rises by as much as a teacher or replies to imitate asked
    for. It never rises to more than twice itself. For replies it is how much more they surprise the base than the rated
    ones do. What was granted to the parent is the candidate's too: it goes on in the style that was asked for then.
    """
    rise, ratio = surprise.rise, surprise.entropy_ratio
    imitated = [-lesson.ref for lesson in lessons if lesson.is_imitated]
    rated = [-lesson.ref for lesson in lessons if not lesson.is_imitated]
    if imitated and rated:
        allowance = max(allowance, float(np.concatenate(imitated).mean() - np.concatenate(rated).mean()))
    allowance = max(0.0, min(allowance, bounds.base_nll_rise))
    bound = bounds.base_nll_rise + allowance
    note = f"of {len(surprise.replies)} replies, standard error {surprise.error:.3f}"
    note += f"; comments and corrections asked for {allowance:.2f} of it" if allowance else ""
    return {
        "base_nll": Check(_round(rise), _round(bound), rise <= bound, note),
        "entropy": Check(_round(ratio), bounds.min_entropy_ratio, ratio >= bounds.min_entropy_ratio),
    }


def grant(check: Check, bounds: Bounds, explained: float) -> Check:
    """The check of `base_nll` with a higher bound, where the style that was asked for explains more than it had.
    `explained`: nats a token."""
    bound = _round(bounds.base_nll_rise + explained)
    if check.value is None or bound <= check.bound:
        return check
    note = f"{check.note}; the style that was asked for explains {explained:.2f} of it"
    return Check(check.value, bound, check.value <= bound, note)


def granted(parent: Path | None, bounds: Bounds) -> float:
    """By how much comments and corrections had raised the parent's bound of `base_nll`, nats a token."""
    return _granted(_manifest(parent), bounds)


def ratings_before_teaching(parent: Path | None) -> tuple[int, int] | None:
    """Good and all ratings of the version that comments made the parent of; None where they made none."""
    manifest = _manifest(parent)
    good, rated = manifest.get("liked") or (0, 0)
    return (int(good), int(rated)) if rated and (manifest.get("metrics") or {}).get("taught") else None


def tuned_rate(parent: Path | None) -> float | None:
    """The learning rate that a sweep found for this version or one before it."""
    rate = _manifest(parent).get("tuned")
    return float(rate) if rate else None


def spent_sense(parent: Path | None, bounds: Bounds) -> float:
    """Share of what it may lose, 0 to 1, that the parent's `base_nll` was: how much of its sense is lost."""
    manifest = _manifest(parent)
    value = _sense_check(manifest).get("value")
    if not value or not math.isfinite(value) or value < 0:
        return 0.0
    bound = bounds.base_nll_rise + _granted(manifest, bounds)
    return 1.0 if value >= bound else float(value / bound)


def _granted(manifest: dict[str, Any], bounds: Bounds) -> float:
    judged = _sense_check(manifest)
    return float(judged["bound"]) - manifest.get("base_nll_rise", bounds.base_nll_rise) if judged else 0.0


def _sense_check(manifest: dict[str, Any]) -> dict[str, Any]:
    """The check of `base_nll` that a version went live with, if it had one."""
    return (manifest.get("gate") or {}).get("base_nll") or {}


def _manifest(parent: Path | None) -> dict[str, Any]:
    """Nothing, for the base and an adapter from elsewhere."""
    if parent is None or not (parent / MANIFEST).exists():
        return {}
    manifest: dict[str, Any] = json.loads((parent / MANIFEST).read_bytes())
    return manifest


def _mean_length(replies: Sequence[Tokens]) -> float:
    return float(np.mean([len(r.reply) for r in replies]))


def _round(value: float) -> float:
    return round(value, 6) if math.isfinite(value) else math.copysign(1e9, value if value == value else 1.0)
