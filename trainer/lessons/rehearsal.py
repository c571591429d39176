"""A run's look at answers that nobody has rated yet: which it would refuse, and how much is known of their tokens.

It does what a run does before its first step (samples, rendering, reply_checks, acceptance): with the tokeniser alone,
or with the weights too. Not here: which answers are tried, and when (the proxy's rehearsal).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from config.presets import Preset
from trainer.lessons import acceptance, reply_checks, samples
from trainer.lessons.chat_template import Template
from trainer.lessons.lesson import ReadSample, ScoredSample
from trainer.lessons.line_members import BadLine
from trainer.lessons.samples import Sample
from trainer.mis_po import Floats
from trainer.policy import packing
from trainer.policy.packing import Tokens
from trainer.policy.policy import LogProbs, Policy

UNRATED: Final = {"reward": 0.0, "weight": 1.0}  # what a line of samples.jsonl has besides
# Operations for the answers of one look, two a parameter and token: some minutes of one core.
AFFORDABLE: Final = 1e13


def refusals(lines: Sequence[Mapping[str, Any]], template: Template, *, max_seq_len: int) -> list[str | None]:
    """Why a run would not train on each line; None where it would."""
    return [reading if isinstance(reading, str) else None for reading in _read_lines(lines, template, max_seq_len)]


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Rules by which a run that starts from `parent` would judge replies."""

    preset: Preset
    parent: int
    comparison: Mapping[str, Any] | None = None  # noise seen as the server was compared with the weights


def unlikely_replies(
    lines: Sequence[Mapping[str, Any]],
    template: Template,
    policy: Policy,
    run_filter: RunFilter,
    *,
    parameters: int,
) -> tuple[dict[int, str], str | None]:
    """The places of answers whose words a run would refuse, with the reason; and why nobody can tell yet, or None. The
    policy wears the run's parent.

    The newest are looked at, as far as it is affordable. The rules are a run's own. Those of reply_checks are for
    what is captured without exact ids, and acceptance's band for all whose log-probs the server gave.
    """
    index_of = {str(line.get("completion")): index for index, line in enumerate(lines)}
    read = _affordable_replies(lines, template, policy, run_filter, parameters)
    odds = {
        s.sample.rating: _at_served_temperature(policy, s) - s.sample.served
        for s in read
        if s.sample.served is not None
    }
    mismatches = reply_checks.mismatch(read, run_filter.parent, odds)
    doubts = {} if mismatches else reply_checks.mismatch(read, run_filter.parent, odds, is_sure=False)
    doubt = next(iter(doubts.values()), None)
    refused, wait = _outside_band([s for s in read if s.sample.rating not in mismatches], odds, run_filter)
    reasons = mismatches | refused
    return {index_of[rating]: reason for rating, reason in reasons.items()}, doubt or wait


def _affordable_replies(
    lines: Sequence[Mapping[str, Any]], template: Template, policy: Policy, run_filter: RunFilter, parameters: int
) -> list[ReadSample]:
    room = AFFORDABLE / (2 * parameters)
    replies: list[ReadSample] = []
    for sample in _read_lines(lines, template, run_filter.preset.max_seq_len):
        if isinstance(sample, str) or sample.flaw or sample.version != run_filter.parent:
            continue
        if (room := room - len(sample.tokens)) < 0:
            break
        replies.append(ReadSample(sample, _log_probs(policy, sample.tokens)))
    return replies


def _outside_band(
    read: Sequence[ReadSample], odds: Mapping[str, Floats], run_filter: RunFilter
) -> tuple[dict[str, str], str | None]:
    """By rating, why the run's band refuses a reply; and why it is not known yet, where it is not."""
    scored = [ScoredSample(s.sample, s.old, s.old, _behaviour(s, odds.get(s.sample.rating))) for s in read]
    choice = acceptance.find_band(run_filter.preset, run_filter.parent, scored, (), run_filter.comparison)
    if choice.band is None:
        return {}, f"of the noise between its log-probs and the weights' {choice.reason}"
    reasons = {}
    for each in scored:
        verdict = acceptance.verdict(run_filter.preset, choice.band, each)
        if not verdict.reply:
            reasons[each.sample.rating] = (
                f"its log-probs are {verdict.log_rho:+.3f} nats a token from the weights', outside the run's band "
                f"({choice.reason.rstrip('.')})"
            )
    return reasons, None


def _behaviour(read: ReadSample, odds: Floats | None) -> Floats:
    """(T,) ℓ_β, as scoring has it."""
    if read.sample.behaviour is not None:
        return read.sample.behaviour
    return read.old.sampled if odds is None else np.where(np.isfinite(odds), read.old.sampled - odds, read.old.sampled)


def known_tokens(lines: Sequence[Mapping[str, Any]], template: Template) -> dict[str, int]:
    """The number of tokens of these replies, and of how many the ids and the log-probs are exact."""
    tokens = ids = log_probs = 0
    for line in lines:
        if line.get("exact") is True:
            exact = len(line.get("token_ids") or ())
            tokens, ids, log_probs = tokens + exact, ids + exact, log_probs + exact
            continue
        captured, count = template.captured(line), line.get("reply_tokens")
        if captured is not None:
            ids += len(captured.ids)
            log_probs += int(np.isfinite(captured.log_probs).sum())
        if type(count) is int and count > 0:
            tokens += count
        else:  # its server does not count
            tokens += len(template.reply(str(line.get("text") or ""), ended=line.get("finish_reason") == "stop"))
    return {"tokens": tokens, "ids": ids, "log_probs": log_probs}


def _read_lines(lines: Sequence[Mapping[str, Any]], template: Template, max_seq_len: int) -> Iterator[Sample | str]:
    """Each line as a run reads it, or why it would not."""
    template = template.as_served(samples.known_prompts(lines, template))
    for line in lines:
        try:
            yield samples.parse({**line, **UNRATED}, str(line.get("completion")), template, max_seq_len=max_seq_len)
        except BadLine as error:
            yield str(error)


def _log_probs(policy: Policy, tokens: Tokens) -> LogProbs:
    return policy.log_probs(packing.pack([tokens]))


def _at_served_temperature(policy: Policy, read: ReadSample) -> Floats:
    tokens, temperature = read.sample.tokens, read.sample.served_at
    if temperature == tokens.temperature:
        return read.old.plain
    return _log_probs(policy, replace(tokens, temperature=temperature)).plain
