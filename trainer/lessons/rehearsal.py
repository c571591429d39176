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
from trainer.lessons.line_members import BadLine
from trainer.lessons.samples import Sample, Template
from trainer.objective import Floats
from trainer.policy import packing
from trainer.policy.packing import Tokens
from trainer.policy.policy import LogProbs, Policy

RATED: Final = {"reward": 0.0, "weight": 1.0}  # what a line of samples.jsonl has besides
# Operations for the answers of one look, two a parameter and token: some minutes of one core.
AFFORDABLE: Final = 1e13


def refusals(lines: Sequence[Mapping[str, Any]], template: Template, *, max_seq_len: int) -> list[str | None]:
    """Why a run would not train on each line; None where it would."""
    return [one if isinstance(one, str) else None for one in _read(lines, template, max_seq_len)]


def unlikely(
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
    taken: list[Sample] = []
    for sample in _read(lines, template, max_seq_len):
        if isinstance(sample, str) or sample.exact or sample.flaw or sample.version != parent:
            continue
        if (room := room - len(sample.tokens)) < 0:
            break
        taken.append(sample)
    old = [_log_probs(policy, sample.tokens) for sample in taken]
    odds = {
        one.rating: _at_servers_temperature(policy, one, now) - one.served
        for one, now in zip(taken, old, strict=True)
        if one.served is not None
    }
    found = reply_checks.mismatch(taken, old, parent, odds)
    place = {str(line.get("completion")): at for at, line in enumerate(lines)}
    doubt = None if found else next(iter(reply_checks.mismatch(taken, old, parent, odds, sure=False).values()), None)
    return {place[rating]: why for rating, why in found.items()}, doubt


def known_tokens(lines: Sequence[Mapping[str, Any]], template: Template) -> dict[str, int]:
    """The number of tokens of these replies, and of how many the ids and the log-probs are exact."""
    tokens = ids = log_probs = 0
    for line in lines:
        if line.get("exact") is True:
            exact = len(line.get("token_ids") or ())
            tokens, ids, log_probs = tokens + exact, ids + exact, log_probs + exact
            continue
        found, count = template.captured(line), line.get("reply_tokens")
        if found is not None:
            ids += len(found.ids)
            log_probs += int(np.isfinite(found.log_probs).sum())
        if type(count) is int and count > 0:
            tokens += count
        else:  # its server does not count
            tokens += len(template.reply(str(line.get("text") or ""), ended=line.get("finish_reason") == "stop"))
    return {"tokens": tokens, "ids": ids, "log_probs": log_probs}


def _read(lines: Sequence[Mapping[str, Any]], template: Template, max_seq_len: int) -> Iterator[Sample | str]:
    """Each line as a run reads it, or why it would not."""
    template = template.as_served(samples.known(lines, template))
    for line in lines:
        try:
            yield samples.parse({**line, **RATED}, str(line.get("completion")), template, max_seq_len=max_seq_len)
        except BadLine as error:
            yield str(error)


def _log_probs(policy: Policy, tokens: Tokens) -> LogProbs:
    return policy.log_probs(packing.pack([tokens]))


def _at_servers_temperature(policy: Policy, sample: Sample, now: LogProbs) -> Floats:
    if sample.served_at == sample.tokens.temperature:
        return now.plain
    return _log_probs(policy, replace(sample.tokens, temperature=sample.served_at)).plain
