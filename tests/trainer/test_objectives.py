"""The registry of objectives: each has a loss that runs, and is found by its name alone."""

import math

import numpy as np
import pytest

from config import presets
from trainer import objectives
from trainer.io.run_folder import RunError
from trainer.mis_po import Terms
from trainer.objectives import OBJECTIVES, RatedPrompt


def preset(name):
    return presets.resolve("balanced", {"objective": name})


def terms():
    ones = np.ones(4)
    return Terms(-ones, -ones, ones, ones, ones / 4, behaviour=-ones, member=ones[None], zero=np.asarray(0.0))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_each_has_a_loss_of_the_presets_numbers(name):
    loss, sums = objectives.make_loss(preset(name))(np, -np.ones(4), terms())
    assert math.isfinite(loss) and {"loss", "kl_ref", "kl_old"} <= sums.keys()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_loss_of_the_users_own_stands_in_the_place_of_any(name):
    loss = objectives.make_loss(preset(name), lambda *given: (7.0, {"kl_ref": 0.0}))
    assert loss(np, -np.ones(4), terms())[0] == 7.0


def test_one_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(RunError, match="no objective 'ppo'; there are mis-po, mis-po-tokens, mis-po-clip, grpo"):
        objectives.of(preset("ppo"))


def test_what_takes_over_where_comments_teach_listens_to_them():
    heirs = [OBJECTIVES[one.with_teacher] for one in OBJECTIVES.values() if one.with_teacher]
    assert heirs and all(heir.has_teacher for heir in heirs)
    assert not OBJECTIVES[objectives.RATINGS_ALONE].has_teacher


def test_what_a_rating_is_compared_with():
    samples = [RatedPrompt(1.0, (1,), False), RatedPrompt(-1.0, (1,), False), RatedPrompt(1.0, (2,), False)]
    by_name = {name: one.baselines and one.baselines(samples, 0.25) for name, one in OBJECTIVES.items()}
    assert by_name["mis-po"] == by_name["combine"] == [(1.0, 0.25), (-1.0, 0.25), (1.0, 0.25)]
    assert by_name["grpo"] == [(1.0, 0.0), (-1.0, 0.0), (1.0, 0.25)]  # the mean of its prompt, where there are several
    assert by_name["kto"] == by_name["kto-combine"] == [(1.0, 0.0), (-1.0, 0.0), (1.0, 0.0)]
    assert by_name["distill"] is None
