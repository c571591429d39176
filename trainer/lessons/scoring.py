"""Log-probs of replies under the policies that matter: ℓ_old, ℓ_ref, ℓ_β.

Owns the passes without a gradient, each done once and kept in the run's folder by content. The hidden states of the
samples, of which more is made, are in memory only. Not here: what follows from them (lessons, acceptance, advantages),
one pass (policies).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from trainer.formats import sidecar_files
from trainer.io.cache import Cache
from trainer.io.progress import Stop
from trainer.io.run_folder import RunSpec
from trainer.lessons.lesson import ReadSample
from trainer.mis_po import Floats
from trainer.policy import packing
from trainer.policy.packing import NOTHING, States, Tokens
from trainer.policy.policy import LogProbs, Policy, TokenDistribution

REMEMBERED = 256 << 20  # bytes of hidden states; what is past them is computed each time it is asked for
WIDEST = 1024  # features that a critic looks at; of wider states a fixed random projection


@dataclass(frozen=True, slots=True)
class Scorer:
    policy: Policy
    spec: RunSpec
    cache: Cache
    stop: Stop
    # (T + 1, H) each: before every token of a reply, and after its last one.
    known_states: dict[Tokens, States] = field(default_factory=dict)

    @property
    def parent(self) -> str:
        """The name of what the policy wears when a run begins."""
        return str(self.spec.adapters[self.spec.parent]) if self.spec.parent else "base"

    @property
    def owner(self) -> str:
        """Its name beside other weights'."""
        return f"{self.spec.weights} {self.parent}"

    def score_old(self, sequences: Sequence[Tokens], remember: Sequence[Tokens] = ()) -> list[LogProbs]:
        """ℓ_old: under the policy about to be trained, before its first step.

        Critic and anchor need the hidden states of those to `remember`, which are in `known_states` then.
        """
        return self._under(self.parent, sequences, remember)

    def score_reference(self, sequences: Sequence[Tokens]) -> list[LogProbs]:
        """ℓ_ref: the adapter off."""
        with self.policy.wearing(None):
            return self._under("base", sequences)

    def score_behaviour(self, samples: Sequence[ReadSample], ref: Sequence[LogProbs]) -> list[Floats]:
        """ℓ_β: as captured; recomputed under the version that produced the reply where that was not exact.

        Where the server gave log-probs of another distribution (before sampling), ℓ_old − ℓ_β is what that distribution
        says. It is the policy's own log-probs of it, less the server's.
        """
        behaviour = {s.sample.rating: s.sample.behaviour for s in samples if s.sample.behaviour is not None}
        behaviour |= self._recomputed([row for row in zip(samples, ref, strict=True) if not row[0].sample.exact])
        odds = self.served_odds(samples)
        return [
            np.where(np.isfinite(odds[rating]), s.old.sampled - odds[rating], behaviour[rating])
            if (rating := s.sample.rating) in odds
            else behaviour[rating]
            for s in samples
        ]

    def _recomputed(self, inexact: Sequence[tuple[ReadSample, LogProbs]]) -> dict[str, Floats]:
        """ℓ_β by rating, of samples with their ℓ_ref, under the version that produced each."""
        behaviour: dict[str, Floats] = {}
        for version in sorted({s.sample.version for s, _ in inexact}):
            members = [row for row in inexact if row[0].sample.version == version]
            if version == self.spec.parent:
                scored = [s.old for s, _ in members]
            elif version == 0:
                scored = [base for _, base in members]
            else:
                adapter = self.spec.adapters[version]
                with self.policy.wearing(adapter):
                    scored = self._under(str(adapter), [s.sample.tokens for s, _ in members])
            behaviour |= {
                s.sample.rating: np.where(s.sample.chosen, log_probs.sampled, np.nan)
                for (s, _), log_probs in zip(members, scored, strict=True)
            }
        return behaviour

    def served_odds(self, samples: Sequence[ReadSample]) -> dict[str, Floats]:
        """By rating, (T,): what the policy gives each token of a reply, less what its server gave it. Both are of the
        distribution that the server's log-probs are of; NaN where the server said nothing."""
        served = {s.sample.rating: s.sample.served for s in samples if s.sample.served is not None}
        plain = {s.sample.rating: s.old.plain for s in samples}
        rescaled = [
            s.sample for s in samples if s.sample.rating in served and s.sample.served_at != s.sample.tokens.temperature
        ]
        sequences = [replace(sample.tokens, temperature=sample.served_at) for sample in rescaled]
        # What the model makes of a prompt does not depend on the temperature.
        known_states = {
            sequence: self.known_states[sample.tokens]
            for sequence, sample in zip(sequences, rescaled, strict=True)
            if sample.tokens in self.known_states
        }
        scored = self._under(self.parent, sequences, known_states=known_states)
        plain |= {sample.rating: log_probs.plain for sample, log_probs in zip(rescaled, scored, strict=True)}
        return {rating: plain[rating] - log_probs for rating, log_probs in served.items()}

    def expect(
        self, sequences: Sequence[Tokens], k: int, *, required_ids: Sequence[int] = (), change: str = ""
    ) -> list[TokenDistribution]:
        """The policy's expectation in each reply, from the cache if these very tokens are in it.

        `required_ids`: as Policy.teach. `change`: how the policy differs from what the run begins with.
        """
        if not sequences:
            return []
        contents = [(s.prompt, s.reply, s.temperature) for s in sequences]
        name = content_name(self.owner + change, k, tuple(required_ids), contents)
        bounds = np.cumsum([0] + [len(s.reply) for s in sequences])
        if (cached := self.cache.arrays(name)) is not None:
            ids, log_probs = cached["ids"], cached["log_probs"]
        else:
            by_index: dict[int, TokenDistribution] = {}
            known_states = NOTHING if change else self.known_states
            for members, states in packing.passes(sequences, self.policy.budget, known_states):
                self.stop.check()
                packed = packing.pack([sequences[i] for i in members])
                top, ends = self.policy.teach(packed, k, required_ids, states), np.cumsum(packed.lengths)[:-1]
                parts = zip(np.split(top.ids, ends), np.split(top.log_probs, ends), strict=True)
                by_index |= {i: TokenDistribution(*part) for i, part in zip(members, parts, strict=True)}
            rows = [by_index[i] for i in range(len(sequences))]
            ids, log_probs = (np.concatenate(side) for side in zip(*rows, strict=True))
            self.cache.keep_arrays(name, ids=ids, log_probs=log_probs)
        return [TokenDistribution(ids[a:b], log_probs[a:b]) for a, b in pairwise(bounds)]

    def states(self, sequences: Sequence[Tokens]) -> list[States]:
        """(T + 1, H) as a critic looks at them, before each token of a reply and after its last; under the parent."""
        narrowed = {
            sequence: narrow(self.known_states[sequence]) for sequence in sequences if sequence in self.known_states
        }
        for sequence, states in self._states([sequence for sequence in sequences if sequence not in narrowed]):
            narrowed[sequence] = narrow(states)
        return [narrowed[sequence] for sequence in sequences]

    def _remember(self, sequences: Sequence[Tokens]) -> None:
        room = REMEMBERED
        for sequence, states in self._states(sequences):
            room -= states.nbytes
            if room < 0:
                return
            self.known_states[sequence] = states.copy()  # not a view that holds its whole pass

    def _states(self, sequences: Sequence[Tokens]) -> Iterator[tuple[Tokens, States]]:
        """(T + 1, H) of each, in the order of its pass."""
        # One token more, whichever: what is before it is what comes after the reply.
        extended = [replace(sequence, reply=(*sequence.reply, sequence.reply[-1])) for sequence in sequences]
        for members in packing.group(extended, self.policy.budget):
            self.stop.check()
            packed = packing.pack([extended[i] for i in members])
            parts = np.split(self.policy.states(packed), np.cumsum(packed.lengths)[:-1])
            yield from zip([sequences[i] for i in members], parts, strict=True)

    def critic_arrays(self) -> sidecar_files.Arrays:
        """Read the labels that earlier runs have left with the parent."""
        if not self.spec.parent:
            return {}
        arrays, _ = sidecar_files.read(self.spec.adapters[self.spec.parent], sidecar_files.CRITIC)
        return arrays

    def _under(
        self,
        name: str,
        sequences: Sequence[Tokens],
        remember: Sequence[Tokens] = (),
        known_states: Mapping[Tokens, States] = NOTHING,
    ) -> list[LogProbs]:
        """(T,) a sequence under what the policy wears now, from the cache when these very tokens are in it."""
        if not sequences:
            return []
        contents = [(s.prompt, s.reply, s.temperature, s.top_p, s.top_k) for s in sequences]
        file_name = content_name("with entropy", f"{self.spec.weights} {name}", contents)
        bounds = np.cumsum([0] + [len(s.reply) for s in sequences])
        # Also where these are known already: the credits of a run that goes on have to be the same to the last bit.
        self._remember(remember)
        if (cached := self.cache.arrays(file_name)) is not None:
            flat = cached["flat"]  # (3, N)
        else:
            known_states = self.known_states if remember else known_states  # those are the parent's
            flat = np.empty((3, bounds[-1]))
            for members, states in packing.passes(sequences, self.policy.budget, known_states):
                self.stop.check()
                packed = packing.pack([sequences[i] for i in members])
                values = np.stack(self.policy.log_probs(packed, states))  # (3, n)
                ends = np.cumsum(packed.lengths)
                for i, part in zip(members, np.split(values, ends[:-1], axis=1), strict=True):
                    flat[:, bounds[i] : bounds[i + 1]] = part
            self.cache.keep_arrays(file_name, flat=flat)
        return [LogProbs(*flat[:, a:b]) for a, b in pairwise(bounds)]


def content_name(*content: Any, suffix: str = "npz") -> str:
    """The name of a file of the cache, by what it is made of."""
    return f"{hashlib.sha256(repr(content).encode()).hexdigest()[:24]}.{suffix}"


def narrow(states: States) -> States:
    """At most WIDEST features: distances stay, nearly (Johnson and Lindenstrauss)."""
    if states.shape[1] <= WIDEST:
        return states
    narrowed: States = states @ _projection(states.shape[1])
    return narrowed


@lru_cache(maxsize=1)  # millions of random numbers, the same for each reply of a run
def _projection(width: int) -> States:
    projection: States = np.random.default_rng(0).standard_normal((width, WIDEST), np.float32) / np.sqrt(
        np.float32(WIDEST)
    )
    return projection
