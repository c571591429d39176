"""Which samples of earlier runs train once more, beside the new ones.

Owns the choice among the lines that the run folder has for it. Once chosen they are samples like any other. They are
compared with the version that wrote them, filtered as far as they have become stale, and weighed with the rest. But
they are not new ratings: neither the baseline nor the count of samples that a run has used knows of them (loop). Not
here: what the store remembers (store.learning.samples).
"""

from __future__ import annotations

from collections.abc import Sequence

from config.presets import Preset
from trainer.io.progress import Progress
from trainer.io.run_folder import RunSpec
from trainer.lessons.samples import Sample


def choose(samples: Sequence[Sample], spec: RunSpec, preset: Preset, progress: Progress) -> list[Sample]:
    """All that is new, and as many liked as disliked ones of the newest versions before."""
    new = [s for s in samples if not s.replayed]
    target = preset.replays(sum(not s.is_held_back for s in new))
    candidates = [s for s in samples if s.replayed and spec.parent - s.version <= preset.max_version_gap]
    candidates.sort(key=lambda s: -s.version)
    liked, disliked = [s for s in candidates if s.reward > 0], [s for s in candidates if s.reward < 0]
    count = min(target // 2, len(liked), len(disliked))
    if target:
        reason = (
            f"replay_ratio asks for {target}; of earlier runs there are {len(liked)} liked, {len(disliked)} disliked"
        )
        progress.choice("replayed", 2 * count, reason)
    return new + liked[:count] + disliked[:count]
