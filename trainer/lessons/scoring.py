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

import numpy as np

from trainer.formats import sidecar_files as kept
from trainer.io.cache import Cache
from trainer.io.progress import Stop
from trainer.io.run_folder import RunSpec
from trainer.lessons.samples import Sample
from trainer.objective import Floats
from trainer.policy import packing
from trainer.policy.packing import NOTHING, States, Tokens
from trainer.policy.policy import LogProbs, Policy

REMEMBERED = 256 << 20  # bytes of hidden states; what is past them is computed each time it is asked for
WIDEST = 1024  # features that a critic looks at; of wider states a fixed random projection


@dataclass(frozen=True, slots=True)
class Scorer:
    policy: Policy
    spec: RunSpec
    cache: Cache
    stop: Stop
    known: dict[Tokens, States] = field(default_factory=dict)  # (T + 1, H) each: after the reply's last token, too

    @property
    def parent(self) -> str:
        """The name of what the policy wears when a run begins."""
        return str(self.spec.adapters[self.spec.parent]) if self.spec.parent else "base"

    def now(self, sequences: Sequence[Tokens], remember: Sequence[Tokens] = ()) -> list[LogProbs]:
        """ℓ_old: under the policy about to be trained, before its first step.

        Of those to `remember`, critic and what is to stay are made of the same hidden states: they are `known` then.
        """
        return self._under(self.parent, sequences, remember)

    def reference(self, sequences: Sequence[Tokens]) -> list[LogProbs]:
        """ℓ_ref: the adapter off."""
        with self.policy.wearing(None):
            return self._under("base", sequences)

    def behaviour(self, samples: Sequence[Sample], old: Sequence[LogProbs], ref: Sequence[LogProbs]) -> list[Floats]:
        """ℓ_β: as captured; recomputed under the version that produced the reply where that was not exact.

        Where the server gave log-probs of another distribution (before sampling), ℓ_old − ℓ_β is what that distribution
        says. It is the policy's own log-probs of it, less the server's.
        """
        known = {at: s.behaviour for at, s in enumerate(samples) if s.behaviour is not None}
        for version in sorted({s.version for s in samples if not s.exact}):
            at = [i for i, s in enumerate(samples) if not s.exact and s.version == version]
            if version == self.spec.parent:
                again = [old[i] for i in at]
            elif version == 0:
                again = [ref[i] for i in at]
            else:
                adapter = self.spec.adapters[version]
                with self.policy.wearing(adapter):
                    again = self._under(str(adapter), [samples[i].tokens for i in at])
            known |= {i: recomputed.sampled for i, recomputed in zip(at, again, strict=True)}
        for place, odds in self.served_odds(samples, old).items():
            known[place] = np.where(np.isfinite(odds), old[place].sampled - odds, known[place])
        return [known[at] for at in range(len(samples))]

    def served_odds(self, samples: Sequence[Sample], old: Sequence[LogProbs]) -> dict[int, Floats]:
        """By place, (T,): what the policy gives each token of a reply, less what its server gave it. Both are of the
        distribution that the server's log-probs are of; NaN where the server said nothing."""
        told = {at: one for at, one in enumerate(samples) if one.served is not None}
        other = [at for at, one in told.items() if one.served_at != one.tokens.temperature]
        asked = [replace(told[at].tokens, temperature=told[at].served_at) for at in other]
        # What the model makes of a prompt does not depend on the temperature.
        known = {
            ask: self.known[was] for at, ask in zip(other, asked, strict=True) if (was := told[at].tokens) in self.known
        }
        again = self._under(self.parent, asked, known=known)
        now = {at: old[at].plain for at in told} | {at: one.plain for at, one in zip(other, again, strict=True)}
        return {at: now[at] - one.served for at, one in told.items()}  # type: ignore[operator]

    def states(self, sequences: Sequence[Tokens]) -> list[States]:
        """(T + 1, H) as a critic looks at them, before each token of a reply and after its last; under the parent."""
        found = {one: narrow(self.known[one]) for one in sequences if one in self.known}
        for one, states in self._states([one for one in sequences if one not in found]):
            found[one] = narrow(states)
        return [found[one] for one in sequences]

    def _remember(self, sequences: Sequence[Tokens]) -> None:
        room = REMEMBERED
        for one, states in self._states(sequences):
            room -= states.nbytes
            if room < 0:
                return
            self.known[one] = states.copy()  # not a view that holds its whole pass

    def _states(self, sequences: Sequence[Tokens]) -> Iterator[tuple[Tokens, States]]:
        """(T + 1, H) of each, in the order of its pass."""
        # One token more, whichever: what is before it is what comes after the reply.
        after = [replace(one, reply=(*one.reply, one.reply[-1])) for one in sequences]
        for members in packing.group(after, self.policy.budget):
            self.stop.check()
            packed = packing.pack([after[i] for i in members])
            parts = np.split(self.policy.states(packed), np.cumsum(packed.lengths)[:-1])
            yield from zip([sequences[i] for i in members], parts, strict=True)

    def kept(self) -> kept.Arrays:
        """Files that critics have left with the parent."""
        return kept.read(self.spec.adapters[self.spec.parent], kept.CRITIC)[0] if self.spec.parent else {}

    def _under(
        self,
        who: str,
        sequences: Sequence[Tokens],
        remember: Sequence[Tokens] = (),
        known: Mapping[Tokens, States] = NOTHING,
    ) -> list[LogProbs]:
        """(T,) a sequence under what the policy wears now, from the cache when these very tokens are in it."""
        if not sequences:
            return []
        who = f"{self.spec.weights} {who}"
        content = repr(("with entropy", who, [(s.prompt, s.reply, s.temperature, s.top_p, s.top_k) for s in sequences]))
        name = f"{hashlib.sha256(content.encode()).hexdigest()[:24]}.npz"
        bounds = np.cumsum([0] + [len(s.reply) for s in sequences])
        # Also where these are known already: the credits of a run that goes on have to be the same to the last bit.
        self._remember(remember)
        if (kept := self.cache.arrays(name)) is not None:
            flat = kept["flat"]  # (3, N)
        else:
            known = self.known if remember else known  # those are the parent's
            flat = np.empty((3, bounds[-1]))
            for members, states in packing.passes(sequences, self.policy.budget, known):
                self.stop.check()
                packed = packing.pack([sequences[i] for i in members])
                every = np.stack(self.policy.log_probs(packed, states))  # (3, n)
                ends = np.cumsum(packed.lengths)
                for i, part in zip(members, np.split(every, ends[:-1], axis=1), strict=True):
                    flat[:, bounds[i] : bounds[i + 1]] = part
            self.cache.keep_arrays(name, flat=flat)
        return [LogProbs(*flat[:, a:b]) for a, b in pairwise(bounds)]


def narrow(states: States) -> States:
    """At most WIDEST features: distances stay, nearly (Johnson and Lindenstrauss)."""
    if states.shape[1] <= WIDEST:
        return states
    narrowed: States = states @ _projection(states.shape[1])
    return narrowed


@lru_cache(maxsize=1)  # millions of random numbers, the same for each reply of a run
def _projection(width: int) -> States:
    drawn: States = np.random.default_rng(0).standard_normal((width, WIDEST), np.float32) / np.sqrt(np.float32(WIDEST))
    return drawn
