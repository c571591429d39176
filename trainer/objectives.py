"""The objectives by name: the loss of each, what a rating is compared with, and what else it learns from.

Owns the registry. A new objective is one entry here and one function in losses; `train.overrides.objective` names it.
Not here: the losses themselves (mis_po, losses), the user's own (own_loss), which of them a run takes (run.plan).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from config.presets import Preset
from trainer import losses
from trainer.io.run_folder import RunError
from trainer.own_loss import OwnLoss
from trainer.policy.policy import Loss


class RatedPrompt(NamedTuple):
    """The part of a sample that a baseline sees."""

    reward: float
    prompt: tuple[int, ...]
    labelled: bool  # by a judge


# (samples, running mean of the rewards) -> reward and baseline of each
Baselines = Callable[[Sequence[RatedPrompt], float], list[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Objective:
    name: str
    loss: Callable[[Preset], Loss]
    baselines: Baselines | None  # None: ratings push nothing
    balances: bool = True  # likes and dislikes weigh the same in sum; tokens have credit, or likely ones are spared
    is_filtered: bool = True  # by the MIS-PO filter, which needs behaviour log-probs
    is_foreign: bool = False  # another model gave the replies: no version gap, and nothing to recompute
    has_teacher: bool = False  # comments and corrections teach
    with_teacher: str | None = None  # the objective in its place where there are comments or corrections
    weighs_ratings: bool = False  # `w_rl` is the weight of ratings beside the teacher
    has_pairs: bool = False  # two replies to one prompt train against each other
    has_anchor: bool = False  # its loss holds what is not to move
    may_lean: bool = False  # the model may teach itself what was liked
    has_reference_point: bool = False  # KTO's z₀

    def rating_weight(self, preset: Preset) -> float:
        return preset.w_rl if self.weighs_ratings else 1.0


def of(preset: Preset) -> Objective:
    """Raises RunError where the preset names none."""
    try:
        return OBJECTIVES[preset.objective]
    except KeyError:
        raise RunError(f"there is no objective {preset.objective!r}; there are {', '.join(OBJECTIVES)}.") from None


def make_loss(preset: Preset, own_loss: OwnLoss | None = None) -> Loss:
    """The loss of this preset; `own_loss` takes the place of its part on ratings and rewards."""
    return of(preset).loss(preset) if own_loss is None else _combine(preset, own_loss)


# --- what a rating is compared with ------------------------------------------------------------------------------


def _running_mean(samples: Sequence[RatedPrompt], mean: float) -> list[tuple[float, float]]:
    """People's rewards against the running mean, a judge's labels against nothing.

    A judge finds what is bad. Above a running mean of its labels would be whatever nothing was found against, also
    where nothing bad is there to compare it with. So that counts as much as what is bad beside it, and alone nothing.
    """
    has_complaint = any(s.labelled and s.reward < 0 for s in samples)
    return [
        ((s.reward or float(has_complaint)), 0.0)
        if s.labelled and (has_complaint or not s.reward)
        else (s.reward, mean)
        for s in samples
    ]


def _group_mean(samples: Sequence[RatedPrompt], mean: float) -> list[tuple[float, float]]:
    """Against the other replies to the same prompt."""
    rewards = [s.reward for s in samples]
    return list(zip(rewards, losses.group_baselines([s.prompt for s in samples], rewards, mean), strict=True))


def _nothing(samples: Sequence[RatedPrompt], mean: float) -> list[tuple[float, float]]:
    """Against nothing: z₀ is what KTO compares a reply with."""
    return [(s.reward, 0.0) for s in samples]


# --- the losses with a preset's numbers --------------------------------------------------------------------------


def _combine(preset: Preset, actor: Any = None) -> Loss:
    return partial(
        losses.combine,
        kl_ref=preset.kl_ref,
        guard_low=preset.guard_low,
        guard_high=preset.guard_high,
        w_distill=preset.w_distill,
        w_stay=preset.w_stay,
        w_elsewhere=preset.w_elsewhere,
        actor=actor,
    )


def _mis_po_clip(preset: Preset) -> Loss:
    return partial(
        losses.mis_po_clip,
        kl_ref=preset.kl_ref,
        token_low=preset.token_low,
        token_high=preset.token_high,
        low=preset.band_low,
        high=preset.band_high,
    )


def _grpo(preset: Preset) -> Loss:
    return partial(losses.grpo, kl_ref=preset.kl_ref, clip_low=preset.clip_low, clip_high=preset.clip_high)


def _kto(preset: Preset) -> Loss:
    return partial(losses.kto, beta=preset.kto_beta)


def _kto_combine(preset: Preset) -> Loss:
    return partial(losses.kto_combine, beta=preset.kto_beta, w_distill=preset.w_distill)


RATINGS_ALONE: Final = "mis-po"  # the objective without a teacher
_ALL: Final = (
    Objective(
        "mis-po", _combine, _running_mean,
        with_teacher="combine", has_pairs=True, has_anchor=True, may_lean=True,
    ),
    # By log-probs of tokens that were said, which is all that a Tinker server tells.
    Objective("mis-po-tokens", _combine, _running_mean),
    Objective("mis-po-clip", _mis_po_clip, _running_mean, is_filtered=False),
    Objective("grpo", _grpo, _group_mean, balances=False),
    Objective("distill", _combine, None, has_teacher=True),
    Objective(
        "combine", _combine, _running_mean,
        has_teacher=True, weighs_ratings=True, has_pairs=True, has_anchor=True,
    ),
    Objective(
        "kto", _kto, _nothing,
        balances=False, is_filtered=False, is_foreign=True, has_reference_point=True,
    ),
    Objective(
        "kto-combine", _kto_combine, _nothing,
        balances=False, is_filtered=False, is_foreign=True, has_reference_point=True, has_teacher=True,
        weighs_ratings=True,
    ),
)  # fmt: skip
OBJECTIVES: Final = {objective.name: objective for objective in _ALL}
