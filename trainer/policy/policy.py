"""The loop's needs of an array framework: log-probs, a backward pass, a step, a few replies.

Owns the Protocol and nothing else. torch_policy has it for transformers + peft, mlx_policy for mlx-lm. Arrays that
cross it are numpy; only the loss sees the framework's own. A State has the same names in both, so that a checkpoint of
one goes on in the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trainer.mis_po import Array, Terms
from trainer.pictures.album import Album
from trainer.policy.packing import Budget, Packed, States

State = dict[str, NDArray[Any]]
# (array module, ℓ_θ (N,), constants (N,), and with `teacher_ids` ℓ_θ at those (N, K)) -> (loss, sums)
Loss = Callable[..., tuple[Array, dict[str, Array]]]


class LogProbs(NamedTuple):
    plain: NDArray[np.float64]  # (N,) at the serving temperature, over the whole vocabulary
    sampled: NDArray[np.float64]  # (N,) of the distribution sampled from: top-k and top-p too, −inf outside it
    entropy: NDArray[np.float64]  # (N,) of what `plain` is of, nats: what −plain is on average where it was sampled


class Surprise(NamedTuple):
    excess: NDArray[np.float64]  # (N,) E_θ[−log π_base] − H(π_base), nats: what the base finds odder than its own
    entropy: NDArray[np.float64]  # (N,) H(π_θ), nats
    base_entropy: NDArray[np.float64]  # (N,) H(π_base), nats


class TokenDistribution(NamedTuple):
    """A teacher's K likeliest tokens at each reply token, most likely first, at the serving temperature."""

    ids: NDArray[np.int32]  # (N, K)
    log_probs: NDArray[np.float32]  # (N, K)


class Policy(Protocol):
    device: str
    reason: str  # why this device
    choices: list[tuple[str, Any, str]]  # what was decided while loading: name, value, reason
    tokenizer: Any
    words: int  # ids that its table of embeddings has; those of pictures' pieces are past them
    leans: bool  # it has `middle` and `leaning`: its middle layer is known
    interpolates: bool  # it goes on from any adapter that it is told to wear, also one halfway between two
    budget: Budget  # how much goes through the model at once; the loop lowers it when memory runs out

    def see(self, album: Album) -> str | None:
        """Read these pictures from here on, where a sequence has their ids; why it cannot, or None."""

    def picture_features(self, names: Sequence[str]) -> NDArray[np.float64]:
        """(n, H) what the part that sees gives for each of these pictures of the album, its pieces averaged."""

    def wearing(self, adapter: Path | None) -> AbstractContextManager[None]:
        """Inside it the model wears this adapter instead of the one in training; None is the bare base."""

    def round_products(self) -> str | None:
        """From here on multiply in bf16 where this is faster and may be; why, or None where all stays as it is."""

    def log_probs(self, packed: Packed, states: States | None = None) -> LogProbs:
        """No gradient, no dropout, the same code path as `backward`; fp32 from the head on.

        `states` (N, H), here and in `teach`: what `states(packed)` gave, so that only the head is left to do.
        """

    def states(self, packed: Packed) -> States:
        """(N, H) the last hidden state before each reply token, without gradient."""

    def middle(self, packed: Packed) -> States:
        """(N, H) likewise, but halfway up the layers: where states say what a text is about and how it is said."""

    def leaning(self, direction: NDArray[np.float32]) -> AbstractContextManager[None]:
        """Inside it `log_probs`, `states` and `teach` add the direction (H,) to those states, and the layers above go
        on from there."""

    def surprise(self, packed: Packed) -> Surprise:
        """KL of the adapted model and the bare base, position by position, over the whole vocabulary and at
        temperature 1."""

    def teach(
        self, packed: Packed, k: int, required_ids: Sequence[int] = (), states: States | None = None
    ) -> TokenDistribution:
        """The model's expectation at each reply token, without gradient; never (N, V) at once.

        The `required_ids`, at most K, are among the K however likely they are, and come first.
        """

    def backward(self, packed: Packed, terms: Terms, loss: Loss) -> dict[str, float]:
        """Add this micro-batch's gradient to the step's. Returns the loss's sums. May raise OutOfMemory."""

    def step(self, learning_rate: float, max_grad_norm: float) -> float:
        """One optimiser step with the gradient so far. Returns its norm; not finite: nothing was changed."""

    def adapter(self) -> State:
        """A copy of the adapter's tensors."""

    def wear(self, adapter: Mapping[str, NDArray[Any]]) -> None:
        """Put tensors from `adapter()` back."""

    def optimiser(self) -> State: ...

    def restore(self, optimiser: Mapping[str, NDArray[Any]]) -> None:
        """Put what `optimiser()` gave back; nothing: as before its first step."""

    def generate(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, temperature: float, seed: int | Sequence[int]
    ) -> list[list[int]]:
        """One reply a prompt, in one batch, with its end token where it ended. May raise OutOfMemory.

        `seed`: one, or one a prompt. Neighbours with the same one get the replies that they get when asked alone.
        """

    def save(self, folder: Path) -> None:
        """The adapter as a PEFT folder."""
