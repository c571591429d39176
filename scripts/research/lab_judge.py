"""For the lab: what plain looks at rated replies say of replies that nobody has rated.

The looks are those of trainer.run.permutation_test. Each look gets a ridge regression on the ratings. The one whose
left-out predictions tell good from bad best is the judge, if it tells them apart well enough. It judges only what is as
plainly good as the median good one, or as plainly bad as the median bad one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.run import permutation_test
from trainer.run.permutation_test import Floats, RatedReply

ENOUGH = 0.85  # of the area under the curve of left-out predictions
RIDGE = 1.0


def judged(rated: Sequence[RatedReply], unrated: Sequence[RatedReply]) -> tuple[list[int], float]:
    """+1, −1 or 0 (cannot tell) of each unrated reply, and how well the judge tells the rated ones apart."""
    y = np.array([reply.reward for reply in rated])
    if len(set(y)) < 2:
        return [0] * len(unrated), 0.5
    fits = [_fit(kernel, y) for kernel in permutation_test.kernels([*rated, *unrated])]
    best = max(fits, key=lambda fit: fit[0])
    auc, left_out, new = best
    if auc < ENOUGH:
        return [0] * len(unrated), auc
    high, low = np.median(left_out[y > 0]), np.median(left_out[y < 0])
    return [1 if score >= high else -1 if score <= low else 0 for score in new], auc


def _fit(kernel: Floats, y: Floats) -> tuple[float, Floats, Floats]:
    n, mean = len(y), y.mean()
    scale = max(np.trace(kernel[:n, :n]) / n, 1e-9)
    rated_kernel, new = kernel[:n, :n] / scale, kernel[n:, :n] / scale
    inverse = np.linalg.inv(rated_kernel + RIDGE * np.eye(n))
    hat = rated_kernel @ inverse
    fitted = hat @ (y - mean)
    share = np.diag(hat)
    left_out = (fitted - share * (y - mean)) / (1 - share)
    good, bad = left_out[y > 0], left_out[y < 0]
    wins = (good[:, None] > bad).mean() + 0.5 * (good[:, None] == bad).mean()
    return float(wins), left_out, new @ inverse @ (y - mean)
