"""A run's look at answers that nobody has rated yet: which it would refuse, and how much is known of their tokens.

It does what a run does before its first step (samples, rendering, reply_checks): with the tokeniser alone, or with the
weights too. Not here: which answers are tried, and when (the proxy's rehearsal).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from trainer.lessons import reply_checks, samples
from trainer.lessons.chat_template import Template
from trainer.lessons.lesson import ReadSample
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


def unlikely_replies(
    lines: Sequence[Mapping[str, Any]],
    template: Template,
    policy: Policy,
    *,
    parent: int,
    parameters: int,
    max_seq_len: int,
) -> tuple[dict[int, str], str | None]:
    """The places of answers whose words a run that starts from `parent` would refuse, with the reason; and why nobody
    can tell yet, or None. The policy wears `parent`.

    Only what is captured without exact ids is looked at, as in a run, the newest first, as far as it is affordable.
    """
    room = AFFORDABLE / (2 * parameters)
    affordable: list[ReadSample] = []
    for sample in _read_lines(lines, template, max_seq_len):
        if isinstance(sample, str) or sample.exact or sample.flaw or sample.version != parent:
            continue
        if (room := room - len(sample.tokens)) < 0:
            break
        affordable.append(ReadSample(sample, _log_probs(policy, sample.tokens)))
    odds = {
        read.sample.rating: _at_served_temperature(policy, read) - read.sample.served
        for read in affordable
        if read.sample.served is not None
    }
    mismatches = reply_checks.mismatch(affordable, parent, odds)
    index_of = {str(line.get("completion")): index for index, line in enumerate(lines)}
    doubts = {} if mismatches else reply_checks.mismatch(affordable, parent, odds, is_sure=False)
    doubt = next(iter(doubts.values()), None)
    return {index_of[rating]: reason for rating, reason in mismatches.items()}, doubt


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
